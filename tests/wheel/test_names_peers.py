"""Names of a master that may lose its epoch: what is told of them is committed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from slotwheel.wheel.answers import Before
from slotwheel.wheel.errors import NameTaken, NotMaster
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.rows import from_columns
from support.handpeer import NOW, Peer
from support.plainrows import append_together, batch_of_records

DUE = NOW + 60_000
REPLACE, KEEP, REFUSE = IfExists
HOW = ["arrow", "plain"]


def send(peer: Peer, how: str, mode: IfExists, *, early: bool = False) -> Future[Any]:
    """One message with the name ``order-17``."""
    headers = [(NAME_HEADER, b"order-17"), (IF_EXISTS_HEADER, mode.encode())]
    if how == "arrow":
        rows = from_columns([DUE], ["t"], [None], [None], [b"x"], [headers])
        return peer.wheel.append(rows, NOW, early=early)
    plain = [(name.encode(), value) for name, value in headers]
    batch = batch_of_records([(DUE, b"t", None, None, b"x", plain)], early=early)
    (outcome,) = append_together(peer.wheel, [batch], NOW)
    assert isinstance(outcome, Future)
    return outcome


@pytest.mark.parametrize("how", HOW)
def test_a_refusal_comes_when_the_message_it_names_is_committed(
    peers: tuple[Peer, Peer], how: str
) -> None:
    a, _ = peers
    a.lead(1)
    first, refused = send(a, how, REPLACE), send(a, how, REFUSE)
    early = send(a, how, REFUSE, early=True)
    a.sync()
    assert isinstance(early.exception(0), NameTaken), "it is durable here"
    assert not refused.done()
    a.wheel.commit(a.wheel.log_view().durable)
    error = refused.exception(0)
    assert isinstance(error, NameTaken)
    assert error.got == str(a.wheel.mint.one(DUE, first.result(0).base_offset))


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_nobody_is_refused_for_a_message_that_is_never_committed(
    peers: tuple[Peer, Peer], how: str, written: bool
) -> None:
    a, b = peers
    a.lead(1)
    a.ship(b)
    first, refused = send(a, how, REPLACE), send(a, how, REFUSE)
    kept = send(a, how, KEEP)
    if written:
        a.sync()
    assert a.wheel.named("t", "order-17") is None, "an id that may never be one"
    a.wheel.stand_by()
    for future in (first, refused, kept):
        assert isinstance(future.exception(0), NotMaster)
    b.lead(2)
    stored = send(b, how, REFUSE)
    b.commit()
    assert stored.result(0).named == ()
    kept = send(b, how, KEEP)
    b.commit()
    assert [answer.before for answer in kept.result(0).named] == [Before.KEPT]


def test_who_is_refused_for_a_caller_of_the_same_entry_waits_for_that_entry(
    peers: tuple[Peer, Peer],
) -> None:
    a, _ = peers
    a.lead(1)
    modes = [REPLACE, REFUSE, REFUSE, KEEP]
    batches = [
        batch_of_records(
            [
                (
                    *(DUE + number, b"t", None, None, b"x"),
                    [
                        (NAME_HEADER.encode(), b"order-17"),
                        (IF_EXISTS_HEADER.encode(), mode.encode()),
                    ],
                )
            ],
            100 + number,
            0,
        )
        for number, mode in enumerate(modes)
    ]
    outcomes = append_together(a.wheel, batches, NOW)
    futures = [outcome for outcome in outcomes if isinstance(outcome, Future)]
    assert not any(future.done() for future in futures)
    a.commit()
    stored, *refused, kept = futures
    holder = str(a.wheel.mint.one(DUE, stored.result(0).base_offset))
    for future in refused:
        error = future.exception(0)
        assert isinstance(error, NameTaken)
        assert error.got == holder
    assert [answer.before for answer in kept.result(0).named] == [Before.KEPT]
