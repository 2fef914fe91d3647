"""Which topic it is that goes by a name: its id, as Kafka's tools write it."""

from __future__ import annotations

import base64
import uuid


def id_text(topic_id: str | uuid.UUID | None) -> str:
    """Of kafka-python's id; empty where the brokers tell none."""
    raw = b"" if topic_id is None else uuid.UUID(str(topic_id)).bytes
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() if any(raw) else ""
