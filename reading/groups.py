"""Which wheel group a data directory or a file of receipts is of: a proof of several wheels judges
each by its own.

Example: ``north-1``, ``north-2``, ``south`` and ``sent.north.arrows`` are the directories of two
peers of the group ``north`` with the receipts of its messages, and a wheel alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ..wheel.errors import SlotwheelError
from ..wheel.state import Checkpoint
from .directory import existing, existing_file, is_data_directory
from .listing import journal_segments
from .state import group_config, read_state


@dataclass(slots=True)
class GroupInputs:
    """What was given of one group: paths, as they were given."""

    directories: list[str] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)


def by_group(directories: Sequence[str], receipts: Sequence[str]) -> dict[str, GroupInputs]:
    """The inputs by the name of their group, in the order of its first one. What does not say
    whose it is, as it is damaged or empty, goes with the first: who reads it there says so. Errors:
    ``InvalidConfiguration``: a path does not exist."""
    groups: dict[str, GroupInputs] = {}
    unknown = GroupInputs()
    for path in directories:
        group = group_of_directory(path)
        (groups.setdefault(group, GroupInputs()) if group else unknown).directories.append(path)
    for path in receipts:
        group = group_of_receipts(path)
        (groups.setdefault(group, GroupInputs()) if group else unknown).receipts.append(path)
    first = next(iter(groups.values()), None) or groups.setdefault("", GroupInputs())
    first.directories += unknown.directories
    first.receipts += unknown.receipts
    return groups


def group_of_directory(path: str) -> str:
    """The group of a data directory; empty: nothing there says it. Errors: as of ``by_group``."""
    root = existing(path)
    if not is_data_directory(root):
        return ""
    try:
        stored = read_state(root)
    except SlotwheelError:
        stored = None
    checkpoint = Checkpoint() if stored is None else stored.checkpoint
    segments = {first: file for first, (file, _) in journal_segments(root).items()}
    return str(group_config(checkpoint, segments)[0].get("group", ""))


def group_of_receipts(path: str) -> str:
    """The group of the first message of a file of receipts; empty: there is none, or it cannot be
    read. Errors: as of ``by_group``."""
    try:
        with pa.ipc.open_stream(existing_file(path)) as stream:
            for batch in stream:
                if batch.num_rows:
                    return str(batch.column("group")[0].as_py())
    except (OSError, KeyError, pa.ArrowException):
        pass
    return ""
