"""Transcripts: founding, elections, promises, the lease, handing over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotwheel.replication.rules.messages import Ack, HardState, Heartbeat, RequestVote
from slotwheel.replication.rules.states import Role
from slotwheel.replication.rules.timing import Timing
from slotwheel.wheel.errors import InvalidConfiguration
from support.transcript import STORES, Group

T = Timing.of_promise(0.8)


def test_founding() -> None:
    group = Group(founded=False)
    assert {core.role for core in group.cores.values()} == {Role.LEARNER}
    assert group.time_out("b") == [
        "b>a ask pre founding 1 log 0@0",
        "b>c ask pre founding 1 log 0@0",
    ]
    assert group.deliver() == ["a>b vote pre founding 1 yes", "c>b vote pre founding 1 yes"]
    assert group.deliver() == ["b>a ask founding 1 log 0@0", "b>c ask founding 1 log 0@0"]
    assert group.cores["b"].hard == HardState(1, "b", True)
    assert group.deliver() == ["a>b vote founding 1 yes", "c>b vote founding 1 yes"]
    assert group.cores["a"].hard == HardState(1, "b", True)
    group.deliver()
    assert group.cores["b"].role is Role.MASTER
    group.settle()
    group.beat("b")
    for core in group.cores.values():
        assert (core.commit, dict(core.admitted)) == (1, {name: STORES[name] for name in "abc"})


def test_founding_needs_every_peer() -> None:
    group = Group(founded=False)
    group.time_out("b")
    group.deliver(lose={"b>c"})
    group.settle()
    assert group.cores["b"].role is Role.PRE_CANDIDATE
    assert group.cores["b"].hard == HardState()


def test_founding_needs_every_peer_to_be_empty() -> None:
    group = Group()
    group.start("b", [], hard=HardState())  # wiped
    group.start("c", [], hard=HardState())
    assert group.time_out("b") == [
        "b>a ask pre founding 1 log 0@0",
        "b>c ask pre founding 1 log 0@0",
    ]
    assert group.deliver() == [
        "a>b vote pre founding 1 no: not empty",
        "c>b vote pre founding 1 yes",
    ]


def test_a_store_that_has_heard_of_a_group_does_not_found_another() -> None:
    group = Group(founded=False)
    group.start("a", [], hard=HardState(7, "", False))
    group.time_out("b")
    assert "a>b vote pre founding 7 no: heard of a group" in group.deliver()


def test_a_founding_that_failed_does_not_bar_a_store_that_heard_of_it() -> None:
    """b was to found the group but could not write; c is wiped and hears of b's epoch."""
    group = Group(founded=False)
    group.start("a", [], hard=HardState(1, "b", True))
    group.start("b", [], hard=HardState(1, "b", True))
    c = group.cores["c"]
    c.step(Heartbeat("b", "c", STORES["b"], 1, 0, 1.0), group.now)
    assert group.drive(c) == [], "nothing of that founding is committed"
    assert c.hard == HardState()
    group.pass_time(T.promise_s)
    group.time_out("a")
    group.settle()
    group.beat("a")
    assert {core.commit for core in group.cores.values()} == {1}


def test_a_founding_voter_votes_though_its_log_is_empty() -> None:
    """The first entry reached c alone before the founder's disk lost it."""
    group = Group(founded=False)
    group.start("a", [], hard=HardState(1, "b", True))
    group.start("c", [1], hard=HardState(1, "b", True))
    group.pass_time(T.promise_s)
    group.time_out("c")
    assert "a>c vote pre 2 yes" in group.deliver()
    group.settle()
    assert group.cores["c"].role is Role.MASTER
    assert group.cores["a"].last_index == 2


def test_election() -> None:
    group = Group()
    assert group.time_out("a") == ["a>b ask pre 2 log 1@1", "a>c ask pre 2 log 1@1"]
    assert group.cores["a"].hard == HardState(1, "", True), "a pre-vote promises nothing"
    assert group.deliver() == ["b>a vote pre 2 yes", "c>a vote pre 2 yes"]
    assert group.deliver() == ["a>b ask 2 log 1@1", "a>c ask 2 log 1@1"]
    assert group.deliver() == ["b>a vote 2 yes", "c>a vote 2 yes"]
    assert group.deliver() == [
        "a>b heartbeat 2 commit 0",
        "a>c heartbeat 2 commit 0",
        "a>b append 2 behind 1@1 [] commit 0",
        "a>c append 2 behind 1@1 [] commit 0",
    ]
    assert group.cores["a"].master == "a"


