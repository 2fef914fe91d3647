"""Whole peers on a bad day: links that break, disks that are full, syncs that fail."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from slotwheel.replication.rules.messages import Append, EntryMeta, Vote
from slotwheel.replication.rules.timing import Timing
from slotwheel.replication.snapshots.fetching import REMOVED_AT_ONCE
from slotwheel.wheel.errors import SlotwheelError, SyncFailed
from slotwheel.wheel.files import Bytes, OsFiles, OsHandle
from support.datadirs import assert_sound
from support.proxy import Proxy
from support.replicas import TIMING, Replica, Replicas, batch_of
from support.stopwatch import Stopwatch
from support.waiting import eventually, now_ms


class FullHandle(OsHandle):
    disk: FullDisk

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        if self.disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(parts, position)


class FullDisk(OsFiles):
    """Journals cannot be written while ``full``."""

    full = False

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        handle = super().open(path, create=create)
        if not path.startswith("journal"):
            return handle
        full = FullHandle(os.dup(handle._fd), path)
        full.disk = self
        handle.close()
        return full


class Network:
    """A proxy in front of each peer for each other one."""

    def __init__(self, group: Replicas, stack: ExitStack) -> None:
        self.links: dict[tuple[str, str], Proxy] = {}
        for me in group.all.values():
            for peer, address in me.group.peers.items():
                if peer != me.name:
                    port = int(address.rpartition(":")[2])
                    proxy = stack.enter_context(Proxy(port))
                    self.links[me.name, peer] = proxy
                    me.dial[peer] = proxy.address

    def stall(self, name: str) -> None:
        """Nothing gets to it or away from it, and nobody is told."""
        for link, proxy in self.links.items():
            if name in link:
                proxy.stall()

    def heal(self) -> None:
        for proxy in self.links.values():
            proxy.go_on()


def test_a_master_that_is_cut_off_stops_in_time_and_obeys_when_it_is_back(
    group: Replicas,
) -> None:
    with ExitStack() as stack:
        network = Network(group, stack)
        group.start()
        group.send(b"one")
        first = group.master()
        network.stall(first.name)
        cut = Stopwatch()
        eventually(lambda: not first.driver.leased())
        assert cut.seconds < TIMING.lease_s + 0.2
        second = group.master()
        assert second is not first
        assert not first.driver.leased()
        group.send(b"two")
        network.heal()
        healed = Stopwatch()
        group.agree()
        assert healed.seconds < 4.0
        assert group.delivered(2) == [b"one", b"two"]


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.soak)])
def test_links_that_break_all_the_time_lose_nothing(group: Replicas, count: int) -> None:
    with ExitStack() as stack:
        network = Network(group, stack)
        group.start()
        sent = [b"%d" % n for n in range(count)]
        ending = threading.Event()

        cuts = 0  # since something was committed

        def cutting() -> None:
            nonlocal cuts
            # Where to connect takes longer than that, a group has to have longer between two cuts.
            while not ending.wait(0.2 * 1.5 ** (cuts // 3)):
                cuts += 1
                for proxy in network.links.values():
                    proxy.cut()

        cutter = threading.Thread(target=cutting)
        cutter.start()
        try:
            for value in sent:
                group.send(value)
                cuts = 0
        finally:
            ending.set()
            cutter.join()
        group.agree()
        assert group.delivered(count) == sent


@pytest.fixture
def small_disks(group: Replicas) -> Replicas:
    """Started, each with a disk that can be full."""
    for one in group.all.values():
        one._make_files = FullDisk
    return group.start()


def test_a_master_with_a_full_disk_hands_over(tmp_path: Path) -> None:
    # Nobody is elected for another reason: the machine may be busy for seconds.
    timing = Timing(
        heartbeat_s=0.05, lease_s=4.0, promise_s=5.0, election_spread_s=0.2, hand_over_s=2.0
    )
    group = Replicas(tmp_path, timing=timing)
    for one in group.all.values():
        one._make_files = FullDisk
    group.start()
    try:
        _a_full_disk_hands_over(group)
    finally:
        group.stop()


def _a_full_disk_hands_over(group: Replicas) -> None:
    group.send(b"before")
    group.agree()
    first = group.master()
    first.files.full = True
    writes = threading.Event()

    def appends() -> None:
        while not writes.wait(0.05):
            with contextlib.suppress(SlotwheelError):
                first.wheel.append(batch_of(b"refused"), now_ms())

    writer = threading.Thread(target=appends, daemon=True)
    writer.start()
    began = Stopwatch()
    try:
        eventually(lambda: any(one.is_master for one in group.running if one is not first))
    finally:
        writes.set()
        writer.join()
    assert began.wall_s > 0.9
    assert began.seconds < 4.0
    assert first.events.alarmed("master-cannot-write", "handing over")
    assert first.fatal == []
    group.send(b"after")
    first.files.full = False
    group.agree()
    assert group.delivered(2) == [b"before", b"after"]


def test_a_standby_with_a_full_disk_catches_up_when_there_is_room(small_disks: Replicas) -> None:
    group = small_disks
    group.send(b"before")
    group.agree()
    poor = group.standbys()[0]
    poor.files.full = True
    sent = [b"%d" % n for n in range(30)]
    for value in sent:
        group.send(value)
    assert poor.wheel.commit_index < group.master().wheel.commit_index
    poor.files.full = False
    group.agree()
    assert poor.fatal == []
    assert group.delivered(31) == [b"before", *sent]


def test_a_promise_without_room_is_tried_again(
    group: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    one = group.all["a"]

    def start_poor(replica: Replica) -> None:
        replica.start()
        promise = replica.wheel.promise

        def poor(epoch: int, vote: str, voter: bool) -> None:
            if len(refused) < 20:
                refused.append(epoch)
                raise OSError(errno.ENOSPC, "No space left on device")
            promise(epoch, vote, voter)

        replica.wheel.promise = poor  # type: ignore[method-assign]

    start_poor(one)
    group.all["b"].start()
    group.all["c"].start()
    group.send(b"x")
    group.agree()
    assert len(refused) == 20
    assert one.events.alarmed("promise-failed", "No space left")


@pytest.mark.parametrize("error", [SyncFailed("the disk is gone"), OSError(errno.EIO, "broken")])
def test_a_promise_that_fails_ends_the_node_and_no_other(group: Replicas, error: Exception) -> None:
    group.start()
    group.send(b"x")
    group.agree()
    master = group.master()
    bad, good = group.standbys()

    def fails(epoch: int, vote: str, voter: bool) -> None:
        raise error

    bad.wheel.promise = fails  # type: ignore[method-assign]
    master.stop()
    eventually(lambda: bad.fatal)
    assert bad.fatal == [error]
    assert not bad.driver.leased()
    bad.stop()
    bad.start()
    bad.fatal.clear()
    group.send(b"y")
    assert good.fatal == []


def test_what_a_peer_says_wrongly_is_told_and_ignored(group: Replicas) -> None:
    group.start()
    group.send(b"x")
    group.agree()
    standby = group.standbys()[0]
    other = group.standbys()[1]
    epoch = standby.driver.status()["epoch"]
    # The other standby is no master of this epoch.
    other.driver.transport.send(
        Append(
            other.name,
            standby.name,
            other.wheel.store_id,
            epoch,
            1,
            epoch,
            (EntryMeta(epoch),),
            9,
            0.0,
        )
    )
    other.driver.transport.send(
        Vote(other.name, standby.name, other.wheel.store_id, epoch, granted=True)
    )
    eventually(lambda: standby.events.alarmed("peer-fault", "two masters"))
    group.send(b"y")
    group.agree()


def test_a_second_node_with_the_same_id_does_not_disturb_the_group(
    group: Replicas, tmp_path: Path
) -> None:
    from support.ports import free_address

    group.start()
    group.send(b"x")
    standby = group.standbys()[0]
    twin = Replica(tmp_path / "twin", standby.group, standby.config, listen=free_address()).start()
    try:
        eventually(lambda: twin.events.alarmed("peer-refuses", "the same node id"))
        master = group.master()
        for n in range(10):
            group.send(b"%d" % n)
        group.agree()
        assert group.master() is master
        assert twin.wheel.commit_index == 0
    finally:
        twin.stop()


def test_a_directory_of_another_group_is_refused(group: Replicas, tmp_path: Path) -> None:
    group.start()
    group.send(b"x")
    group.agree()
    strange = Replicas(tmp_path / "strange")
    (tmp_path / "strange").mkdir()
    strange.start()
    strange.send(b"strange")
    strange.agree()
    strange.stop()
    one = group.standbys()[0]
    one.stop()
    kept = one.path.with_name("kept")
    one.path.rename(kept)
    shutil.copytree(strange.all["a"].path, one.path)
    one.start()
    eventually(lambda: one.events.alarmed("peer-refuses", "made by different groups"))
    master = group.master()
    eventually(lambda: master.events.alarmed("peer-refused", "made by different groups"))
    group.send(b"y")
    assert one.wheel.commit_index <= 10
    one.stop()
    shutil.rmtree(one.path)
    kept.rename(one.path)
    one.start()
    group.agree()


PROGRESS = "snapshot-progress"


def test_a_snapshot_that_breaks_off_goes_on(tmp_path: Path) -> None:
    group = Replicas(
        tmp_path, tail_age_ms=300, tail_keep_ms=0, segment_bytes=20_000, peer_journal_bytes_max=0
    )
    with ExitStack() as stack:
        network = Network(group, stack)
        group.start()
        try:
            sent = [b"%d" % n * 200_000 for n in range(60)]
            for value in sent:
                group.send(value)
            group.agree()
            eventually(lambda: all(one.wheel.log_view().first > 50 for one in group.running))
            group.stop()
            group.start()
            wiped = group.standbys()[0]
            wiped.stop()
            shutil.rmtree(wiped.path)
            wiped.start()
            for _ in range(3):
                eventually(lambda: wiped.driver._fetching.progress or _installed(wiped))
                for link, proxy in network.links.items():
                    if wiped.name in link:
                        proxy.cut()
                time.sleep(0.1)
            eventually(lambda: _installed(wiped))
            there = [int(str(one["bytes"])) for name, one in wiped.events.told if name == PROGRESS]
            assert there == sorted(there)
            assert not (wiped.path / "incoming").exists()
            group.send(b"after")
            group.agree()
            group.all[wiped.name].wheel.status()
        finally:
            group.stop()
    for one in group.all.values():
        assert_sound(one.path)


def test_what_is_left_of_a_snapshot_goes_when_the_log_goes_on_without_it(group: Replicas) -> None:
    group.start().send(b"x")
    group.agree()
    one = group.standbys()[0]
    one.stop()
    left = one.path / "incoming" / "slots"
    left.mkdir(parents=True)
    for second in range(3 * REMOVED_AT_ONCE):
        (left / f"{second}.arrows").write_bytes(b"of a snapshot")
    (left / "unknown").write_bytes(b"of no snapshot")
    one.start()
    group.send(b"y")
    eventually(lambda: not left.parent.exists())
    group.agree()


def _installed(one: Replica) -> bool:
    return "snapshot-installed" in one.events.names
