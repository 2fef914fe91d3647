"""Embedded topics of a node's data directory, as one member of a group that has no others.

The group's positions are in a file of its own, ``consumers/<group>/positions.json`` below the data
directory; a lock beside it lets one process at a time read as the group. A topic that does not
exist yet is looked for again and again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from ..policy.headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from ..reading.topicreader import TopicReader, extent, ids
from ..wheel.errors import Damaged, DirectoryInUse, InvalidConfiguration
from ..wheel.files import DirectoryLock, OsFiles, open_regular, regular
from ..wheel.rows import Header
from ..wheel.schema import times
from .message import Received, SourcePartition
from .source import Assignment, ConsumerFailed, PositionedSource, SourceAway

DIRECTORY = "consumers"
POSITIONS = "positions.json"
VERSION = 1
_STEP_S = 0.01


class EmbeddedSource(PositionedSource):
    """A source of embedded topics of the data directory ``data``. ``latest``: topics of which the
    group has no position are read from their end on, not from their beginning.

    Errors on construction: ``InvalidConfiguration`` without the directory, ``DirectoryInUse`` when
    another process reads as this group, ``Damaged`` for a file of positions with other content,
    ``OSError`` when it cannot be read."""

    def __init__(
        self,
        data: str | os.PathLike[str],
        group: str,
        topics: Sequence[str],
        assignment: Assignment,
        *,
        latest: bool = False,
    ) -> None:
        root = Path(data)
        if not root.is_dir():
            raise InvalidConfiguration(
                "no such data directory",
                got=str(root),
                remedy="Name the --data directory of the node whose embedded topics are read",
            )
        self._folder = root / DIRECTORY / group
        try:
            self._lock = DirectoryLock(self._folder)
        except DirectoryInUse as error:
            raise DirectoryInUse(
                "another process consumes as this group",
                got=error.got,
                remedy="Stop it, or take another group; of embedded topics a group has one member",
            ) from None
        try:
            self._positions = read_positions(self._folder / POSITIONS)
        except BaseException:
            self._lock.release()
            raise
        self._files = OsFiles(root)
        self._held: set[str] = set()
        self._rest: list[Received] = []
        self._latest = latest
        self._assignment = assignment
        self._readers: dict[str, TopicReader] = {}
        self.subscribe(topics)

    def subscribe(self, topics: Sequence[str]) -> None:
        gone, new = set(self._readers).difference(topics), set(topics).difference(self._readers)
        for topic in gone:
            self._readers.pop(topic).close()
        self._rest = [message for message in self._rest if message.topic not in gone]
        if gone:
            self._assignment.revoked([SourcePartition(topic, 0) for topic in gone])
        for topic in topics:
            if topic in new:
                self._readers[topic] = TopicReader(self._files, topic, self._start(topic))
        if new:
            self._assignment.assigned([SourcePartition(topic, 0) for topic in new], None)

    def _start(self, topic: str) -> int:
        position = self._positions.get(topic)
        if position is None and self._latest:
            _, position = extent(self._files, topic) or (0, 0)
        return position or 0

    def poll(self, timeout_s: float, count: int) -> list[Received]:
        deadline = time.monotonic() + timeout_s
        while True:
            read = self._read(count)
            self.seen = {SourcePartition(message.topic, 0): message.offset for message in read}
            if read or time.monotonic() >= deadline:
                skips = self.unwanted
                if skips is not None:
                    read = [
                        message for message in read if not skips(message.topic, message.headers)
                    ]
                return read
            time.sleep(_STEP_S)

    def _read(self, count: int) -> list[Received]:
        """Read up to ``count`` messages. A block is read whole; its surplus is kept for the next
        call. Errors: ``ConsumerFailed``."""
        held = [message for message in self._rest if message.topic in self._held]
        read = [message for message in self._rest if message.topic not in self._held]
        waiting = {message.topic for message in self._rest}
        try:
            for topic in list(self._readers):
                if len(read) >= count:
                    break
                if topic in self._held or topic in waiting:
                    continue
                # A topic that was read comes last, so that a backlog keeps no other waiting.
                reader = self._readers[topic] = self._readers.pop(topic)
                batch = reader.read()
                if batch is not None:
                    read += messages(topic, batch)
        except (Damaged, OSError) as error:
            raise ConsumerFailed(
                f"an embedded topic cannot be read: {error}",
                remedy="Run 'slotwheel verify' on the data directory",
            ) from error
        self._rest = read[count:] + held
        return read[:count]

    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        self._positions |= {partition.topic: position for partition, position in positions.items()}
        try:
            write_positions(self._folder / POSITIONS, self._positions)
        except OSError as error:
            raise SourceAway(f"the positions cannot be written: {error}") from error

    def hold(self, partitions: Collection[SourcePartition]) -> None:
        self._held = {partition.topic for partition in partitions}

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        self.seek({partition: self._positions.get(partition.topic, 0) for partition in starts})

    def seek(self, positions: Mapping[SourcePartition, int]) -> None:
        for partition, position in positions.items():
            self._readers[partition.topic].seek(position)
        again = {partition.topic for partition in positions}
        self._rest = [message for message in self._rest if message.topic not in again]

    def committed(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        known = self._positions
        return {
            partition: known[partition.topic]
            for partition in partitions
            if partition.topic in known
        }

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._files.close()
        self._lock.release()


def messages(topic: str, batch: pa.RecordBatch) -> list[Received]:
    """Messages of an embedded topic's rows, with a delivery's headers, as a consumer of Kafka's."""
    due, created = times(batch, "due").tolist(), times(batch, "created").tolist()
    delivered = times(batch, "delivered").tolist()
    columns = [batch.column(name).to_pylist() for name in ("position", "key", "value", "headers")]
    received = []
    for row, text in enumerate(ids(batch)):
        position, key, value, pairs = (column[row] for column in columns)
        headers: list[Header] = [(pair["key"], pair["value"]) for pair in pairs or ()]
        headers += [
            (ID_HEADER, text.encode()),
            (DUE_HEADER, b"%d" % due[row]),
            (CREATED_HEADER, b"%d" % created[row]),
        ]
        received.append(Received(topic, 0, position, key, value, headers, delivered[row]))
    return received


def read_positions(path: Path) -> dict[str, int]:
    """The positions in a file, by topic; empty without the file. Errors: ``Damaged``; ``OSError``:
    it cannot be read, or is no regular file."""
    try:
        with closing(open_regular(path)) as handle:
            content = handle.pread(handle.size(), 0)
    except FileNotFoundError:
        return {}
    try:
        fields = json.loads(content)
        assert fields["version"] == VERSION
        return {str(topic): int(position) for topic, position in fields["positions"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise Damaged(
            str(path),
            0,
            expected=f"the positions of a group, version {VERSION}",
            found=repr(content[:60]),
            remedy="Remove it to begin at the start of the topics, or write the positions anew",
        ) from None


def write_positions(path: Path, positions: Mapping[str, int]) -> None:
    """Replace the file of positions, durably. Whenever the machine stops, the old file or the new
    one is there. Errors: ``OSError``."""
    text = json.dumps({"version": VERSION, "positions": dict(positions)})
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=regular) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
