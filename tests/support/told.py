"""What the scan of files says, without Spark, taken apart for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.reading.files import File
from slotwheel.reading.problems import Problem
from slotwheel.replay.facts.chunks import OrderChunk
from slotwheel.replay.facts.fact import FACT, Facts, Seen, decompress
from slotwheel.replay.facts.filescan import SCANNED_ARROW, TaskScan
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.facts.scheduled import RUNS, SCHEDULES
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.sparkaccount import TRACES


class Told:
    """What a scan said, taken apart."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.files: list[FileSummary] = []
        self.problems: list[Problem] = []
        self.chunks: list[OrderChunk] = []
        self.traces: list[str] = []
        self.scheduled: list[dict[str, Any]] = []
        packed: list[Facts] = [np.empty(0, FACT)]
        for batch in batches:
            assert batch.schema.equals(SCANNED_ARROW)
            for row in batch.to_pylist():
                if row["what"] == "facts":
                    packed.append(decompress(row["data"]))
                    assert len(packed[-1]) == row["count"]
                elif row["what"] == "file":
                    self.files.append(FileSummary.from_json(row["text"]))
                    assert (row["file"], row["count"]) == (
                        self.files[-1].number,
                        self.files[-1].rows,
                    )
                elif row["what"] in (RUNS, SCHEDULES):
                    self.scheduled.append(row)
                elif row["what"] == TRACES:
                    self.traces.append(row["text"])
                elif row["what"] == "problem":
                    self.problems.append(Problem.from_json(row["text"]))
                else:
                    self.chunks.append(OrderChunk.from_json(row["text"]))
        self.facts = np.concatenate(packed)

    def offsets(self, seen: Seen) -> list[int]:
        return sorted(self.facts[self.facts["seen"] == seen]["offset"].tolist())


def scan(files: Iterable[File], terms: GroupTerms) -> Told:
    task = TaskScan(terms)

    def batches() -> Iterable[pa.RecordBatch]:
        for file in files:
            yield from task.file(file)
        yield from task.end()

    return Told(batches())
