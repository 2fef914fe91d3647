"""Whether a port with TLS asks whoever connects for a certificate."""

from __future__ import annotations

OFF, OPTIONAL, REQUIRED = CLIENT_CERTS = ("off", "optional", "required")
