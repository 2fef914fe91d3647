"""The wall clock of one process, which a test can step while it runs.

``wallclock.c`` is preloaded into the process; it shares a file of eight bytes with the test, which
say by how much its wall clock is off. Timeouts and waits, which use other clocks, are as ever.
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
        path.write_bytes(_OFFSET_NS.pack(0))
        self.variables = {"LD_PRELOAD": str(_library()), "SLOTWHEEL_TEST_CLOCK": str(path)}
        self.set(offset_ms)

    def set(self, offset_ms: int) -> None:
        """From now on the process's clock is off by so much."""
        self.offset_ms = offset_ms
        with self._path.open("r+b") as file:
            file.write(_OFFSET_NS.pack(offset_ms * 1_000_000))
