"""The state store of a data directory, its configuration, and whether its journal is that of
the state.

Theory: LMDB maps its file and believes what stands in its pages. One that is beyond the end of a
shortened file, or that somebody forged, ends the process by a signal, and no check beforehand can
exclude that. So a process of its own reads the store; if it is killed, or turns in a circle, that
is damage, and not the end of a proof. It loads LMDB alone, which takes a tenth of the time to
start, and writes all records, which are decoded here.

A running node may use pages again while they are read: what is found then is no damage. So a fault
counts only if there was no commit meanwhile; otherwise the store is read again.
"""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice, pairwise
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import lmdb

from ..wheel.errors import Damaged, SlotwheelError
from ..wheel.ids import LONG_FROM
from ..wheel.journal.entry import EntryKind
from ..wheel.journal.payloads import decode_config
from ..wheel.journal.scan import ENTRY_BYTES_MAX, LocatedEntry, SegmentReader
from ..wheel.journal.segment import SEGMENT_BYTES, SegmentHeader, index_of
from ..wheel.state import (
    STATE_DIRECTORY,
    Checkpoint,
    LmdbState,
    StoredState,
    check_version,
    decode_state,
)
from .journal import entries
from .listing import opened

_LOOKS = 10
_TIME_MAX_S = 120.0
_COMMIT = b"commit"
"""Under it the child gives the number of the commit that it read."""
_DATABASES = (b"meta", b"slots", b"producers", b"cancelled", b"schedules")
"""The last two need not be there."""
_COPY = f"""
import lmdb, os, pickle
found = {{}}
with lmdb.open(sys.argv[1] + "/state", readonly=True, lock=False, create=False, max_dbs=64) as env:
    with env.begin() as txn:
        names = [name for name in {_DATABASES!r} if txn.get(name) is not None]
    databases = {{name: env.open_db(name, create=False) for name in names}}
    for _ in range({_LOOKS}):
        commit = env.info()["last_txnid"]
        left = os.path.getsize(sys.argv[1] + "/state/data.mdb")
        with env.begin() as txn:
            for name, database in databases.items():
                records = found[name] = []
                for key, value in txn.cursor(db=database):
                    left -= len(key) + len(value) + 1
                    if left < 0:
                        sys.exit("pages that refer to each other in a circle")
                    records.append((key, value))
        if env.info()["last_txnid"] == commit:
            found[{_COMMIT!r}] = commit
            break
    else:
        sys.exit("another commit each time")
sys.stdout.buffer.write(pickle.dumps(found))
"""
_CONFIG_WITHIN = 10_000
"""The first configuration is among so many first entries of a log."""


def read_state(root: str | Path) -> StoredState | None:
    """Read the state in a process of its own; None: the directory has none. Errors: ``Damaged``,
    ``UnsupportedVersion``."""
    data = Path(root) / STATE_DIRECTORY / "data.mdb"
    if not _is_there(data):
        return None
    path, told = str(data.parent), _in_child(root, data)
    try:
        found = _Plain(io.BytesIO(told)).load()
        for name in _DATABASES[:3]:
            if name not in found:
                raise Damaged(path, 0, expected=f"database {name.decode()}", found="none")
        meta = dict(found[b"meta"])
        check_version(path, meta.get(b"version"))
        rest = (
            *(found[b"producers"], found.get(b"cancelled", ()), found[b"slots"]),
            found.get(b"schedules", ()),
        )
        return decode_state(path, meta.get, *rest, commit=int(found[_COMMIT]))
    except (ValueError, TypeError, KeyError, EOFError, pickle.PickleError, struct.error) as error:
        raise Damaged(str(data), 0, expected="a state store", found=str(error)) from None


