"""Embedded topics as a sink: the contract, and a full disk."""

from __future__ import annotations

import errno
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotwheel.delivery.embedded import sink as sink_module
from slotwheel.delivery.embedded.newtopics import FEW, WAIT_S
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer, Sink
from slotwheel.node.intake.door import Door
from slotwheel.reading.topicreader import TopicReader, ids, walk
from slotwheel.wheel.files import OsFiles, OsHandle
from support.crashfs import CrashFiles
from support.deliveries import MINT, NOW_MS, Sent, rows_of
from support.nodeprocess import topic_rows
from support.references import no_collection
from support.sinkcontract import Got, SinkContract, Topics
from support.waiting import PATIENCE_S


class EmbeddedTopics(Topics):
    def __init__(self, path: Path) -> None:
        self._files = OsFiles(path)
        self._numbers = itertools.count()

    def make(self, name: str, partitions: int = 1, **config: object) -> str:
        return f"{name}-{next(self._numbers)}"

    def read(self, topic: str, count: int) -> list[Got]:
        reader = TopicReader(self._files, topic)
        got = []
        for batch in reader.batches():
            rows = zip(batch.to_pylist(), ids(batch), strict=True)
            for row, id_ in rows:
                headers = tuple((h["key"], h["value"]) for h in row["headers"])
                got.append(Got(row["partition"], row["key"], row["value"], headers, id_))
        reader.close()
        assert len(got) == count
        return got


class TestEmbeddedSink(SinkContract):
    @pytest.fixture
    def topics(self, tmp_path: Path) -> Iterator[Topics]:
        yield EmbeddedTopics(tmp_path)
        files = OsFiles(tmp_path)
        for topic in files.list("topics"):
            for _ in walk(files, topic):
                pass  # what a test leaves behind is whole

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[Sink]:
        sink = EmbeddedSink(OsFiles(tmp_path), MINT, lambda: NOW_MS)
        yield sink
        sink.close()

    def test_the_partition_is_kept_as_it_was_given(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("partition")
        sink.deliver(rows_of([Sent(topic, partition=p) for p in (3, None, 0)]))
        assert [g.partition for g in topics.read(topic, 3)] == [3, None, 0]


def test_a_full_disk_costs_nothing_but_time() -> None:
    files = CrashFiles()
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS)
    assert sink.deliver(rows_of([Sent("a", b"1")])).codes.tolist() == [Answer.ACCEPTED]
    room, files.free = files.free, 100
    answers = sink.deliver(rows_of([Sent("a", b"2" * 500), Sent("b", b"2" * 500)], 1))
    assert answers.codes.tolist() == [Answer.NOT_NOW] * 2
    assert answers.down
    assert not sink.healthy()
    assert not sink.probe("a")
    files.free = room
    assert sink.probe("a")
    answers = sink.deliver(rows_of([Sent("a", b"2" * 500), Sent("b", b"2" * 500)], 1))
    assert answers.codes.tolist() == [Answer.ACCEPTED] * 2
    for topic, count in (("a", 2), ("b", 1)):
        reader = TopicReader(files, topic)
        assert sum(batch.num_rows for batch in reader.batches()) == count
        reader.close()
    sink.close()


@pytest.mark.parametrize("slow", ["recover", "_cut"])
@pytest.mark.parametrize("step", ["sync_block", "write_record", "sync_record"])
def test_who_counts_beside_an_append_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, slow: str
) -> None:
    """A status may be asked for at any moment, and the one who counts may be slow."""
    sink = EmbeddedSink(OsFiles(tmp_path), MINT, lambda: NOW_MS)
    counting, appended = threading.Event(), threading.Event()
    threads = list[threading.Thread]()

    def begin_to_count(do: Callable[..., Any], *args: Any) -> Any:
        sink._ends.clear()  # forgotten, as of many topics
        threads.append(threading.Thread(target=sink.count, args=["a"]))
        threads[-1].start()
        counting.wait(0.2)
        return do(*args)

    def slowly(do: Callable[..., Any], *args: Any) -> Any:
        found = do(*args) if slow == "recover" else None
        if threading.current_thread() in threads:
            counting.set()
            appended.wait(60)
        return found if slow == "recover" else do(*args)

    for name, call in ((step, begin_to_count), (slow, slowly)):
        monkeypatch.setattr(sink._writer, name, partial(call, getattr(sink._writer, name)))
    for offset in (0, 1):
        counting.clear()
        appended.clear()
        sink.deliver(rows_of([Sent("a", b"1")], offset))
        appended.set()
        threads[-1].join(60)
        assert sink.count("a") == offset + 1
    sink.close()
    assert len(topic_rows(tmp_path, "a")) == 2


