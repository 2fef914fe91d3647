"""Assigns files to tasks.

Theory: a task costs Spark some tens of milliseconds, and the last one to end decides how long all
take. So files are grouped into tasks of about equal size, several for each core, and not more than
a few thousand files each.

Rules
- Records delivered to one topic are read in the order of positions: segments of a topic stay
  together, in order, until a task is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..reading.files import TOPIC, File

TASKS_PER_CORE = 4
TASK_BYTES = (8 << 20, 256 << 20)
"""Smallest and largest size of a task; a single file may be larger."""
TASK_FILES_MAX = 4_000
_OPEN_BYTES = 32 << 10
"""The cost of opening a file, as bytes that could be read meanwhile."""


def tasks(files: Sequence[File], cores: int) -> list[list[File]]:
    """Every file in one of the tasks. ``cores``: how many tasks run at the same time."""
    total = sum(_cost(file) for file in files)
    low, high = TASK_BYTES
    size = min(high, max(low, total // max(1, cores * TASKS_PER_CORE) + 1))
    made: list[list[File]] = []
    topics = [file for file in files if file.kind == TOPIC]
    others = [file for file in files if file.kind != TOPIC]
    for group in (topics, others):
        made += _cut(group, size)
    # The longest first, so that none of them starts when all others are about to end.
    return sorted(made, key=lambda task: -sum(map(_cost, task)))


def _cut(files: Iterable[File], size: int) -> list[list[File]]:
    made: list[list[File]] = []
    room = 0
    for file in files:
        cost = _cost(file)
        if not made or cost > room or len(made[-1]) >= TASK_FILES_MAX:
            made.append([])
            room = size
        made[-1].append(file)
        room -= cost
    return made


def _cost(file: File) -> int:
    return file.nbytes + _OPEN_BYTES
