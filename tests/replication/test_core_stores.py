"""Transcripts: stores that are wiped, admitted, put back; messages that are not for this peer."""

from __future__ import annotations

from typing import Any

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import (
    Ack,
    Append,
    EntryMeta,
    HardState,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)
from slotwheel.replication.rules.states import TRANSITIONS, Role, Why
from support.transcript import STORES, Group

NEW = b"C" * 16


def wiped() -> tuple[Group, Core, Core]:
    """a is master, c has got an empty disk."""
    group = Group()
    a = group.elect("a")
    group.append("a", 3)
    group.settle()
    return group, a, group.start("c", [], hard=HardState(), store=NEW)


def test_a_wiped_store_copies_and_is_admitted() -> None:
    group, a, c = wiped()
    assert c.role is Role.LEARNER
    group.beat("a")
    assert "a store-changed" in group.events
    assert c.last_index == 5
    assert not c.hard.voter
    assert a.admitted["c"] == STORES["c"]
    group.beat("a")
    assert "a admission" in group.events
    assert a.admitted["c"] == NEW
    group.beat("a")
    assert (c.role, c.hard.voter, c.commit) == (Role.STANDBY, True, 6)


def test_a_wiped_store_does_not_count_before_its_admission_is_committed() -> None:
    group, a, c = wiped()
    lost = {"a>b", "b>a"}
    group.beat("a", lose=lost)
    commit = a.commit
    group.append("a")
    group.settle(lose=lost)
    assert a.progress["c"].match == a.last_index
    assert a.progress["c"].counted == 0
    assert a.commit == commit
    group.beat("a", lose=lost)  # the admission is proposed, and c has it; b does not
    assert a.last_index == a.progress["c"].match
    assert a.commit == commit
    assert not c.hard.voter


def test_a_wiped_store_neither_votes_nor_stands() -> None:
    group, _, c = wiped()
    group.beat("a")
    group.now += 5.0
    group.tick("c")
    assert c.role is Role.LEARNER
    c.step(RequestVote("b", "c", STORES["b"], 9, 99, 9), group.now)
    assert group.drive(c) == ["c>b vote 2 no: store not admitted"]


def test_votes_of_another_store_do_not_count() -> None:
    group = Group()
    group.start("c", [1], hard=HardState(1, "", True), store=NEW)
    group.now += 2.0
    group.time_out("a")
    assert "c>a vote pre 1 no: store not admitted" in group.deliver(only="a>c")
    group.deliver(only="c>a")
    assert group.cores["a"].role is Role.PRE_CANDIDATE


def test_a_store_that_was_replaced_may_not_vote_when_it_is_put_back() -> None:
    group, a, _ = wiped()
    for _ in range(4):
        group.beat("a")
    assert a.admitted["c"] == NEW
    old = group.start("c", [1, 2, 2], hard=HardState(2, "a", True))
    assert old.hard.voter, "it does not know yet"
    group.beat("a")
    assert "c may-not-vote" in group.events
    for _ in range(3):
        group.beat("a")
    assert a.admitted["c"] == STORES["c"], "a majority has admitted it again"
    assert old.hard.voter


def test_one_admission_at_a_time() -> None:
    group = Group()
    a = group.elect("a")
    group.start("b", [], hard=HardState(), store=b"B" * 16)
    group.start("c", [], hard=HardState(), store=NEW)
    for _ in range(6):
        group.beat("a")
    assert group.events.count("a admission") == 1
    assert a.log.latest["b"] == b"B" * 16
    assert a.log.latest["c"] == STORES["c"]
    assert a.commit == 2, "with two of three lost nothing can be committed"


def test_messages_of_strangers_are_faults() -> None:
    group = Group()
    a = group.cores["a"]
    for sender, to in (("x", "a"), ("b", "c"), ("a", "a")):
        a.step(Heartbeat(sender, to, b"x" * 16, 9, 0, 1.0), group.now)
        assert group.drive(a) == []
        assert group.events[-1] == "a fault"
    assert a.epoch == 1


def test_an_epoch_far_beyond_is_a_fault_in_every_kind_of_message() -> None:
    """Or one forged message would use up all epochs, and there would be no master ever again."""
    contents: dict[type[PeerMessage], tuple[Any, ...]] = {
        RequestVote: (9, 9),
        Vote: (False,),
        Append: (0, 0, (), 0, 0.0),
        Heartbeat: (0, 0.0),
        Ack: (0, 0),
        SnapshotOffer: (0.0,),
        TakeOver: (),
    }
    kinds = {kind.__name__ for kind in PeerMessage.__subclasses__()}
    assert {kind.__name__ for kind in contents} == kinds
    for kind, content in contents.items():
        group = Group()
        a, c = group.elect("a"), group.cores["c"]
        for core in (a, c):
            core.step(kind("b", core.me, STORES["b"], 1 << 61, *content), group.now)
            assert group.drive(core) == []
            assert group.events[-1] == f"{core.me} fault", kind
            assert core.epoch == 2
        assert a.leased(group.now)
        assert group.elect("c").epoch == 3


def test_two_masters_in_an_epoch_are_a_fault() -> None:
    group = Group()
    group.elect("a")
    b = group.cores["b"]
    b.step(Heartbeat("c", "b", STORES["c"], 2, 0, 1.0), group.now)
    assert group.drive(b) == []
    assert (group.events[-1], b.master) == ("b fault", "a")


def test_every_state_and_reason_is_used() -> None:
    assert {role for role, _ in TRANSITIONS} == set(Role)
    assert set(TRANSITIONS.values()) == set(Role)
    assert {why for _, why in TRANSITIONS} == set(Why)


def test_a_store_left_out_and_taken_in_again_by_one_message_is_no_voter_yet() -> None:
    group = Group()
    a = group.elect("a")
    b = group.cores["b"]
    without = {**STORES, "b": b"B" * 16}
    metas = (EntryMeta(2, without), EntryMeta(2, dict(a.admitted)))
    b.step(Append("a", "b", STORES["a"], 2, 2, 2, metas, 2, group.now), group.now)
    assert group.drive(b) == ["b>a ack 2 durable 4 verified 4"]
    assert not b.hard.voter
    b.step(Heartbeat("a", "b", STORES["a"], 2, 4, group.now), group.now)
    assert b.hard.voter, "now it is committed"


def test_an_admission_counts_though_the_next_configuration_is_not_committed() -> None:
    """A new master repeats the configuration, and needs the store's acknowledgement for that."""
    group = Group()
    a = group.elect("a")
    c = group.start("c", [], hard=HardState(), store=NEW)
    admitted = {**a.admitted, "c": NEW}
    old = EntryMeta(1, dict(a.admitted))
    metas = (old, EntryMeta(2, dict(a.admitted)), EntryMeta(2, admitted), EntryMeta(2, admitted))
    c.step(Append("a", "c", STORES["a"], 2, 0, 0, metas, 2, group.now), group.now)
    group.drive(c)
    assert (c.hard.voter, c.commit) == (False, 2)
    c.step(Heartbeat("a", "c", STORES["a"], 2, 3, group.now), group.now)
    assert (c.hard.voter, c.commit) == (True, 3)


def test_a_late_word_of_a_replaced_store_is_ignored() -> None:
    group, a, _ = wiped()
    for _ in range(3):
        group.beat("a")
    assert a.admitted["c"] == NEW
    before = group.events.count("a store-changed")
    late = Ack("c", "a", STORES["c"], 2, 5, 5, group.now - 0.5, voter=True)
    a.step(late, group.now)
    group.drive(a)
    assert group.events.count("a store-changed") == before
    assert a.progress["c"].store == NEW
