"""How a large block reaches the disk: in shares, so that who syncs meanwhile waits for little."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from slotwheel.wheel import files as files_module
from slotwheel.wheel.errors import SyncFailed
from slotwheel.wheel.files import Bytes, Files, OsHandle
from slotwheel.wheel.slots import slotfile
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.slotfile import SlotFiles, schema_message, write_block
from slotwheel.wheel.slots.spill import block_of
from support.crashfs import CrashFiles
from support.wheels import keys_of, rows_at

SECOND, SHARE = 5, 1_000
FIRST, NEXT = ([(SECOND * 1000 + at, base + at) for at in range(100)] for base in (0, 100))


class Recorder(OsHandle):
    """Notes how many bytes are written at once, and between them what is handed to the disk."""

    __slots__ = ("calls",)

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT), str(path))
        self.calls: list[int | str] = []

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        self.calls.append(sum(len(part) for part in parts))
        return super().pwrite(parts, position)

    def write_back(self) -> None:
        self.calls.append("back")
        super().write_back()


def test_a_large_block_is_handed_to_the_disk_share_by_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for share in (SHARE, 1 << 30):
        monkeypatch.setattr(slotfile, "SHARE_BYTES", share)
        handle = Recorder(tmp_path / str(share))
        info, writes = slotfile.NOTHING, 0
        for keys in (FIRST, NEXT):
            handle.calls.clear()
            info = write_block(handle, info, block_of(SECOND, rows_at(keys)))
            written, between = handle.calls[::2], handle.calls[1::2]
            assert between == ["back"] * (len(written) - 1)
            assert max(map(int, written)) <= len(schema_message()) + share + 8
            writes += len(written)
        found.append((info, handle.pread(info.length, 0)))
        handle.close()
        assert writes > 10 if share == SHARE else writes == 2
    assert found[0] == found[1], "the bytes depend on the shares"


def test_a_block_in_shares_is_read_as_it_was_written(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slotfile, "SHARE_BYTES", SHARE)
    slots = SlotFiles(files, 1)
    info = slots.append(block_of(SECOND, rows_at(FIRST)), None)
    info = slots.append(block_of(SECOND, rows_at(NEXT)), info)
    assert [keys_of(rows) for rows in slots.read(SECOND, info)] == [FIRST, NEXT]
    slots.close()


def test_a_disk_that_does_not_take_a_share_is_a_failed_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel reports such an error once: a later sync would report success."""
    monkeypatch.setattr(slotfile, "SHARE_BYTES", SHARE)
    files = CrashFiles()
    files.fail_next("write_back", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(SyncFailed, match=path_of(SECOND)):
        SlotFiles(files, 1).append(block_of(SECOND, rows_at(FIRST)), None)


@pytest.mark.parametrize("known", [True, False])
def test_a_kernel_may_not_know_how_to_write_back(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        ctypes.set_errno(errno.EIO if known else errno.ENOSYS)
        return -1

    monkeypatch.setattr(files_module, "_libc", SimpleNamespace(sync_file_range=fails))
    handle = Recorder(tmp_path / "file")
    with pytest.raises(SyncFailed, match="file") if known else nullcontext():
        handle.write_back()
    handle.close()