def test_one_vote_an_epoch() -> None:
    group = Group()
    group.time_out("a")
    group.deliver()
    group.deliver()  # a is candidate, its questions are under way
    group.pass_time(1.0)
    head = "c", "b", STORES["c"], 2
    group.deliver(only="a>b")
    group.cores["b"].step(RequestVote(*head, 1, 1), group.now)
    assert group.drive(group.cores["b"]) == ["b>c vote 2 no: vote is spent"]
    group.cores["b"].step(RequestVote("a", "b", STORES["a"], 2, 1, 1), group.now)
    assert group.drive(group.cores["b"]) == ["b>a vote 2 yes"], "the same vote again"


def test_no_vote_for_a_log_that_is_behind() -> None:
    group = Group(logs={"a": [1, 1, 1], "b": [1, 1, 2], "c": [1, 1, 1, 1]})
    group.start("a", [1, 1, 1], hard=HardState(2, "", True))
    group.time_out("a")
    assert group.deliver() == ["b>a vote pre 2 no: log behind", "c>a vote pre 1 no: log behind"]
    group.under_way.clear()
    group.start("c", [1, 1, 1, 1], hard=HardState(2, "", True))
    group.pass_time(T.promise_s)
    group.time_out("c")
    assert group.deliver(only="c>a") == ["a>c vote pre 3 yes"]


def test_a_peer_that_was_cut_off_unseats_nobody() -> None:
    group = Group()
    group.elect("a")
    for _ in range(20):
        group.beat("a", lose={"a>c", "c>a"})
        group.tick("c")
        group.settle(lose={"a>c", "c>a"})
    assert group.cores["c"].role is Role.PRE_CANDIDATE
    assert group.cores["c"].epoch == 2, "it counts no epochs on by asking"
    group.time_out("c")
    assert "b>c vote pre 2 no: has a master" in group.deliver()
    group.settle()
    group.beat("a")
    assert (group.cores["a"].role, group.cores["c"].master) == (Role.MASTER, "a")


def test_a_real_vote_is_refused_as_well_while_there_is_a_master() -> None:
    group = Group()
    group.elect("a")
    b = group.cores["b"]
    b.step(RequestVote("c", "b", STORES["c"], 9, 2, 2), group.now)
    assert group.drive(b) == ["b>c vote 2 no: has a master"]
    assert b.hard.epoch == 2, "nor is the epoch taken over"
    group.pass_time(T.promise_s + 0.001)
    b.step(RequestVote("c", "b", STORES["c"], 9, 2, 2), group.now)
    assert group.drive(b) == ["b>c vote 9 yes"]


def test_no_vote_so_soon_after_a_start() -> None:
    group = Group()
    group.elect("a")
    b = group.start("b", [1, 2], hard=HardState(2, "a", True))
    b.step(RequestVote("c", "b", STORES["c"], 3, 2, 2), group.now)
    assert group.drive(b) == ["b>c vote 2 no: has a master"]
    group.pass_time(T.promise_s)
    b.step(RequestVote("c", "b", STORES["c"], 3, 2, 2), group.now)
    assert group.drive(b) == ["b>c vote 3 yes"]


def test_the_lease_counts_from_the_sending_of_what_a_majority_answered() -> None:
    group = Group()
    a = group.elect("a")
    group.pass_time(T.heartbeat_s)
    sent = group.now
    group.tick("a")
    group.pass_time(0.3)  # the network is slow
    group.deliver()
    group.deliver(lose={"c>a"})
    assert a.lease_until == pytest.approx(sent + T.lease_s)
    assert a.leased(sent + T.lease_s - 0.001)
    assert not a.leased(sent + T.lease_s)


def test_no_lease_before_an_entry_of_the_epoch_is_committed() -> None:
    group = Group()
    group.time_out("a")
    group.durable = False
    for _ in range(8):
        group.deliver()
    assert group.cores["a"].role is Role.MASTER
    assert not group.cores["a"].leased(group.now)


