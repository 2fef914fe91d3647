"""The whole way out without a broker: wheel, hand and embedded topics."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answers
from support.handrig import Rig
from support.nodeprocess import topic_rows


def test_a_chunk_whose_answer_was_lost_is_repeated_and_nothing_else(tmp_path: Path) -> None:
    lost: list[int] = []

    class LosesOneAnswer(EmbeddedSink):
        def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
            answers = super().deliver(rows, trial=trial)
            if not lost:
                lost.append(rows.num_rows)
                raise ConnectionError("the answer was lost")
            return answers

    with closing(
        Rig(tmp_path, sink=lambda rig: LosesOneAnswer(rig.files, rig.wheel.mint, rig.clock))
    ) as rig:
        rig.send([("t", b"%d" % n) for n in range(100)])
        rig.start()
        rig.wait(lambda: len(rig.events.late) == 100)
        wanted = [b"%d" % n for n in range(100)]
        values = [row["value"] for row in topic_rows(tmp_path, "t")]
        assert values == wanted[: lost[0]] + wanted
        assert rig.events.count("delivery-error") == 1
