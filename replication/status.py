"""The status of a peer, with its view of the others, in plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .rules.core import Core
from .rules.group import Group
from .rules.states import Role


def status_of(
    core: Core,
    group: Group,
    now: float,
    links: Callable[[str], Mapping[str, object]],
    clients_at: Callable[[str], str],
) -> dict[str, Any]:
    """The status; units are in the names, None: not known. ``links(peer)``: a peer's links.
    ``clients_at``: as of ``Transport``."""
    return {
        "me": group.me,
        "role": core.role.value,
        "epoch": core.epoch,
        "master": core.master if core.role is not Role.MASTER else group.me,
        "master_address": master_address(core, group, clients_at),
        "forms_group": core.forms_group,
        "waits_for": dict(core.waits_for),
        "commit": core.commit,
        "last_index": core.last_index,
        "peers": [_peer(core, group, peer, now, links(peer)) for peer in group.others],
    }


def master_address(core: Core, group: Group, clients_at: Callable[[str], str]) -> str | None:
    """Where clients reach the master; None: not known."""
    master = group.me if core.role is Role.MASTER else core.master
    return None if master is None or master not in group.peers else clients_at(master) or None


def _peer(
    core: Core, group: Group, peer: str, now: float, link: Mapping[str, object]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": peer,
        "address": group.peers[peer],
        "state": None,
        "match": None,
        "lag_entries": None,
        "heard_ms": None,
        "admitted": peer in core.admitted,
        **link,
    }
    progress = core.progress.get(peer)
    if progress is not None:
        silent_s = now - progress.answered_at
        fields |= {
            "state": progress.state.value,
            "match": progress.match,
            "lag_entries": max(0, core.last_index - progress.match),
            "heard_ms": int(silent_s * 1000) if silent_s < 1e9 else None,
            # It is admitted and has answered as a voter: only then does it count for a majority.
            "admitted": progress.counted > 0 and core.admitted.get(peer) == progress.store,
        }
    return fields


def missing_votes(status: Mapping[str, Any]) -> str:
    """The peers that an election waits for, and why, from a status without a master, for a person;
    empty if this peer has not asked any."""
    waits_for = ", ".join(f"{peer} ({why})" for peer, why in status.get("waits_for", {}).items())
    if not waits_for:
        return ""
    if status["forms_group"]:
        return f"the group begins when all peers are there; it waits for {waits_for}"
    return f"a majority is needed; missing: {waits_for}"