def test_a_master_without_a_majority_steps_down() -> None:
    group = Group()
    a = group.elect("a")
    until = a.lease_until
    while a.role is Role.MASTER:
        group.beat("a", lose={"a>b", "a>c"})
        assert group.now < until + T.promise_s
    assert group.now > until
    assert a.hard == HardState(2, "a", True)
    assert "a deposed" in group.events


def test_a_master_of_an_older_epoch_steps_down_at_an_answer() -> None:
    group = Group()
    a = group.elect("a")
    group.cores["b"].step(RequestVote("c", "b", STORES["c"], 3, 2, 2), group.now + T.promise_s)
    group.drive(group.cores["b"])
    group.under_way.clear()
    group.pass_time(T.heartbeat_s)
    group.tick("a")
    assert "b>a ack 3 durable 0 verified 0" in group.deliver(only="a>b")
    group.deliver(only="b>a")
    assert (a.role, a.epoch, a.leased(group.now)) == (Role.STANDBY, 3, False)


def test_an_answer_to_an_older_epoch_gives_no_lease() -> None:
    group = Group()
    group.elect("a")
    b = group.cores["b"]
    b.step(RequestVote("c", "b", STORES["c"], 3, 2, 2), group.now + T.promise_s)
    group.drive(b)
    b.step(Heartbeat("a", "b", STORES["a"], 2, 0, group.now), group.now)
    group.under_way.clear()
    ready = b.ready()
    assert ready is not None
    [ack] = ready.send
    assert isinstance(ack, Ack)
    assert (ack.epoch, ack.sent_at) == (3, -1.0)


def test_hand_over() -> None:
    group = Group()
    a = group.elect("a")
    a.hand_over(group.now, "c")
    assert (a.leased(group.now), a.may_propose) == (False, False)
    group.pass_time(0.01)
    assert group.tick("a") == ["a>c take over 2"]
    assert group.roles() == "standby standby standby"
    assert a.lease_until == float("-inf")
    assert group.deliver() == ["c>a ask transfer 3 log 2@2", "c>b ask transfer 3 log 2@2"]
    assert group.deliver() == ["a>c vote 3 yes", "b>c vote 3 yes"]
    group.settle()
    assert group.cores["c"].leased(group.now)
    assert {core.master for core in group.cores.values()} == {"c"}


def test_hand_over_waits_for_the_other_and_resumes_when_that_takes_too_long() -> None:
    group = Group()
    a = group.elect("a")
    group.append("a", 3)
    group.under_way.clear()
    a.hand_over(group.now, "c")
    group.pass_time(0.01)
    assert "a>c take over 2" not in group.tick("a")
    assert (a.leased(group.now), a.may_propose) == (False, False)
    group.pass_time(T.hand_over_s)
    group.tick("a")
    assert (a.leased(group.now), a.may_propose) == (True, True)
    assert group.events[-2:] == ["a hand-over", "a hand-over-failed"]


def test_hand_over_to_nobody() -> None:
    group = Group()
    a = group.elect("a")
    group.pass_time(0.5)
    a.hand_over(group.now)
    group.drive(a)
    assert group.events[-1] == "a hand-over-impossible"
    assert a.may_propose


def test_a_late_take_over_is_ignored() -> None:
    group = Group()
    a = group.elect("a")
    a.hand_over(group.now, "c")
    group.pass_time(0.01)
    group.tick("a")
    [message] = group.under_way
    group.under_way.clear()
    group.pass_time(T.promise_s)
    group.elect("b")
    group.cores["c"].step(message, group.now)
    assert group.drive(group.cores["c"]) == []


def test_timing_is_checked() -> None:
    with pytest.raises(InvalidConfiguration):
        replace(T, lease_s=0.8)
    with pytest.raises(InvalidConfiguration):
        replace(T, heartbeat_s=0.5)


def test_a_peer_alone_elects_itself() -> None:
    group = Group(names="a", founded=False)
    assert group.time_out("a") == []
    a = group.cores["a"]
    assert (a.role, a.commit) == (Role.MASTER, 1)
    assert a.leased(group.now + 1000)
    group.append("a", 3)
    assert a.commit == 4
    group.beat("a")
    assert a.may_propose
