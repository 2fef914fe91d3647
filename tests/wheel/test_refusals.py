"""A node that cannot write says why, and what to do about that and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.wheel import Wheel
from support.memstate import MemoryState
from support.wheels import NOW, batch

REMEDIES = [
    (errno.ENOSPC, "Free disk space"),
    (errno.EDQUOT, "quota"),
    (errno.EMFILE, "LimitNOFILE"),
    (errno.ENFILE, "fs.file-max"),
    (errno.EIO, "the node's log"),
]
CONFIG = WheelConfig(tail_bytes_max=1000, tail_bytes_refuse=20_000, disk_reserve_bytes=0)


@pytest.mark.parametrize(("code", "remedy"), REMEDIES)
@pytest.mark.parametrize("what", ["journal", "slot files"])
def test_each_error_names_its_own_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str, what: str
) -> None:
    files = OsFiles(tmp_path)
    wheel = Wheel.open(files, MemoryState(), CONFIG, NOW)
    wheel.write_pending(0)

    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise OSError(code, os.strerror(code))

    if what == "journal":
        monkeypatch.setattr(wheel._log.journal, "append", fail)
        future = wheel.append(batch([(NOW + 5000, "t", b"x")]), NOW)
        wheel.write_pending(0)
        error = future.exception(0)
    else:
        wheel.append(batch([(NOW + 5000, "t", b"x" * 30_000)]), NOW)
        wheel.write_pending(0)
        monkeypatch.setattr(files, "open", fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            wheel.spill(NOW, everything=True)
        with pytest.raises(Overloaded) as caught:
            wheel.append(batch([(NOW + 5000, "t", b"x")]), NOW)
        error = caught.value
        monkeypatch.undo()
        wheel.spill(NOW, everything=True)
        wheel.append(batch([(NOW + 5000, "t", b"x")]), NOW)
    assert isinstance(error, Overloaded)
    assert os.strerror(code) in str(error)
    assert what in str(error)
    assert [text in str(error) for _, text in REMEDIES] == [text == remedy for _, text in REMEDIES]
    monkeypatch.undo()
    wheel.close()
    files.close()
