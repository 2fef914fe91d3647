"""What a group has agreed on besides its messages is kept through all that messages outlive."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest

from slotwheel.wheel.errors import NotMaster, Overloaded
from slotwheel.wheel.wheel import Wheel
from support.crashfs import MODES, CrashFiles, Mode
from support.handpeer import NOW, STORES, Peer
from support.memstate import MemoryState
from support.steps import PowerCut, Steps
from support.wheels import TIGHT, Node, batch

ONE = {"version": 1, "levels": ["1s"]}
TWO = {"version": 2, "levels": ["2s"], "text": "ä" * 1000}


# -- alone


@pytest.fixture
def alone(node: Node) -> Node:
    """A wheel whose group has its configuration."""
    node.sync()
    return node


def changed(node: Node, known: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    future = node.wheel.change_settings(known, settings)
    assert not future.done()
    node.sync()
    future.result(0)
    assert node.wheel.settings == settings


def test_at_first_there_are_none(alone: Node) -> None:
    assert alone.wheel.settings == {}


def test_settings_survive_restarts_and_checkpoints(alone: Node) -> None:
    changed(alone, {}, ONE)
    alone.send([(NOW + 5000, "t", b"x")], NOW)
    alone.reopen(NOW)
    assert alone.wheel.settings == ONE
    alone.wheel.spill(NOW, everything=True)
    assert alone.wheel.status().checkpoint_index > 0
    alone.reopen(NOW)
    assert alone.wheel.settings == ONE
    changed(alone, ONE, TWO)
    alone.reopen(NOW)
    alone.send([(NOW + 5000, "t", b"y")], NOW)
    alone.wheel.spill(NOW, everything=True)
    alone.close()
    alone.open(NOW)
    assert alone.wheel.settings == TWO
    assert sorted(alone.delivered(NOW + 6000)) == [b"x", b"y"]


def test_nothing_counts_before_it_is_committed(alone: Node) -> None:
    alone.wheel.change_settings({}, ONE)
    assert alone.wheel.settings == {}
    alone.crash()
    alone.open(NOW)
    assert alone.wheel.settings == {}


def test_a_change_of_what_is_not_the_newest_is_refused(alone: Node) -> None:
    changed(alone, {}, ONE)
    for known in ({}, {**ONE, "levels": []}):
        with pytest.raises(Overloaded, match="changing"):
            alone.wheel.change_settings(known, TWO)
    changed(alone, dict(ONE), TWO)


def test_a_change_while_another_is_on_its_way_is_refused(alone: Node) -> None:
    first = alone.wheel.change_settings({}, ONE)
    with pytest.raises(Overloaded, match="changing"):
        alone.wheel.change_settings({}, TWO)
    alone.sync()
    assert first.done()
    changed(alone, ONE, TWO)


def test_what_the_caller_does_with_its_value_later_changes_nothing(alone: Node) -> None:
    mine = dict(ONE)
    changed(alone, {}, mine)
    mine["version"] = 7
    assert alone.wheel.settings == ONE


def test_the_key_and_the_slots_stay_what_they_were(alone: Node) -> None:
    alone.send([(NOW + 5000, "t", b"x")], NOW)
    before = dict(alone.wheel._configuration)
    changed(alone, {}, ONE)
    assert alone.wheel._configuration == {**before, "settings": ONE}


def test_a_change_that_finds_no_room_fails_and_comes_to_nothing(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(alone.wheel._log.journal, "append", full)
        future = alone.wheel.change_settings({}, ONE)
        alone.wheel.write_pending(0)
        with pytest.raises(Overloaded):
            future.result(0)
    assert alone.wheel.settings == {}
    receipt = alone.send([(NOW + 5000, "t", b"x")], NOW)
    (message_id,) = alone.ids_of(receipt)
    alone.reopen(NOW)
    assert alone.wheel.settings == {}
    assert alone.wheel.mint.genuine(message_id), "the journal has the key of this id"
    changed(alone, {}, ONE)


# -- with the power cut before every step


def life(wheel: Wheel, told: list[dict[str, Any]], queued: list[dict[str, Any]]) -> None:
    """Three changes, with rows, a checkpoint and a mark between them. ``told``: those whose change
    was acknowledged; ``queued``: those that were asked for."""

    def change(version: int) -> None:
        settings = {"version": version, "pad": "x" * 300}
        queued.append(settings)
        future: Future[Any] = wheel.change_settings(wheel.settings, settings)
        while wheel.write_pending(0):
            pass
        future.result(0)
        told.append(settings)

    while wheel.write_pending(0):
        pass
    wheel.append(batch([(NOW + 1000, "t", b"a")]), NOW)
    change(1)
    wheel.append(batch([(NOW + 2000, "t", b"b")] * 5), NOW)
    wheel.write_pending(0)
    wheel.spill(NOW, everything=True)
    change(2)
    wheel.append(batch([(NOW + 3000, "t", b"c")] * 30), NOW)
    change(3)
    wheel.spill(NOW, everything=True)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_acknowledged_survives_a_power_cut_at_any_step(mode: Mode) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        steps = Steps(stop_at)
        files, state = CrashFiles(steps=steps), MemoryState(step=steps.hit)
        told: list[dict[str, Any]] = [{}]
        queued: list[dict[str, Any]] = [{}]
        try:
            life(Wheel.open(files, state, TIGHT, NOW), told, queued)
        except PowerCut:
            survived = files.survivors(mode, Random(stop_at))
            wheel = Wheel.open(survived, MemoryState(state.durable), TIGHT, NOW)
            assert wheel.settings in queued[len(told) - 1 :], f"at {stop_at}"
            again = {"version": 9}
            while wheel.write_pending(0):
                pass
            future = wheel.change_settings(wheel.settings, again)
            while wheel.write_pending(0):
                pass
            future.result(0)
            assert wheel.settings == again
        else:
            break
    assert stop_at > 15


# -- among peers


def agree(master: Peer, other: Peer, known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    future = master.wheel.change_settings(known, new)
    master.commit()
    future.result(0)
    master.ship(other)


def test_only_the_master_changes_them(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    with pytest.raises(NotMaster):
        a.wheel.change_settings({}, ONE)
    a.wheel.promise(1, "a", True)
    a.wheel.lead(1, STORES, NOW)
    with pytest.raises(NotMaster, match="starting"):
        a.wheel.change_settings({}, ONE)
    a.commit()
    agree(a, b, {}, ONE)
    assert b.wheel.settings == ONE
    with pytest.raises(NotMaster):
        b.wheel.change_settings(ONE, TWO)


def test_a_standby_has_what_is_committed_and_no_more(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    a.wheel.change_settings({}, ONE)
    a.sync()
    a.ship(b)
    assert b.wheel.log_view().durable == a.wheel.log_view().durable
    assert (a.wheel.settings, b.wheel.settings) == ({}, {})
    a.commit()
    a.ship(b)
    assert (a.wheel.settings, b.wheel.settings) == (ONE, ONE)


def test_they_survive_a_change_of_master_and_the_admission_of_a_store(
    peers: tuple[Peer, Peer],
) -> None:
    a, b = peers
    a.lead(1)
    agree(a, b, {}, ONE)
    a.wheel.stand_by("b:1")
    b.lead(2)
    assert b.wheel.settings == ONE
    b.wheel.admit_stores({**STORES, "a": b"n" * 16})
    b.commit()
    assert b.wheel.settings == ONE
    agree(b, a, ONE, TWO)
    assert a.wheel.settings == TWO
    _, stores = b.wheel.admitted_stores()[0]
    assert stores["a"] == b"n" * 16, "a change of settings takes no store back"
    for one in peers:
        one.reopen()
        one.wheel.commit(one.wheel.log_view().durable)
        assert one.wheel.settings == TWO


def test_an_admission_on_top_of_a_change_that_is_on_its_way_keeps_it(
    peers: tuple[Peer, Peer],
) -> None:
    a, b = peers
    a.lead(1)
    change = a.wheel.change_settings({}, ONE)
    a.wheel.admit_stores({**STORES, "c": b"c" * 16})
    with pytest.raises(Overloaded, match="changing"):
        a.wheel.change_settings({}, TWO)
    a.commit()
    change.result(0)
    a.ship(b)
    assert a.wheel.settings == b.wheel.settings == ONE
    assert set(a.wheel.admitted_stores()[0][1]) == {"a", "b", "c"}


def test_the_next_master_builds_on_a_change_that_it_received(peers: tuple[Peer, Peer]) -> None:
    """Not committed by the last master, and so by the next one, whose first entry comes behind."""
    a, b = peers
    a.lead(1)
    a.ship(b)
    a.wheel.change_settings({}, ONE)
    a.sync()
    a.ship(b)
    assert b.wheel.settings == {}
    b.lead(2)
    assert b.wheel.settings == ONE


def test_a_change_that_is_cut_off_fails_and_does_not_come_back(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    agree(a, b, {}, ONE)
    cut_off = a.wheel.change_settings(ONE, TWO)
    a.sync()
    a.wheel.stand_by("b:1")
    with pytest.raises(NotMaster):
        cut_off.result(0)
    b.lead(2)
    a.wheel.cut_after(a.wheel.commit_index)
    b.ship(a)
    assert a.wheel.settings == b.wheel.settings == ONE
    b.wheel.stand_by("a:1")
    a.lead(3)
    assert a.wheel.settings == ONE
    a.wheel.admit_stores({**STORES, "c": b"c" * 16})
    a.commit()
    assert a.wheel.settings == ONE
    agree(a, b, ONE, {"version": 3})
    assert b.wheel.settings == {"version": 3}


def test_a_snapshot_brings_them(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    change = a.wheel.change_settings({}, TWO)
    a.send((NOW + 60_000, "t", b"x"))
    a.commit()
    change.result(0)
    a.wheel.spill(NOW, everything=True)
    b.wheel.promise(1, "a", False)
    sink = b.wheel.snapshot_sink()
    with a.wheel.snapshot() as source:
        sink.begin()
        sink.header(source.header())
        for second, position, data in source.chunks(100):
            sink.chunk(second, position, data)
        b.wheel.install(sink.finish())
    assert b.wheel.settings == TWO
    b.reopen()
    assert b.wheel.settings == TWO
    a.ship(b)
    a.wheel.stand_by()
    b.lead(2)
    assert b.wheel.settings == TWO
