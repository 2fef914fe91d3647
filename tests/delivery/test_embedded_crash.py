"""Embedded topics and the power cut: what was accepted survives, whatever step it came at."""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random

import pytest

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.reading.topicreader import TopicReader, walk
from support.crashfs import MODES, CrashFiles, Mode, PowerCut
from support.deliveries import MINT, NOW_MS, Sent, rows_of

CHUNKS = [
    [("a", b"0"), ("a", b"1")],
    [("b", b"0"), ("a", b"2"), ("b", b"1")],
    [("a", b"3")],
    [("c", b"0"), ("b", b"2"), ("a", b"4")],
    [("a", b"5"), ("a", b"6"), ("a", b"7")],
]
SEGMENT_BYTES = 2500
"""Small enough that the scenario rolls segments."""

Rows = dict[str, list[bytes]]


def deliver(files: CrashFiles, accepted: Rows, offered: Rows, chunks: range) -> None:
    """Deliver chunks until the power goes; keeps book of what was offered and accepted."""
    # One worker: the steps of a run must come in the same order each time.
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS, segment_bytes=SEGMENT_BYTES, threads=1)
    try:
        for number in chunks:
            chunk = CHUNKS[number]
            if number % 2:  # of the others each new topic is made with its first row
                made_ahead(sink, [topic for topic, _ in chunk])
            for topic, value in chunk:
                offered[topic].append(value)
            answers = sink.deliver(rows_of([Sent(t, v) for t, v in chunk]))
            for (topic, value), code in zip(chunk, answers.codes.tolist(), strict=True):
                if code == Answer.ACCEPTED:
                    accepted[topic].append(value)
    finally:
        sink.topics.close()
        sink._pool.shutdown()


def made_ahead(sink: EmbeddedSink, topics: list[str]) -> None:
    """Wait for it, as the steps of a run must come in the same order each time."""
    sink.expect(topics)
    while sink.topics.coming:
        time.sleep(0.0005)


def read(files: CrashFiles, topic: str) -> list[bytes]:
    reader = TopicReader(files, topic)
    found: list[bytes] = []
    for batch in reader.batches():
        assert batch.column("position")[0].as_py() == len(found)
        found += batch.column("value").to_pylist()
    reader.close()
    return found


def steps_of_scenario() -> int:
    files = CrashFiles()
    deliver(files, defaultdict(list), defaultdict(list), range(len(CHUNKS)))
    return files.steps.count


@pytest.mark.parametrize("mode", MODES)
def test_accepted_rows_survive_a_cut_at_every_step(mode: Mode) -> None:
    points = steps_of_scenario()
    assert points > 60
    seeds = range(3) if mode == "random" else range(1)
    for point in range(1, points + 1):
        for seed in seeds:
            check_cut_at(point, mode, seed)


def check_cut_at(point: int, mode: Mode, seed: int) -> None:
    accepted: Rows = defaultdict(list)
    offered: Rows = defaultdict(list)
    files = CrashFiles(stop_at=point)
    with pytest.raises(PowerCut):
        deliver(files, accepted, offered, range(len(CHUNKS)))
    left = files.survivors(mode, Random(seed))
    # A reader that comes before the node sees whole blocks only, and all that was accepted.
    for topic in "abc":
        found = read(left, topic)
        assert found == offered[topic][: len(found)]
        assert len(found) >= len(accepted[topic]), (point, mode, seed)
    # The next node recovers, and what it writes follows on without a gap.
    again = EmbeddedSink(left, MINT, lambda: NOW_MS, segment_bytes=SEGMENT_BYTES, threads=1)
    again.recover_all()
    before = {topic: read(left, topic) for topic in "abc"}
    answers = again.deliver(rows_of([Sent(topic, b"new") for topic in "abc"]))
    assert (answers.codes == Answer.ACCEPTED).all()
    again.close()
    for topic in "abc":
        assert len(before[topic]) >= len(accepted[topic])
        assert read(left, topic) == [*before[topic], b"new"]
        assert sum(block.rows for _, block in walk(left, topic)) == len(before[topic]) + 1
