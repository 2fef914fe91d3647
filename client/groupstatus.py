"""The status of a group: its master's, as only a master knows how far its peers are behind."""

from __future__ import annotations

from typing import Any

from ..wheel.errors import SlotwheelError
from .client import Client

REPLICATION = "replication"
MASTER = "master"
_MASTER_TIMEOUT_S = 2.0


def group_status(client: Client) -> dict[str, Any]:
    """The status of the node; of several, the master's if it is known and answers. Errors:
    ``NodeUnreachable``."""
    found = client.status()
    if len(client.addresses) == 1:
        return found
    group = found.get(REPLICATION) or {}
    address = group.get("master_address")
    if group.get("role") == MASTER or not address:
        return found
    try:
        with Client(address, timeout_s=_MASTER_TIMEOUT_S) as other:
            return other.status()
    except SlotwheelError:  # it may be the one that just died
        return found
