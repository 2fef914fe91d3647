"""Empties a dead-letter topic without taking what exactly-once delivery needs.

Theory: to delete the topic in Kafka would delete the mark with it, which is an offset stored for
its partition 0; so its records are deleted, and the topic stays. An embedded topic is deleted while
no node runs. Under exactly-once its newest blocks tell a node what has left: those that the last
mark in the journal may not cover stay.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from ...reading.search.watch import DirectoryWatch
from ...reading.topicreader import check_exists
from ...wheel.files import DirectoryLock, OsFiles
from ...wheel.mark import BY_TOPICS
from ...wheel.topics.topicdamage import records
from ...wheel.topics.topicfile import SEGMENT_SUFFIX, directory_of
from ...wheel.topics.topiclog import segments

_CLOCK_MS = 5_000
"""As of ``delivery/embedded/exactly_once.py``, which reads so far back."""


def purge_embedded(data: Path, topic: str) -> int:
    """Delete an embedded topic; how many of its segments have to stay. Errors: ``DirectoryInUse``:
    a node runs; ``InvalidMessage``: there is no such topic; ``OSError``."""
    with ExitStack() as stack:
        lock = DirectoryLock(data)
        stack.callback(lock.release)
        files = stack.enter_context(closing(OsFiles(data)))
        check_exists(files, topic)
        with closing(DirectoryWatch(data)) as watch:
            marks = watch.view().marks
        since_ms = min(mark.c for mark in marks.every) - _CLOCK_MS
        kept: set[int] = set()
        if marks.exact == BY_TOPICS:
            for first in segments(files, topic):
                if any(block.delivered_ms >= since_ms for block in records(files, topic, first)):
                    kept.add(first)
        directory = directory_of(topic)
        # An index names a segment: it goes first, and what is left of it then is no segment.
        for name in sorted(files.list(directory), key=lambda name: name.endswith(SEGMENT_SUFFIX)):
            if name.split(".")[0] not in {f"{first:020d}" for first in kept}:
                files.unlink(f"{directory}/{name}")
        if not kept:
            files.remove_directory(directory)
        files.sync_all()
        return len(kept)