def test_a_topic_has_one_lock_however_many_others_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has got it and does not hold it yet must not be alone beside somebody else."""
    monkeypatch.setattr(sink_module, "TOPICS_REMEMBERED", 2)
    sink = EmbeddedSink(OsFiles(tmp_path), MINT, lambda: NOW_MS)
    mine = sink._alone("a")
    for number in range(10):
        sink._alone(f"other-{number}")
    assert sink._alone("a") is mine
    assert len(sink._busy) == 1, "those that nobody uses are gone"
    sink.close()


@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_an_error_of_the_disk_is_not_now(call: str) -> None:
    files = CrashFiles()
    first = EmbeddedSink(files, MINT, lambda: NOW_MS)
    first.deliver(rows_of([Sent("a", b"1")]))
    first.close()
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS)
    files.fail_next(call, OSError(errno.EIO, "disk"))
    answers = sink.deliver(rows_of([Sent("a", b"2")], 1))
    assert answers.codes.tolist() == [Answer.NOT_NOW]
    assert "disk" in answers.reasons[0]
    assert not answers.down
    assert sink.deliver(rows_of([Sent("a", b"2")], 1)).codes.tolist() == [Answer.ACCEPTED]
    sink.close()


def test_rows_that_were_not_written_are_freed() -> None:
    files = CrashFiles()
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS)
    with no_collection():
        rows = rows_of([Sent("a", b"1")])
        kept = weakref.ref(rows)
        files.fail_next("pwrite", OSError(errno.ENOSPC, "no space left"))
        assert sink.deliver(rows).codes.tolist() == [Answer.NOT_NOW]
        del rows
        assert kept() is None
    sink.close()


class CountedFiles(OsFiles):
    """Counts what it makes. ``refuses``: it makes nothing more."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.made = 0
        self.refuses = False

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        self.made += create
        return super().open(path, create=create)

    def make_directory(self, directory: str) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "no space left")
        self.made += 1
        super().make_directory(directory)


CROWD = [f"new-{number}" for number in range(2 * FEW)]


def ends(of: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while of() and time.monotonic() < deadline:
        time.sleep(0.001)
    return not of()


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_what_is_expected_is_made_before_its_rows_come(tmp_path: Path, segment_bytes: int) -> None:
    files = CountedFiles(tmp_path)
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS, segment_bytes=segment_bytes)
    sink.deliver(rows_of([Sent(CROWD[0], b"0")]))
    before = files.made
    sink.expect(CROWD)
    assert ends(lambda: sink.topics.coming > 0)
    assert files.made - before == 3 * (len(CROWD) - 1)
    made, again = files.made, CROWD[1:]
    sink.expect(CROWD)
    for rows in ([Sent(again[0], b"1")], [Sent(topic, b"1") for topic in again[1:]]):
        assert not sink.deliver(rows_of(rows, 1)).codes.any()
    assert files.made == made
    sink.close()
    assert [row["value"] for row in topic_rows(tmp_path, CROWD[-1])] == [b"1"]


def test_a_batch_with_a_crowd_of_new_topics_waits_at_the_door_until_they_are_made(
    tmp_path: Path,
) -> None:
    sink = EmbeddedSink(CountedFiles(tmp_path), MINT, lambda: NOW_MS)
    door = Door(sink.topics)
    assert door.absent(rows_of([Sent(topic) for topic in CROWD[:FEW]]), 0.0) == []
    crowd = rows_of([Sent(topic) for topic in CROWD])
    assert door.absent(crowd, 0.0) is None
    assert ends(lambda: door.absent(crowd, 0.0) is None)
    assert len(OsFiles(tmp_path).list("topics")) >= len(CROWD) - FEW
    sink.close()


def test_a_crowd_that_cannot_be_made_is_accepted_all_the_same(tmp_path: Path) -> None:
    """Its rows may be due in a year, when the disk has room again."""
    files = CountedFiles(tmp_path)
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS)
    files.refuses = True
    assert sink.topics.absent(CROWD, 0.0) is None
    assert ends(lambda: sink.topics.coming > 0)
    assert sink.topics.absent(CROWD, WAIT_S + 0.1) == []
    files.refuses = False
    assert not sink.deliver(rows_of([Sent(topic) for topic in CROWD])).codes.any()
    sink.close()
