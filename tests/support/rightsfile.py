"""A security file with a token for each right alone, and some that are good for nothing."""

from __future__ import annotations

from pathlib import Path

from slotwheel.security.rights import FLAGS, TOPIC_RIGHTS, Right
from slotwheel.security.tokens import digest_of
from support.securing import write_private

TOPIC = "orders"
OTHER = "others-x"
ALL, OTHER_PREFIX = "all", "other-prefix"
"""Tokens that may do everything with ``TOPIC``, and with topics that begin with ``others-``."""
EXPIRED, UNKNOWN, NO_MEMBER = STRANGERS = ("expired", "unknown", "no-member")
"""Tokens that prove nothing."""
RIGHTS = (*TOPIC_RIGHTS, *FLAGS)


def token_of(name: str) -> str:
    return f"swt_{name}"


def bearer(name: str | None) -> dict[str, str]:
    """The header with a token; None: without one."""
    return {} if name is None else {"Authorization": f"Bearer {token_of(name)}"}


def write_rights(
    path: Path, *, further: str = "", left_out: str = "", consume: str = TOPIC
) -> Path:
    """``left_out``: a token that has no entry any more; ``consume``: the topic of the role that may
    consume and nothing else."""
    lines = []
    roles = {right.value: _role([right], TOPIC) for right in RIGHTS}
    roles[Right.CONSUME.value] = _role([Right.CONSUME], consume)
    roles[ALL] = _role([right for right in RIGHTS if right is not Right.GATEWAY], TOPIC)
    roles[OTHER_PREFIX] = _role(TOPIC_RIGHTS, "others-*")
    for name in (*roles, EXPIRED, NO_MEMBER):
        if name != left_out:
            lines += [f"[tokens.{name}]", f'sha256 = "{digest_of(token_of(name))}"']
            lines += ["until = 2020-01-01T00:00:00Z"] * (name == EXPIRED)
    for name, role in roles.items():
        lines += [f"[roles.{name}]", *role]
    lines.append("[members]")
    members = {**{name: name for name in roles}, EXPIRED: ALL}
    lines += [f'"token:{name}" = ["{role}"]' for name, role in members.items() if name != left_out]
    return write_private(path, "\n".join([*lines, further, ""]))


def _role(rights: tuple[Right, ...] | list[Right], topic: str) -> list[str]:
    return [
        f'{right.value} = ["{topic}"]' if right in TOPIC_RIGHTS else f"{right.value} = true"
        for right in rights
    ]
