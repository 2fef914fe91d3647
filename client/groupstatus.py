"""The status of a group: its master's, as only a master knows how far its peers are behind."""

from __future__ import annotations

from typing import Any

from ..wheel.errors import SlotwheelError
from .addresses import SECURE
from .client import Client

REPLICATION = "replication"
MASTER = "master"
_MASTER_TIMEOUT_S = 2.0


def group_status(client: Client) -> dict[str, Any]:
    """The status of a node; with several addresses, that of the master, if it is known and answers.
    Errors: ``NodeUnreachable``."""
    status = client.status()
    if len(client.addresses) == 1:
        return status
    group = status.get(REPLICATION) or {}
    address = group.get("master_address")
    if group.get("role") == MASTER or not address:
        return status
    try:
        if client.is_secure:
            address = SECURE + address
        proof: dict[str, Any] = {"tls": client.tls, "token": client.token}
        with Client(address, timeout_s=_MASTER_TIMEOUT_S, **proof) as master:
            return master.status()
    except SlotwheelError:  # the master may have died just now
        return status
