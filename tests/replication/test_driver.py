"""Whole peers in one process: founded, appended to, deposed, restarted, wiped, handed over."""

from __future__ import annotations

import time

import pytest

from slotwheel.wheel.errors import NotMaster
from support.replicas import Replicas, batch_of
from support.stopwatch import Stopwatch
from support.waiting import eventually, now_ms


def test_three_empty_peers_found_a_group_and_commit(group: Replicas) -> None:
    group.start()
    for n in range(20):
        group.send(b"%d" % n)
    group.agree()
    assert sorted(group.delivered(20)) == sorted(b"%d" % n for n in range(20))
    master = group.master()
    for standby in group.standbys():
        assert not standby.driver.leased()
        with pytest.raises(NotMaster, match=master.group.address):
            standby.wheel.append(batch_of(b"x"), now_ms())


def test_no_group_is_founded_without_all_peers(group: Replicas) -> None:
    for name in "ab":
        group.all[name].start()
    time.sleep(2.0)
    assert not any(one.is_master for one in group.running)
    group.all["c"].start()
    group.send(b"x")


def test_a_stopped_master_is_replaced_and_comes_back_as_a_standby(group: Replicas) -> None:
    group.start()
    group.send(b"before")
    first = group.master()
    first.stop()
    began = Stopwatch()
    second = group.master()
    assert began.seconds < 3.0
    assert second is not first
    group.send(b"after")
    group.agree()
    first.start()
    group.agree()
    assert group.master() is second
    assert group.delivered(2) == [b"before", b"after"]


def test_a_master_alone_commits_nothing_and_its_suffix_gives_way(group: Replicas) -> None:
    group.start()
    group.send(b"kept")
    group.agree()
    first = group.master()
    others = group.standbys()
    for one in others:
        one.stop()
    lost = first.wheel.append(batch_of(b"lost"), now_ms())
    eventually(lambda: not first.driver.leased())
    with pytest.raises((NotMaster, TimeoutError)):
        lost.result(3.0)
    first.stop()
    for one in others:
        one.start()
    group.send(b"new")
    first.start()
    group.agree()
    assert group.delivered(2) == [b"kept", b"new"]


def test_a_hand_over_loses_nothing_and_takes_no_election(group: Replicas) -> None:
    group.start()
    for n in range(5):
        group.send(b"%d" % n)
        group.agree()
        master = group.master()
        began = Stopwatch()
        assert master.driver.step_down(5.0)
        assert not master.driver.leased()
        after = group.master()
        assert after is not master
        assert began.seconds < 0.6
    group.send(b"last")
    group.agree()
    assert group.delivered(6) == [b"%d" % n for n in range(5)] + [b"last"]


def test_nobody_to_hand_over_to(group: Replicas) -> None:
    group.start()
    group.send(b"x")
    master = group.master()
    for one in group.standbys():
        one.stop()
    began = Stopwatch()
    master.driver.step_down(1.0)
    assert began.seconds < 1.5


def test_status_tells_who_is_who(group: Replicas) -> None:
    group.start()
    group.send(b"x")
    group.agree()
    master = group.master()
    told = master.driver.status()
    eventually(
        lambda: (
            [
                (peer["state"], peer["lag_entries"], peer["admitted"], peer["connected"])
                for peer in master.driver.status()["peers"]
            ]
            == [("replicate", 0, True, True)] * 2
        )
    )
    assert told["me"] == told["master"] == master.name
    assert told["role"] == "master"
    assert told["master_address"] == master.group.address
    assert 0 < told["lease_ms"] <= 300
    for standby in group.standbys():
        seen = standby.driver.status()
        assert (seen["role"], seen["master"]) == ("standby", master.name)
        assert seen["lease_ms"] == 0


def test_all_at_once_and_again(group: Replicas) -> None:
    sent = []
    group.start()
    for round_ in range(3):
        for n in range(5):
            sent.append(b"%d.%d" % (round_, n))
            group.send(sent[-1])
        group.stop()
        group.start()
    group.send(b"end")
    group.agree()
    assert group.delivered(len(sent) + 1) == [*sent, b"end"]
