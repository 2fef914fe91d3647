"""The double that other tests believe: what it keeps and what it loses."""

from __future__ import annotations

import errno
from random import Random

import pytest

from slotwheel.wheel.errors import SyncFailed
from support.crashfs import CrashFiles, PowerCut, Steps


def write(files: CrashFiles, path: str, content: bytes, *, sync: bool) -> None:
    handle = files.open(path, create=True)
    handle.pwrite([content], 0)
    if sync:
        handle.sync()
        files.sync_dir(".")


def test_what_is_not_synced_survives_a_kill_and_no_power_cut() -> None:
    files = CrashFiles()
    write(files, "synced", b"old", sync=True)
    write(files, "synced", b"newer", sync=False)
    write(files, "unsynced", b"x", sync=False)
    cut = files.survivors("durable")
    assert (cut.list("."), cut.content("synced")) == (["synced"], b"old")
    killed = files.survivors("live")
    assert (killed.list("."), killed.content("synced")) == (["synced", "unsynced"], b"newer")
    assert killed.survivors("durable").content("synced") == b"old"
    killed.open("synced").sync()
    assert killed.survivors("durable").content("synced") == b"newer"
    assert files.content("synced") == b"newer"  # the original is untouched


def test_a_name_is_durable_only_after_its_directory_was_synced() -> None:
    files = CrashFiles()
    files.make_directory("a/b")
    files.sync_all()
    write(files, "a/b/one", b"1", sync=False)
    files.open("a/b/one").sync()
    assert files.survivors("durable").list("a/b") == []
    files.sync_dir("a")
    assert files.survivors("durable").list("a/b") == []
    files.sync_dir("a/b/")
    assert files.survivors("durable").content("a/b/one") == b"1"
    files.rename("a/b/one", "a/b/two")
    assert files.survivors("durable").list("a/b") == ["one"]
    assert files.survivors("live").list("a/b") == ["two"]
    files.sync_dir("a/b")
    assert files.survivors("durable").list("a/b") == ["two"]
    files.unlink("a/b/two")
    assert files.survivors("durable").content("a/b/two") == b"1"
    files.sync_all()
    assert files.survivors("durable").list("a/b") == []


def test_a_directory_that_was_not_synced_takes_its_files_with_it() -> None:
    files = CrashFiles()
    files.make_directory("a")
    write(files, "a/one", b"1", sync=False)
    files.open("a/one").sync()
    files.sync_dir("a")
    assert files.survivors("durable").list("a") == []
    files.sync_dir(".")
    assert files.survivors("durable").list("a") == ["one"]


def test_a_random_power_cut_makes_everything_that_may_happen() -> None:
    files = CrashFiles()
    write(files, "file", b"o" * 2000, sync=True)
    handle = files.open("file")
    handle.pwrite([b"n" * 2000], 1000)
    write(files, "other", b"", sync=False)
    seen = set()
    for seed in range(200):
        after = files.survivors("random", Random(seed))
        content = after.content("file")
        assert content[:1000] == b"o" * 1000
        # edges of sectors: 1000, 1024, 1536, 2048, 2560, 3000
        pieces = [content[a:b] for a, b in ((1000, 1024), (1024, 1536), (1536, 2000))]
        for piece in pieces:
            assert len(set(piece)) == 1
        assert set(content[2000:]) <= set(b"n\0")
        seen.add((len(content), *(piece[:1] for piece in pieces), "other" in after.list(".")))
        assert after.survivors("durable").content("file") == content
    assert {length for length, *_ in seen} >= {2000, 3000}
    assert (2000, b"o", b"o", b"o", False) in seen
    assert (3000, b"n", b"n", b"n", True) in seen
    assert (3000, b"o", b"n", b"o", True) in seen
    assert (3000, b"o", b"o", b"o", False) in seen  # only the size reached the disk


