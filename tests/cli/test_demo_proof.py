"""The demo's proof finds each violation that is planted in a sound result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slotwheel.cli.demo.proof import Arrivals, Outage, Promises, Spread, prove

ROWS = 100
DUE = 1_800_000_000_000 + np.arange(ROWS, dtype=np.int64) * 10
KILLED, READY = int(DUE[40]) + 5, int(DUE[60]) + 5
OUTAGE = [Outage(KILLED, READY)]


def sound() -> tuple[Promises, Arrivals]:
    """Messages 0 to 9 are kept, 10 to 19 cancelled; the others arrive 2 ms late; those due while
    the node is dead arrive 4 ms after it is ready."""
    none = np.zeros(ROWS, np.bool_)
    kept, cancelled = none.copy(), none.copy()
    kept[:10] = True
    cancelled[10:20] = True
    number = np.arange(20, ROWS)
    delivered = DUE[20:] + 2
    dead = (DUE[20:] + 2 > KILLED) & (DUE[20:] <= READY)
    delivered[dead] = READY + 4
    offset = np.arange(ROWS, dtype=np.int64) + 1000
    sent = Promises(DUE, offset, cancelled, none, kept)
    return sent, Arrivals(number, offset[20:], DUE[20:], DUE[20:] - 5000, delivered)


def change(arrived: Arrivals, row: int, **values: int) -> Arrivals:
    columns = {name: getattr(arrived, name).copy() for name in values}
    for name, value in values.items():
        columns[name][row] = value
    return replace(arrived, **columns)


def pick(arrived: Arrivals, rows: list[int]) -> Arrivals:
    names = ("number", "offset", "due", "created", "delivered")
    return Arrivals(*(getattr(arrived, name)[rows] for name in names))


def test_a_sound_result_holds() -> None:
    sent, arrived = sound()
    proof = prove(sent, arrived, OUTAGE)
    assert proof.holds
    assert (proof.sent, proof.kept, proof.cancelled, proof.delivered) == (100, 10, 10, 80)
    assert (proof.repeated, proof.refused, proof.foreign) == (0, 0, 0)
    assert proof.lateness == Spread(60, 2, 2, 2)
    # Due from 41 (5 ms before the kill is 40, delivered) to 60: dead; 41 waited longest.
    assert (proof.waited.count, proof.waited.max) == (20, READY + 4 - int(DUE[41]))


def test_a_backlog_counts_until_it_is_gone() -> None:
    """Rows due after the restart that queue behind the backlog waited for it, too."""
    sent, arrived = sound()
    behind = change(arrived, 60 - 20, delivered=READY + 40)
    for number in (61, 62, 63):
        behind = change(behind, number - 20, delivered=READY + 41)
    proof = prove(sent, behind, OUTAGE)
    assert (proof.waited.count, proof.lateness.count) == (20 + 4, 56)
    assert proof.lateness.max == 2


def test_two_outages() -> None:
    """What waited for the second one is counted apart, too; what came in between is not."""
    sent, arrived = sound()
    late = change(arrived, 90 - 20, delivered=int(DUE[95]))
    again = Outage(int(DUE[90]) + 1, int(DUE[95]) - 1)
    proof = prove(sent, late, OUTAGE)
    assert (proof.waited.count, proof.lateness.max) == (20, 50)
    proof = prove(sent, late, [*OUTAGE, again])
    assert (proof.waited.count, proof.lateness.max) == (20 + 6, 2)


def test_rows_of_several_peers_come_in_any_order() -> None:
    """A message that arrived twice is late by its first arrival, wherever that stands."""
    sent, arrived = sound()
    twice = pick(arrived, [*range(80), 79])
    later = change(twice, 79, delivered=int(DUE[99]) + 70)
    proof = prove(sent, later, OUTAGE)
    assert (proof.repeated, proof.lateness.max, proof.holds) == (1, 2, True)


@pytest.mark.parametrize("number", [20, 50, 99])
def test_a_lost_message_is_found(number: int) -> None:
    sent, arrived = sound()
    rows = [row for row in range(80) if row != number - 20]
    proof = prove(sent, pick(arrived, rows), OUTAGE)
    assert (proof.lost, proof.holds) == (1, False)


def test_an_early_message_is_found() -> None:
    sent, arrived = sound()
    proof = prove(sent, change(arrived, 3, delivered=int(DUE[23]) - 1), OUTAGE)
    assert (proof.early, proof.holds) == (1, False)
    proof = prove(sent, change(arrived, 3, delivered=int(DUE[23])), OUTAGE)
    assert (proof.early, proof.holds) == (0, True)


def test_a_cancelled_message_that_arrives_is_found() -> None:
    sent, arrived = sound()
    number, offset, due = 12, 1012, int(DUE[12])
    extra = change(arrived, 0, number=number, offset=offset, due=due)
    proof = prove(sent, extra, OUTAGE)
    assert (proof.cancelled_but_delivered, proof.holds) == (1, False)


def test_a_repeat_counts_and_is_no_violation() -> None:
    sent, arrived = sound()
    proof = prove(sent, pick(arrived, [0, 0, 0, *range(80)]), OUTAGE)
    assert (proof.repeated, proof.delivered, proof.holds) == (3, 80, True)


@pytest.mark.parametrize("field", ["number", "offset", "due"])
def test_what_was_never_sent_is_found(field: str) -> None:
    sent, arrived = sound()
    proof = prove(sent, change(arrived, 5, **{field: 1 << 40}), OUTAGE)
    assert (proof.foreign, proof.holds) == (1, False)


def test_what_was_not_promised_may_be_missing() -> None:
    sent, arrived = sound()
    offset, uncertain = sent.offset.copy(), sent.uncertain.copy()
    offset[20], uncertain[21] = -1, True
    less = replace(sent, offset=offset, uncertain=uncertain)
    proof = prove(less, pick(arrived, list(range(2, 80))), OUTAGE)
    assert (proof.lost, proof.refused, proof.holds) == (0, 1, True)


def test_nothing_arrived_at_all() -> None:
    sent, arrived = sound()
    proof = prove(sent, pick(arrived, []), OUTAGE)
    assert (proof.lost, proof.delivered, proof.lateness) == (80, 0, Spread())
