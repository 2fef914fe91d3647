"""Transcripts: shipping, conflicts, commit, full disks, snapshots."""

from __future__ import annotations

import pytest

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import Ack, Append, EntryMeta, Heartbeat
from slotwheel.replication.rules.progress import MESSAGE_ENTRIES, WINDOW_MESSAGES, Shipping
from slotwheel.replication.rules.states import Role
from slotwheel.replication.rules.timing import Timing
from support.transcript import STORES, Group

T = Timing.of_promise(0.8)


def test_entries_go_out_and_are_committed() -> None:
    group = Group()
    a = group.elect("a")
    assert group.append("a", 2) == [
        "a>b append 2 behind 2@2 [3@2,4@2] commit 2",
        "a>c append 2 behind 2@2 [3@2,4@2] commit 2",
    ]
    assert group.deliver() == ["b>a ack 2 durable 4 verified 4", "c>a ack 2 durable 4 verified 4"]
    group.deliver(only="b>a")
    assert a.commit == 4
    assert group.cores["b"].commit == 2
    group.beat("a")
    assert group.cores["b"].commit == 4


def test_what_is_only_written_is_not_acknowledged() -> None:
    group = Group()
    a = group.elect("a")
    group.durable = False
    group.append("a")
    assert group.deliver() == []
    group.pass_time(T.heartbeat_s)
    group.tick("a")
    assert "b>a ack 2 durable 2 verified 3" in group.deliver()
    group.cores["b"].persisted(3, group.now)
    assert group.drive(group.cores["b"]) == ["b>a ack 2 durable 3 verified 3"]
    group.deliver()
    assert a.commit == 2, "b alone is no majority"
    a.persisted(3, group.now)
    assert a.commit == 3


def test_a_conflict_gives_way() -> None:
    group = Group(logs={"a": [1, 2, 2, 2], "b": [1, 2, 3], "c": [1, 2]})
    group.time_out("b")
    for _ in range(4):
        group.deliver()
    assert group.deliver() == [
        "a>b ack 4 durable 0 verified 0",
        "c>b ack 4 durable 0 verified 0",
        "a>b ack 4 durable 0 verified 0 rejected, at most 2",
        "c>b ack 4 durable 0 verified 0 rejected, at most 2",
    ]
    assert group.deliver() == [
        "b>a append 4 behind 2@2 [] commit 0",
        "b>c append 4 behind 2@2 [] commit 0",
    ]
    group.settle()
    a = group.cores["a"]
    assert [a.log.epochs.epoch_at(index) for index in range(1, 5)] == [1, 2, 3, 4]
    assert "a truncated" in group.events
    group.beat("b")
    assert {core.commit for core in group.cores.values()} == {4}


def test_entries_of_older_epochs_commit_only_with_one_of_the_own() -> None:
    group = Group(logs={"a": [1, 2, 2], "b": [1], "c": [1]})
    a = group.cores["a"]
    group.time_out("a")
    group.deliver()
    group.deliver()
    group.deliver()
    group.durable = False
    group.deliver()  # a is master; its entry 4 is written, not durable, and nothing of it counts
    group.durable = True
    group.settle()
    assert a.progress["b"].match == 4
    assert a.commit == 4, "both others have an entry of the epoch"

    group = Group(logs={"a": [1, 2, 2], "b": [1], "c": [1]})
    a = group.cores["a"]
    group.time_out("a")
    for _ in range(4):
        group.deliver()
    for name in "bc":  # they have all but the epoch's own entry
        ack = Ack(name, "a", STORES[name], a.epoch, 3, 3, group.now, voter=True)
        a.step(ack, group.now)
        group.drive(a)
    assert a.progress["b"].match == 3
    assert a.commit == 0


def test_a_repeated_or_overtaken_append_cuts_nothing() -> None:
    group = Group()
    group.elect("a")
    group.append("a")
    first = [message for message in group.under_way if message.to == "b"]
    group.append("a", 2)
    group.settle()
    b = group.cores["b"]
    b.step(first[0], group.now)
    assert group.drive(b) == ["b>a ack 2 durable 5 verified 5"]
    assert b.last_index == 5


def test_a_gap_is_refused_and_probed() -> None:
    group = Group()
    a = group.elect("a")
    group.append("a")
    group.under_way.clear()  # lost
    group.append("a")
    assert "b>a ack 2 durable 2 verified 2 rejected, at most 2" in group.deliver(only="a>b")
    assert "a>b append 2 behind 2@2 [] commit 2" in group.deliver(only="b>a")
    group.settle()
    assert a.progress["b"].match == 4


def test_a_pipeline_that_was_lost_whole_is_found_by_heartbeats() -> None:
    group = Group()
    a = group.elect("a")
    group.append("a")
    group.under_way.clear()
    for _ in range(4):
        group.beat("a")
    assert "a pipeline-lost" in group.events
    assert a.progress["b"].match == 3


def test_no_more_is_under_way_than_the_window_holds() -> None:
    group = Group()
    group.elect("a")
    said = group.append("a", (WINDOW_MESSAGES + 5) * MESSAGE_ENTRIES)
    assert len(said) == 2 * WINDOW_MESSAGES
    group.settle()
    assert group.cores["a"].commit == 2 + (WINDOW_MESSAGES + 5) * MESSAGE_ENTRIES


def test_what_could_not_be_shipped_is_tried_again_later() -> None:
    group = Group()
    a = group.elect("a")
    group.append("a")
    group.under_way.clear()
    a.unsent("b", 3, group.now)
    assert group.drive(a) == []
    group.pass_time(T.heartbeat_s)
    assert "a>b append 2 behind 2@2 [] commit 2" in group.tick("a")


