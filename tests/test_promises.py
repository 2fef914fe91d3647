"""The account of `support.promises` finds each violation that is planted in a sound result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slotwheel.wheel.mark import Mark, Marks
from support.promises import (
    RUN_ON_MS,
    UNMARKED_MS,
    Account,
    Arrival,
    Death,
    Fate,
    Fault,
    Meddled,
    Promised,
    account,
    table,
)

DUE = 1_800_000_000_000
COUNT = 20
KILL = DUE + 100_000


def promised(**meddled: Meddled) -> Promised:
    """Message ``n`` is due ``n`` ms after DUE, under the offset 1000 + n; 19 has no receipt."""
    offset = np.arange(COUNT, dtype=np.int64) + 1000
    offset[19] = -1
    found = {int(name[1:]): one for name, one in meddled.items()}
    return Promised(DUE + np.arange(COUNT, dtype=np.int64), offset, found)


def one(number: int, at_ms: int | None = None, *, due: int = -1, offset: int = -1) -> Arrival:
    due = DUE + number if due < 0 else due
    offset = 1000 + number if offset < 0 else offset
    return Arrival(number, due, offset, due + 2 if at_ms is None else at_ms)


def all_but(*numbers: int) -> list[Arrival]:
    return [one(number) for number in range(19) if number not in numbers]


def held(arrivals: list[Arrival], faults: tuple[Fault, ...] = (), **meddled: Meddled) -> Account:
    return account(promised(**meddled), arrivals, faults)


def test_a_sound_result() -> None:
    found = held(all_but())
    assert found.violations() == {}
    assert (found.promised, found.wanted, found.refused, found.repeated) == (19, 19, 1, 0)
    # Without a receipt nothing was promised: it may arrive, or not.
    assert held([*all_but(), one(19, offset=5)]).violations() == {}


def test_a_lost_one_an_early_one_and_strangers() -> None:
    assert held(all_but(7)).violations() == {"lost": (1, [7])}
    early = one(7, DUE + 6)
    assert held([*all_but(7), early]).violations() == {"early": (1, [early])}
    assert held([*all_but(7), one(7, DUE + 7)]).violations() == {}
    for stranger in (one(20), one(-1), one(3, offset=9), one(3, DUE + 99, due=DUE + 4)):
        assert held([*all_but(3), one(3), stranger], (Fault("", DUE, DUE),)).violations() == {
            "strangers": (1, [stranger])
        }


def test_what_was_cancelled_stays_away() -> None:
    cancel = Meddled(Fate.CANCELLED)
    assert held(all_but(5), n5=cancel).violations() == {}
    assert held(all_but(), n5=cancel).violations() == {"cancelled but delivered": (1, [one(5)])}
    uncertain = Meddled(Fate.UNCERTAIN)
    assert held(all_but(), n5=uncertain).violations() == {}
    assert held(all_but(5), n5=uncertain).violations() == {}
    assert held(all_but(5), n5=uncertain).wanted == 18


def test_what_was_moved_arrives_once_under_its_new_id() -> None:
    moved, maybe = Meddled(Fate.MOVED, DUE + 500, 77), Meddled(Fate.MAYBE_MOVED, DUE + 500)
    new = one(5, due=DUE + 500, offset=77)
    assert held([*all_but(5), new], n5=moved).violations() == {}
    assert held(all_but(5), n5=moved).violations() == {"lost": (1, [5])}
    assert "cancelled but delivered" in held([*all_but(), new], n5=moved).violations()
    assert "lost" in held(all_but(), n5=moved).violations()
    assert "strangers" in held([*all_but(5), new._replace(offset=78)], n5=moved).violations()
    for arrivals in (all_but(), [*all_but(5), new]):
        assert held(arrivals, n5=maybe).violations() == {}
    assert held(all_but(5), n5=maybe).violations() == {"lost": (1, [5])}
    assert "moved and not moved" in held([*all_but(), new], n5=maybe).violations()
    # Moved to the very due time it had: the offset tells.
    same = Meddled(Fate.MOVED, DUE + 5, 77)
    assert held([*all_but(5), one(5, offset=77)], n5=same).violations() == {}
    assert "lost" in held(all_but(), n5=same).violations()


def repeat(first_ms: int, later_ms: int, *faults: Fault) -> bool:
    """Whether such a repeat of message 3 is explained."""
    found = held([*all_but(3), one(3, first_ms), one(3, later_ms)], faults)
    assert found.repeated == 1
    return not found.violations()


def test_repeats_need_a_fault_between_them() -> None:
    kill = Fault("kill", KILL, KILL + 3000)
    assert not repeat(KILL - 10, KILL + 50)
    assert repeat(KILL - 10, KILL + 50, kill)
    assert (kill.repeats, kill.from_ms, kill.to_ms) == (1, -10, 0)
    assert not repeat(KILL - 20, KILL - 10, kill), "both before it"
    assert repeat(KILL - UNMARKED_MS, KILL + 50, kill)
    assert not repeat(KILL - UNMARKED_MS - 1, KILL + 50, kill), "long marked"
    assert repeat(KILL + RUN_ON_MS, KILL + RUN_ON_MS + 1, kill)
    assert not repeat(KILL + RUN_ON_MS + 1, KILL + RUN_ON_MS + 5000, kill), "long ago"


def test_a_resumed_process_may_send_what_it_had_in_hand() -> None:
    end = KILL + 9000
    assert repeat(end - 3000, end + 10, Fault("pause", KILL, end, held=True))
    assert not repeat(end - 3000, end + 10, Fault("cut", KILL, end))
    assert not repeat(end - 3000, end + RUN_ON_MS + 1, Fault("pause", KILL, end, held=True))


def test_a_change_of_master_explains_repeats_and_is_counted_apart() -> None:
    arrivals = [*all_but(3), one(3, KILL - 10), one(3, KILL + 50)]
    kill, turn = Fault("kill", KILL, KILL + 3000), Fault("turn", KILL + 20, KILL + 20)
    found = account(promised(), arrivals, [], [turn])
    assert (found.violations(), found.by_turns) == ({}, 1)
    found = account(promised(), arrivals, [kill], [turn])
    assert (found.violations(), found.by_turns) == ({}, 0)


def test_the_table_tells_the_silence() -> None:
    kill = Fault("SIGKILL a", KILL, KILL + 3000)
    cut = Fault("cut", KILL + 790, KILL + 3000)
    many = [one(0, KILL - 800), one(1, KILL - 10), one(2, KILL + 700), one(3, KILL + 800)]
    held([*many, one(4, KILL + 1100)], (kill, cut))
    assert (kill.silence_ms, cut.silence_ms) == (710, 300)
    head, line = table([kill])
    assert head.split()[:2] == ["fault", "at"]
    assert line.split() == ["SIGKILL", "a", "0.0", "s", "3.0", "s", "710", "ms", "0"]


def test_what_may_come_twice_after_the_death_of_a_node_alone() -> None:
    """The row before the mark's end may not; nor may one that came long before, or in one life."""
    marks = Marks(Mark(DUE + 3, 1003, 1003))
    covered, left = one(3, DUE + 4), one(4, DUE + 5)

    def repeats(first: Arrival, later: Arrival, died_ms: int, counted: int, exact: bool) -> bool:
        death = Fault("kill", died_ms, died_ms, death=Death(counted, marks, exact))
        found = held([first, later, *all_but(first.number)], (death,))
        assert found.repeated == 1
        return found.violations() == {}

    for exact in (True, False):
        assert repeats(left, left._replace(at_ms=DUE + 50), DUE + 9, 1, exact)
        assert not repeats(covered, covered._replace(at_ms=DUE + 50), DUE + 9, 1, exact)
        late = left.at_ms + UNMARKED_MS + 1
        assert not repeats(left, left._replace(at_ms=late + 50), late, 1, exact)
        # What a broker had in hand may arrive after the look at it.
        in_one_life = repeats(left, left._replace(at_ms=DUE + 50), DUE + 9, 0, exact)
        assert in_one_life is not exact


def test_where_it_arrives() -> None:
    where = replace(promised(), topics=("even", "odd"), buried=frozenset({4}), dead_topic="dead")
    right = [one(n)._replace(topic="dead" if n == 4 else where.topics[n % 2]) for n in range(19)]
    found = account(where, right, [])
    assert (found.violations(), found.buried) == ({}, 1)
    for number, topic in ((3, "even"), (4, "even"), (5, "dead")):
        wrong = [*right[:number], right[number]._replace(topic=topic), *right[number + 1 :]]
        assert set(account(where, wrong, []).violations()) == {"lost", "strangers"}


def test_without_a_receipt_it_has_one_id_all_the_same_and_refused_it_has_none() -> None:
    other = one(19, offset=6)
    twice = held([*all_but(), one(19, offset=5), other], (Fault("", DUE, DUE),))
    assert twice.violations() == {"strangers": (1, [other])}
    arrived = held([*all_but(), one(19, offset=5)], n19=Meddled(Fate.REFUSED))
    assert "cancelled but delivered" in arrived.violations()
    assert held(all_but(), n19=Meddled(Fate.REFUSED)).violations() == {}
