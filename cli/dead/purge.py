"""Empties a dead-letter topic without taking what exactly-once delivery needs.

Theory: to delete the topic in Kafka would delete the mark with it, which is an offset stored for
its partition 0; so its records are deleted, and the topic stays. An embedded topic is deleted while
no node runs. Under exactly-once its newest blocks tell a node what has left: those that the last
mark may not cover stay, or their rows would be delivered again.
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
"""A node reads so far back before the mark (``delivery/embedded/exactly_once.py``)."""


def purge_embedded(data: Path, topic: str) -> int:
    """Delete an embedded topic. Returns the number of its segments that have to stay. Errors:
    ``DirectoryInUse``: a node runs; ``InvalidMessage``: there is no such topic; ``OSError``."""
    with ExitStack() as stack:
        lock = DirectoryLock(data)
        stack.callback(lock.release)
        files = stack.enter_context(closing(OsFiles(data)))
        check_exists(files, topic)
        with closing(DirectoryWatch(data)) as watch:
            marks = watch.view().marks
        since_ms = min(mark.c for mark in marks.every) - _CLOCK_MS
        kept_segments: set[int] = set()
        if marks.exact == BY_TOPICS:
            for first in segments(files, topic):
                if any(block.delivered_ms >= since_ms for block in records(files, topic, first)):
                    kept_segments.add(first)
        directory = directory_of(topic)
        # A segment without its index is none: the index goes first, and a crash leaves no index
        # without its records.
        for name in sorted(files.list(directory), key=lambda name: name.endswith(SEGMENT_SUFFIX)):
            if name.split(".")[0] not in {f"{first:020d}" for first in kept_segments}:
                files.unlink(f"{directory}/{name}")
        if not kept_segments:
            files.remove_directory(directory)
        files.sync_all()
        return len(kept_segments)