def test_nothing_committed_is_cut() -> None:
    group = Group()
    group.elect("a")
    b = group.cores["b"]
    assert b.commit == 2
    evil = Append("a", "b", STORES["a"], 3, 1, 1, (EntryMeta(3),), 0, group.now)
    b.step(evil, group.now)
    assert group.drive(b) == []
    assert group.events[-1] == "b fault"
    assert b.last_index == 2
    assert b.log.epochs.epoch_at(2) == 2


@pytest.mark.parametrize("epochs", [(2, 1), (9,), (1,)])
def test_epochs_that_fall_are_a_fault(epochs: tuple[int, ...]) -> None:
    group = Group()
    group.elect("a")
    b = group.cores["b"]
    metas = tuple(EntryMeta(epoch) for epoch in epochs)
    b.step(Append("a", "b", STORES["a"], 2, 2, 2, metas, 0, group.now), group.now)
    assert group.drive(b) == []
    assert group.events[-1] == "b fault"


def test_a_standby_commits_only_what_is_verified_and_durable() -> None:
    group = Group()
    group.elect("a")
    b = group.start("b", [1, 2, 2, 2], hard=group.cores["b"].hard, commit=2)
    b.step(Heartbeat("a", "b", STORES["a"], 2, 4, group.now), group.now)
    assert b.commit == 2, "3 and 4 are not known to be this master's"


def test_a_full_disk_takes_back_what_was_received() -> None:
    group = Group()
    a = group.elect("a")
    group.durable = False
    group.append("a", 3)
    a.persisted(5, group.now)
    group.deliver(only="a>b")
    b = group.cores["b"]
    assert b.last_index == 5
    b.write_failed(2, group.now)
    ready = b.ready()
    assert ready is not None
    assert ready.truncate_after == 2
    assert b.last_index == 2
    group.durable = True
    for _ in range(5):
        group.beat("a")
    assert (b.last_index, b.commit, a.commit) == (5, 5, 5)


def test_a_candidate_that_cannot_write_what_it_claimed_gives_up() -> None:
    group = Group()
    group.elect("a")
    group.durable = False
    group.append("a")
    group.deliver(only="a>b")
    group.time_out("b")
    b = group.cores["b"]
    assert b.role is Role.PRE_CANDIDATE
    b.write_failed(2, group.now)
    assert group.roles() == "master standby standby"


def test_own_entries_of_an_epoch_that_is_over_are_ignored() -> None:
    group = Group()
    a = group.elect("a")
    a.step(Heartbeat("b", "a", STORES["b"], 3, 0, 1.0), group.now)
    ready = a.ready()
    assert ready is not None
    assert ready.deposed
    assert ready.truncate_after == 2
    a.appended(3, EntryMeta(2), group.now)  # written before the driver came to cut it off
    assert a.last_index == 2


def test_a_master_that_cannot_write_its_first_entry_steps_down() -> None:
    group = Group()
    group.time_out("a")
    a = group.cores["a"]
    drive = group.drive

    def no_room(core: Core) -> list[str]:
        if core is not a:
            return drive(core)
        ready = core.ready()
        group.under_way += [] if ready is None else ready.send
        return []

    group.drive = no_room  # type: ignore[method-assign]
    group.settle()
    assert a.role is Role.MASTER
    for _ in range(int(2 * T.promise_s / T.heartbeat_s) + 2):
        group.beat("a")
    assert group.roles() == "standby standby standby"


def test_a_gap_before_the_journal_is_filled_by_a_snapshot() -> None:
    group = Group()
    a = group.elect("a")
    c = group.cores["c"]
    lost = {"a>c", "c>a"}
    group.append("a", 6)
    group.settle(lose=lost)
    a.log_begins(7)
    for _ in range(4):
        group.beat("a", lose=lost)
    group.beat("a")
    assert group.wants_snapshot[-1] == ("c", "a")
    assert a.progress["c"].state is Shipping.SNAPSHOT
    assert c.wants_snapshot(8, 2)
    assert not c.wants_snapshot(8, 1 << 40), "an epoch of which nobody has told"
    c.snapshot_installed(8, 2, dict(a.admitted), group.now)
    assert group.drive(c) == ["c>a ack 2 durable 8 verified 8"]
    group.append("a")
    group.settle()
    group.beat("a")
    assert (c.last_index, c.commit, a.progress["c"].state) == (9, 9, Shipping.REPLICATE)


def test_a_snapshot_of_what_the_log_holds_by_now_is_not_wanted() -> None:
    group = Group()
    a = group.elect("a")
    b = group.cores["b"]
    group.append("a", 4)
    group.settle()
    assert b.commit == 2
    assert b.log.durable == 6, "and acknowledged: to go back to 4 would lose it"
    assert not b.wants_snapshot(4, 2)
    assert not b.wants_snapshot(2, 2)
    assert b.wants_snapshot(7, 2)
    assert not a.wants_snapshot(7, 2)
    with pytest.raises(AssertionError):
        b.snapshot_installed(4, 2, dict(a.admitted), group.now)


def test_no_snapshot_for_a_peer_that_has_all_and_was_only_started_anew() -> None:
    group = Group()
    a = group.elect("a")
    lost = {"b>a", "b>c"}
    group.append("a", 4)
    group.settle(lose=lost)  # b has entries that the master does not know of
    b = group.cores["b"]
    group.start("b", [1, 2, 2, 2, 2, 2], hard=b.hard, commit=2)
    a.log_begins(6)
    for _ in range(5):
        group.beat("a")
    assert a.progress["b"].state is Shipping.REPLICATE
    assert group.cores["b"].commit == 6
