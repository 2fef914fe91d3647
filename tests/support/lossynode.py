"""A node whose sink lies: of some messages it says that they are in their topic, and they are not;
others it sends twice, or late.

    python -m support.lossynode node --data DIR …

Everything else is the node as it is. It believes its sink, as it must: the mark passes the message,
and no part of the wheel will ever send it again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.cli.main import main
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.sink import Answer, Answers, Sink
from support.nodeprocess import NodeProcess

LOST = b"this one is lost"
TWICE = b"this one comes twice"
SLOW, SLOW_S = b"this one is slow", 5.0
_Deliver = Callable[..., Answers]


def _lossy(deliver: _Deliver) -> _Deliver:
    """Treat what has these values accordingly."""

    def having(rows: pa.RecordBatch, value: bytes) -> pa.BooleanArray:
        return pc.fill_null(pc.equal(rows.column("value"), pa.scalar(value, pa.binary())), False)

    def instead(self: Sink, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        lost, twice = having(rows, LOST), having(rows, TWICE)
        if pc.any(having(rows, SLOW)).as_py():
            time.sleep(SLOW_S)
        if not pc.any(pc.or_(lost, twice)).as_py():
            return deliver(self, rows, trial=trial)
        for part in (rows.filter(pc.invert(lost)), rows.filter(twice)):
            if part.num_rows:
                answers = deliver(self, part, trial=trial)
                assert set(answers.codes.tolist()) <= {int(Answer.ACCEPTED)}
        return Answers.same(rows.num_rows, Answer.ACCEPTED)

    return instead


class LossyNode(NodeProcess):
    def command(self) -> list[str]:
        python, module, _, *rest = super().command()
        self._variables["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        )
        return [python, module, "support.lossynode", *rest]


if __name__ == "__main__":
    for sink in (EmbeddedSink, KafkaSink):
        sink.deliver = _lossy(sink.deliver)  # type: ignore[method-assign]
    main(sys.argv[1:])
