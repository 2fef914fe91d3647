"""The driver's fetch of a snapshot, asked by two threads."""

from __future__ import annotations

from typing import Any

import pytest

from slotwheel.replication.snapshots import fetching as module
from slotwheel.replication.snapshots.fetching import Fetching


class Fetch:
    """One that ends well, and counts who gives it up."""

    error: Exception | None = None

    def __init__(self, peer: str, *_: object) -> None:
        self.peer = peer
        self.abandoned = 0

    def start(self) -> None:
        pass

    def abandon(self) -> None:
        self.abandoned += 1


class Fake:
    """The transport, a sink and the events. ``lost`` is called where a fetch is given up."""

    def __init__(self) -> None:
        self.lost: Any = None

    def address_of(self, peer: str) -> str:
        return peer

    def identity(self, *_: object) -> None:
        pass

    def secure_to(self, _: str) -> None:
        pass

    def discard(self) -> Any:
        return iter(())

    def event(self, name: str, **_: object) -> None:
        if name == "snapshot-lost":
            self.lost()


def test_who_ends_a_node_may_give_up_a_fetch_that_ends_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's thread may still be at work: whoever waits for it waits for two seconds."""
    made: list[Fetch] = []

    def make(*arguments: Any) -> Fetch:
        made.append(Fetch(*arguments))
        return made[-1]

    monkeypatch.setattr(module, "SnapshotFetch", make)
    fake: Any = Fake()
    fetching = Fetching(
        fake, fake, lambda: fake, lambda _: None, lambda: 0, fake, clock=lambda: 0.0
    )
    fetching.want("b")
    (fetch,) = made
    ended: list[bool] = []
    fake.lost = lambda: ended.append(fetching.ended(fetch))  # type: ignore[arg-type]
    fetching.give_up("the node ends")
    assert fetch.abandoned == 1
    assert ended == [False]
    assert fetching.progress is None
