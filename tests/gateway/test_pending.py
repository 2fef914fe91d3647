"""Quotas of what is pending, over HTTP: the gateway holds its callers to what the node counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwheel.gateway.authentication import RequestAuthenticator
from slotwheel.gateway.pendingpoll import PendingPoll
from slotwheel.security.principals import Identity
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.errors import NodeUnreachable, OverQuota
from support.securing import write_private

FILE = f"""
[tokens.a]
sha256 = "{digest_of("swt_a")}"
[tokens.gateway]
sha256 = "{digest_of("swt_gateway")}"
[roles.all]
schedule = ["*"]
[roles.gateway]
gateway = true
[members]
"token:a" = ["all"]
"token:gateway" = ["gateway"]
[quotas."token:a"]
rows-per-second = 100
[quotas."token:a".pending."orders*"]
rows = 50
"""


def counts(rows: int) -> dict[str, Any]:
    prefix = {"prefix": "orders*", "rows": rows, "bytes": 10 * rows}
    return {"pending_by_prefix": {"prefixes": [prefix], "slots_to_count": 0}}


class Callers:
    def __init__(self, folder: Path) -> None:
        security = write_private(folder / "security.toml", FILE)
        self.authenticator = RequestAuthenticator(security)

    def known(self, token: str) -> Identity:
        head = [(b"authorization", f"Bearer {token}".encode())]
        return self.authenticator.recall(head, ())

    def send(self, token: str, **topics: int) -> None:
        self.authenticator.admit_rows(self.known(token), topics, 100)


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path)


def test_what_the_node_counts_and_what_was_sent_since_is_the_limit(callers: Callers) -> None:
    answers: list[dict[str, Any]] = [counts(20), counts(60), {}, counts(0)]
    poll = PendingPoll(callers.authenticator.pending, lambda: answers.pop(0))
    poll.close()
    poll.poll()
    callers.send("swt_a", orders=20, other=5)
    with pytest.raises(OverQuota, match="40 pending, and 11 in this batch"):
        callers.send("swt_a", orders=11)
    callers.send("swt_gateway", orders=5)  # it has no limit, and its rows count
    with pytest.raises(OverQuota, match="45 pending"):
        callers.send("swt_a", orders=6)
    poll.poll()
    with pytest.raises(OverQuota, match="60 pending"):
        callers.send("swt_a", orders=1)
    poll.poll()  # a node whose file does not limit it counts nothing
    callers.send("swt_a", orders=1)
    poll.poll()
    assert callers.authenticator.pending.pending() == {"orders*": (0, 0)}


def test_a_message_over_its_rate_is_not_pending(callers: Callers) -> None:
    callers.send("swt_a", other=200)
    with pytest.raises(OverQuota, match="rows per second"):
        callers.send("swt_a", orders=1)
    assert callers.authenticator.pending.pending() == {"orders*": (0, 0)}


def test_while_no_node_answers_the_last_counts_hold(callers: Callers) -> None:
    def status() -> dict[str, Any]:
        if answers:
            return answers.pop()
        raise NodeUnreachable("nobody answers")

    answers = [counts(49)]
    poll = PendingPoll(callers.authenticator.pending, status)
    poll.close()
    for _ in range(3):
        poll.poll()
    callers.send("swt_a", orders=1)
    with pytest.raises(OverQuota, match="50 pending"):
        callers.send("swt_a", orders=1)