def test_power_is_cut_before_the_step_and_stays_cut() -> None:
    files = CrashFiles(stop_at=3)
    handle = files.open("a", create=True)
    handle.pwrite([b"1"], 0)
    with pytest.raises(PowerCut, match="step 3: sync a"):
        handle.sync()
    calls = (
        lambda: handle.pread(1, 0),
        lambda: handle.pwrite([b"2"], 0),
        handle.size,
        lambda: files.list("."),
        lambda: files.open("a"),
        lambda: files.unlink("a"),
        lambda: files.map("a", 1),
        lambda: files.sync_dir("."),
        files.free_bytes,
    )
    for call in calls:
        with pytest.raises(PowerCut, match="after step 3"):
            call()
    handle.close()
    assert files.survivors("live").content("a") == b"1"
    assert files.survivors("live").survivors("durable").list(".") == []
    assert files.steps.names == ["create a", "pwrite a 0+1", "sync a"]


def test_a_write_at_which_power_is_cut_leaves_a_prefix() -> None:
    lengths = set()
    for number in range(2, 40):
        files = CrashFiles()
        for name in range(number - 2):
            files.make_directory(str(name))
        handle = files.open("a", create=True)
        files.steps.stop_at = number
        with pytest.raises(PowerCut):
            handle.pwrite([b"abc", b"def"], 0)
        content = files.survivors("live").content("a")
        assert b"abcdef".startswith(content)
        lengths.add(len(content))
    assert {0, 6} < lengths


def test_two_doubles_share_their_steps() -> None:
    steps = Steps(stop_at=3)
    files = CrashFiles(steps=steps)
    write(files, "a", b"1", sync=False)
    with pytest.raises(PowerCut, match="commit"):
        steps.hit("commit")
    with pytest.raises(PowerCut):
        files.open("a").pwrite([b"2"], 0)
    assert files.content("a") == b"1"


def test_faults_come_once_and_in_turn() -> None:
    files = CrashFiles()
    files.fail_next("pwrite", OSError(errno.EIO, "second"), after=1)
    handle = files.open("a", create=True)
    handle.pwrite([b"1"], 0)
    with pytest.raises(OSError, match="second"):
        handle.pwrite([b"2"], 0)
    handle.pwrite([b"3"], 0)
    assert files.content("a") == b"3"


def test_a_failed_sync_loses_what_it_should_have_written() -> None:
    files = CrashFiles()
    write(files, "a", b"old", sync=True)
    handle = files.open("a")
    handle.pwrite([b"new"], 0)
    files.fail_next("sync", OSError(errno.EIO, "I/O error"))
    with pytest.raises(SyncFailed):
        handle.sync()
    handle.sync()
    assert files.content("a") == b"new"
    assert files.survivors("durable").content("a") == b"old"


def test_a_full_disk_writes_what_fits() -> None:
    files = CrashFiles()
    handle = files.open("a", create=True)
    files.free = 5
    handle.pwrite([b"123"], 0)
    with pytest.raises(OSError, match="No space") as full:
        handle.pwrite([b"45", b"6789"], 3)
    assert full.value.errno == errno.ENOSPC
    assert (files.content("a"), files.free_bytes()) == (b"12345", 0)
    handle.pwrite([b"xyz"], 0)  # overwriting takes no room
    handle.truncate(1)
    assert files.free_bytes() == 4
    files.unlink("a")
    assert files.free_bytes() == 5


def test_it_behaves_like_a_file_system() -> None:
    files = CrashFiles()
    for missing in (
        lambda: files.open("no"),
        lambda: files.unlink("no"),
        lambda: files.rename("no", "yes"),
        lambda: files.map("no", 0),
        lambda: files.open("no/file", create=True),
        lambda: files.sync_dir("no"),
    ):
        with pytest.raises(FileNotFoundError):
            missing()
    assert files.list("no") == []
    handle = files.open("a", create=True)
    assert handle.pwrite([b"12", memoryview(b"34")], 2) == 4
    assert handle.pread(100, 0) == b"\0\x001234"
    assert handle.pread(2, 5) == b"4"
    assert files.map("a", 4).to_pybytes() == b"\0\x0012"
    handle.truncate(8)
    assert (handle.size(), handle.pread(3, 5)) == (8, b"4\0\0")
    files.unlink("a")
    assert handle.pread(2, 2) == b"12"  # an open file outlives its name