class _Plain(pickle.Unpickler):
    """Makes texts, numbers and lists of them, and nothing else: who writes has mapped a file that
    somebody may have forged."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def load_state(root: str | Path) -> StoredState:
    """Read the state as ``read_state``; a directory without one is ``Damaged``, too."""
    found = read_state(root)
    if found is None:
        data = Path(root) / STATE_DIRECTORY / "data.mdb"
        raise Damaged(str(data), 0, expected="a state store", found="no such file")
    return found


def _in_child(root: str | Path, data: Path) -> bytes:
    """The records of all databases, pickled, as a process of its own has read them. Errors:
    ``Damaged`` when it fails, is ended by a signal, or comes to no end."""
    code = f"import sys; sys.path[:0] = {sys.path!r}{_COPY}"
    for _ in range(_LOOKS):
        commit = _last_commit(data)
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(root)],
                capture_output=True,
                timeout=_TIME_MAX_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found = f"one that is not read to its end within {_TIME_MAX_S:.0f} s"
            break
        if not done.returncode:
            return done.stdout
        found = f"a file that cannot be read to its end ({data.stat().st_size} bytes)"
        if done.returncode > 0:
            found = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        if _last_commit(data) == commit:
            break
    raise Damaged(str(data), 0, expected="a state store", found=found)


def _last_commit(data: Path) -> bytes:
    """LMDB's two head pages, one of which each commit writes; empty if they cannot be read."""
    try:
        with data.open("rb") as file:
            return file.read(2 * PAGESIZE)
    except OSError:
        return b""


def _is_there(data: Path) -> bool:
    """Errors: ``Damaged``: its folder may not be looked into."""
    try:
        return data.is_file()
    except OSError as error:
        found = error.strerror or error
        raise Damaged(str(data), 0, expected="a state store", found=found) from None


def load_here(root: str | Path) -> StoredState:
    """Read the state of a directory that can be trusted in this process, until it is of one commit,
    as a running node may be writing the store."""
    with closing(LmdbState(root, readonly=True)) as state:
        for look in range(_LOOKS):
            generation = state.generation()
            try:
                stored = state.load()
            except (SlotwheelError, lmdb.Error, ValueError):
                if state.generation() == generation or look + 1 == _LOOKS:
                    raise
                continue
            if state.generation() == generation:
                break
        return stored


def group_config(
    checkpoint: Checkpoint, segments: Mapping[int, Path]
) -> tuple[dict[str, Any], int | None]:
    """The group's configuration, empty if it is in none of the files; and the epoch of the entry
    that has it, None: the checkpoint does. ``segments``: of the journal, by their first index.

    A checkpoint without one, or of before the group gave out long ids (``wheel/ids.py``), has the
    first configuration behind it that says more. Some segments may be gone or damaged: later ones
    may have it, too."""
    config, epoch = dict(checkpoint.config), None
    if LONG_FROM in config:
        return config, epoch
    passed = max((first for first in segments if first <= checkpoint.index + 1), default=0)
    for path in [path for first, path in sorted(segments.items()) if first >= passed]:
        try:
            with opened(path) as handle:
                reader = SegmentReader(handle, str(path), ENTRY_BYTES_MAX)
                for located in islice(entries(reader), None if config else _CONFIG_WITHIN):
                    if not isinstance(located, LocatedEntry):
                        break
                    entry = located.entry
                    if entry.kind is EntryKind.CONFIG and entry.index > checkpoint.index:
                        config, epoch = decode_config(entry, str(path)), entry.epoch
                        if LONG_FROM in config:
                            return config, epoch
        except (OSError, SlotwheelError):
            continue
    return config, epoch


def not_its_own(
    stored: StoredState, segments: Sequence[tuple[Path, bool]]
) -> tuple[str, str] | None:
    """The problem (kind, text) if a state store is foreign to these segments (True: archived) or an
    old copy; else None. It is old if its checkpoint has not passed a segment that is gone or
    archived: a node keeps those until it has."""
    if not segments:
        return None
    mine = stored.store_id.hex()
    stores = {_store_of(path) for path, _ in (segments[0], segments[-1])} - {""}
    if stored.store_id and stores and mine not in stores:
        text = (
            f"expected the state of store {min(stores)}, that of the journal, found one of {mine}"
        )
        return "foreign", f"{text}. Give the directory with its own state/"
    first = index_of(segments[0][0].name)
    ends = [index_of(after[0].name) for before, after in pairwise(segments) if before[1]]
    behind = stored.checkpoint.index + 1
    begun = max([first, *ends])
    if begun <= behind:
        return None
    text = f"expected a checkpoint that reaches index {begun - 1}, as segments before were archived"
    return "older", (
        f"{text} or dropped, found one at index {behind - 1}: the state is of some time before."
        " Give files that were copied together"
    )


def _store_of(path: Path) -> str:
    """The store id in a segment's header, hex; empty if it cannot be read."""
    try:
        with opened(path) as handle:
            header = SegmentHeader.decode(handle.pread(SEGMENT_BYTES, 0), str(path))
            return header.store_id.hex()
    except (OSError, SlotwheelError):
        return ""
