"""Security files for tests."""

from __future__ import annotations

from pathlib import Path

from slotwheel.security.securityfile import SecurityFile
from slotwheel.security.tokens import digest_of

EXAMPLE = f"""
[tokens.billing]
sha256 = "{digest_of("swt_billing")}"
until = 2100-01-01T00:00:00Z

[tokens.gateway]
sha256 = "{digest_of("swt_gateway")}"

[oidc.corp]
issuer = "https://login.example"
audience = "slotwheel"

[roles.orders]
schedule = ["orders", "orders-*"]
read = ["*"]

[roles.canceller]
cancel = ["orders-*"]
observe = true

[roles.operator]
admin = true

[roles.gateway]
gateway = true

[members]
"token:billing" = ["orders"]
"token:gateway" = ["gateway"]
"cert:gateway.example" = ["gateway"]
"oidc:corp:42" = ["canceller"]
"oidc:corp:group:operators" = ["operator"]
"delay:delays" = ["orders"]

[quotas."token:billing"]
rows-per-second = 5000
bytes-per-second = 1000000

[quotas."token:billing".pending."orders-*"]
rows = 1000000
bytes = 500000000

[quotas.default]
connections = 100
questions = 4
"""


def parsed(text: str) -> SecurityFile:
    return SecurityFile.parse(text.encode())


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, in one step, as a file that a node looks at."""
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(text)
    return new.rename(path)
