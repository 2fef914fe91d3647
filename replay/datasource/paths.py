"""The arguments of ``load()``: one path, several with commas, a list, ``file:`` addresses,
patterns.

Rules
- A path that exists is used literally, whatever characters are in its name.
- What cannot be read is an error, in one line: an empty frame would look like a wheel without
  messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ...reading.directory import short_names
from ...reading.files import DUMP, Layout
from ...reading.files import RECEIPTS as RECEIPTS_FILE
from ...reading.layout import FileFilter, find
from ...wheel.errors import InvalidConfiguration
from .columns import DELIVERED, FACTS, PROBLEMS, RECEIPTS

PATH, PATHS = "path", "paths"
"""Names of the options in which Spark passes one argument of ``load()``, and a list of them."""
_FILES = {DELIVERED: {DUMP}, RECEIPTS: {RECEIPTS_FILE}}
_ALL_FILES = {DUMP, RECEIPTS_FILE}
_METADATA = {
    b"slotwheel.receipts": RECEIPTS_FILE,
    b"slotwheel.dump": DUMP,
    b"slotwheel.topic-schema": DUMP,
}


@dataclass(frozen=True, slots=True)
class InputPaths:
    """Directories, and files by their kind."""

    directories: Sequence[str]
    dumps: Sequence[str] = ()
    receipts: Sequence[str] = ()


def listed(options: Mapping[str, str]) -> tuple[str, ...]:
    """Every path that was given. Errors: ``InvalidConfiguration``: none was."""
    text = options.get(PATH, "")
    parts = [text] if Path(_local(text)).exists() else text.split(",")
    if PATHS in options:
        parts += json.loads(options[PATHS])
    paths = tuple(part.strip() for part in parts if part.strip())
    if not paths:
        raise InvalidConfiguration(
            "no data directory is given",
            remedy="Name one, or several with commas, in load(); for a table in LOCATION or as the"
            " option path, and leave its columns out",
        )
    return paths


def resolve(paths: Sequence[str], view: str) -> InputPaths:
    """The directories and files behind paths, patterns expanded. Errors: ``InvalidConfiguration``:
    a path does not exist, or the view cannot show that kind of file."""
    matches = [match for path in paths for match in _matches(_local(path))]
    kinds = {path: _kind(path) for path in matches if Path(path).is_file()}
    allowed = _FILES.get(view, _ALL_FILES if view in (FACTS, PROBLEMS) else set())
    for path, kind in kinds.items():
        if kind not in allowed:
            raise InvalidConfiguration(
                f"a file of {kind}, which the view {view!r} does not show" if kind
                else "neither a data directory nor a file of receipts or of what was delivered",
                got=path,
                remedy="Name a data directory, or another view in .option('view', …)",
            )  # fmt: skip
    directories = [path for path in matches if path not in kinds]
    if view == RECEIPTS and directories:
        raise InvalidConfiguration(
            "receipts are in files of their producers, not in data directories",
            got=directories[0],
            remedy="Name the file that the producer was given",
        )
    return InputPaths(
        directories,
        [path for path, kind in kinds.items() if kind == DUMP],
        [path for path, kind in kinds.items() if kind == RECEIPTS_FILE],
    )


def layout_of(given: InputPaths, wanted: FileFilter, view: str, peer: str) -> Layout:
    """The files to be read. Errors: ``InvalidConfiguration``: one is not a data directory; the view
    of problems reports that as a row instead."""
    layout = find(given.directories, dumps=given.dumps, receipts=given.receipts, wanted=wanted)
    if len(layout.peers) < len(given.directories) and view != PROBLEMS:
        names = {peer_files.name for peer_files in layout.peers}
        for problem in layout.problems:
            if problem.file not in names and problem.kind in ("empty", "foreign"):
                raise InvalidConfiguration(
                    f"not a data directory of this group: {problem.text}",
                    got=problem.file,
                    remedy="Name the directories that the nodes of one group were given as --data",
                )
    check_peer(peer, [Path(path).resolve() for path in given.directories])
    return layout


def check_peer(peer: str, roots: Sequence[Path]) -> None:
    """Refuse an unknown peer. Errors: ``InvalidConfiguration``: no directory has that name."""
    names = short_names(roots)
    if peer and peer not in names:
        raise InvalidConfiguration(
            "no directory has the name in the option 'peer'",
            got=peer,
            limit=", ".join(names),
        )


def _local(path: str) -> str:
    """The path without ``file:``. Errors: ``InvalidConfiguration``: another scheme or host."""
    scheme, host, rest, _, _ = urlsplit(path)
    if not scheme or Path(path).exists():
        return path
    if scheme != "file" or host not in ("", "localhost"):
        raise InvalidConfiguration(
            "not a path of this machine",
            got=path,
            limit="file:///…, or a path",
            remedy="Mount what holds it, in the same place on all of Spark's machines",
        )
    return unquote(rest)


def _matches(path: str) -> list[str]:
    if Path(path).exists() or not has_magic(path):
        return [path]
    matches = sorted(glob(path))  # noqa: PTH207 - a pattern may be absolute
    if not matches:
        raise InvalidConfiguration("nothing has a name of that pattern", got=path)
    return matches


def _kind(path: str) -> str:
    """The kind of an Arrow stream's file, by its schema; empty: not a file of slotwheel."""
    try:
        with pa.OSFile(path) as file:
            metadata = pa.ipc.open_stream(file).schema.metadata or {}
    except (pa.ArrowException, OSError, ValueError):
        return ""
    return next((kind for key, kind in _METADATA.items() if key in metadata), "")
