"""Reading the state store of a data directory, beside a running node or of a damaged one.

Theory: LMDB maps its file. Where a cut took pages away, touching them ends the process (SIGBUS),
and no check beforehand can tell for sure. So a process of its own reads the store, and hands on
what it found; what ends it is damage, and not the end of a proof.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from ..wheel.errors import Damaged, SlotwheelError
from ..wheel.state import STATE_DIRECTORY, LmdbState, Stored

_LOOKS = 10
_TIME_MAX_S = 120.0
_CODE = """
import sys
sys.path[:0] = {path!r}
from slotwheel.reading.state import child
child(sys.argv[1])
"""


def read_state(root: str) -> Stored | None:
    """The state as it is now; None when the directory has none. Errors: ``Damaged``,
    ``UnsupportedVersion``."""
    data = Path(root) / STATE_DIRECTORY / "data.mdb"
    if not data.is_file():
        return None
    code = _CODE.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, timeout=_TIME_MAX_S, check=False
    )
    if done.returncode < 0:
        found = f"a file that cannot be read to its end ({data.stat().st_size} bytes)"
        raise Damaged(str(data), 0, expected="a state store", found=found)
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Damaged(str(data), 0, expected="a state store", found=last[:200])
    found = pickle.loads(done.stdout)  # noqa: S301 - written by ourselves, just now
    if isinstance(found, SlotwheelError):
        raise found
    assert isinstance(found, Stored)
    return found


def child(root: str) -> None:
    """In the process of its own: what was read, or its error, to standard output."""
    found: Stored | SlotwheelError
    try:
        found = _load(root)
    except SlotwheelError as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))


def _load(root: str) -> Stored:
    """Read until two looks agree, as a running node may be writing it."""
    state = LmdbState(root, readonly=True)
    try:
        stored = state.load()
        for _ in range(_LOOKS):
            again = state.load()
            if again == stored:
                break
            stored = again
        return stored
    finally:
        state.close()
