"""The wall clock of one process, which a test can step while it runs; its machine can sleep, too.

``wallclock.c`` is preloaded into the process; it shares a file of sixteen bytes with the test,
which say by how much its wall clock is off, and for how long its machine has slept. Timeouts and
waits, which use other clocks, are as ever.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("wallclock.c")
_OFFSET_NS = struct.Struct("=q")
_WALL_AT, _SLEPT_AT = 0, _OFFSET_NS.size


@functools.cache
def _library() -> Path:
    """Compiled once a run. Errors: ``AssertionError`` without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests that step a clock need a C compiler: install gcc"
    library = Path(tempfile.mkdtemp(prefix="slotwheel-clock-")) / "wallclock.so"
    atexit.register(shutil.rmtree, library.parent, ignore_errors=True)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class WallClock:
    """One process's clock. ``variables``: what its environment needs. ``path``: a new file."""

    def __init__(self, path: Path, offset_ms: int = 0) -> None:
        self._path = path
        self.slept_ms = 0
        path.write_bytes(bytes(2 * _OFFSET_NS.size))
        self.variables = {"LD_PRELOAD": str(_library()), "SLOTWHEEL_TEST_CLOCK": str(path)}
        self.set(offset_ms)

    def set(self, offset_ms: int) -> None:
        """From now on the process's clock is off by so much."""
        self.offset_ms = offset_ms
        self._write(_WALL_AT, offset_ms)

    def sleep(self, span_ms: int) -> None:
        """The machine sleeps for so long, as one does whose lid is closed: the wall clock goes on,
        and so does the time since the machine's start, by which a node tells sleep from a jump."""
        # In this order: who reads between the two sees a jump ahead, which is not believed; in the
        # other order a step back, which is.
        self.set(self.offset_ms + span_ms)
        self.slept_ms += span_ms
        self._write(_SLEPT_AT, self.slept_ms)

    def _write(self, at: int, offset_ms: int) -> None:
        with self._path.open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(_OFFSET_NS.pack(offset_ms * 1_000_000))
