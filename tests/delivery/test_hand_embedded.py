"""The whole way out without a broker: wheel, hand and embedded topics."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.hand import Hand
from slotwheel.delivery.semantics import AtLeastOnce
from slotwheel.delivery.sink import Answers
from slotwheel.reading.topicreader import TopicReader, ids
from slotwheel.wheel.ids import MessageId
from support.handrig import Rig
from support.wheels import master_of


def test_all_arrive_once_in_order_and_none_early(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sink = EmbeddedSink(rig.files, rig.wheel.mint, rig.clock)
    hand = Hand(
        master_of(rig.wheel),
        AtLeastOnce(sink, DeadLetters(sink, None)),
        rig.clock,
        events=rig.events,
    )
    stop = threading.Event()
    thread = threading.Thread(target=hand.run, args=(stop,))
    thread.start()
    rows = [(f"t{n % 7}", b"%d" % n) for n in range(20_000)]
    due = np.random.default_rng(3).integers(0, 1500, len(rows))
    for start in range(0, len(rows), 1000):
        rig.send(rows[start : start + 1000], due[start : start + 1000].tolist())
    rig.wait(lambda: len(rig.events.late) == len(rows), 30)
    stop.set()
    thread.join()
    sink.close()
    assert min(rig.events.late) >= 0
    seen: list[bytes] = []
    for topic in range(7):
        reader = TopicReader(rig.files, f"t{topic}")
        table = pa.Table.from_batches(list(reader.batches()))
        reader.close()
        times = {name: table[name].cast(pa.int64()).to_numpy() for name in ("due", "delivered")}
        assert (times["delivered"] >= times["due"]).all()
        seen += table["value"].to_pylist()
        for batch in table.to_batches()[:2]:
            assert all(rig.wheel.mint.genuine(MessageId.parse(id_)) for id_ in ids(batch))
    assert sorted(seen) == sorted(value for _, value in rows)
    rig.close()


def test_a_chunk_whose_answer_was_lost_is_repeated_and_nothing_else(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sink = EmbeddedSink(rig.files, rig.wheel.mint, rig.clock)
    deliver = sink.deliver
    lost: list[int] = []

    def lose_one_answer(rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        answers = deliver(rows, trial=trial)
        if not lost:
            lost.append(rows.num_rows)
            raise ConnectionError("the answer was lost")
        return answers

    sink.deliver = lose_one_answer  # type: ignore[method-assign]
    hand = Hand(
        master_of(rig.wheel),
        AtLeastOnce(sink, DeadLetters(sink, None)),
        rig.clock,
        events=rig.events,
    )
    rig.send([("t", b"%d" % n) for n in range(100)])
    stop = threading.Event()
    thread = threading.Thread(target=hand.run, args=(stop,))
    thread.start()
    rig.wait(lambda: len(rig.events.late) == 100)
    stop.set()
    thread.join()
    reader = TopicReader(rig.files, "t")
    values = [value for batch in reader.batches() for value in batch["value"].to_pylist()]
    reader.close()
    wanted = [b"%d" % n for n in range(100)]
    assert values == wanted[: lost[0]] + wanted
    assert rig.events.count("delivery-error") == 1
    sink.close()
    rig.close()
