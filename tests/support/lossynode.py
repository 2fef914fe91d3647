"""A node whose sink lies: of some messages it says that they are in their topic, and they are not.

    python -m support.lossynode node --data DIR …

Everything else is the node as it is. It believes its sink, as it must: the mark passes the message,
and no part of the wheel will ever send it again.
"""

from __future__ import annotations

import os
import sys
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
_Deliver = Callable[..., Answers]


def _lossy(deliver: _Deliver) -> _Deliver:
    """Keep to oneself what has that value, and answer for it."""

    def instead(self: Sink, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        lost = pc.fill_null(pc.equal(rows.column("value"), pa.scalar(LOST, pa.binary())), False)
        if not pc.any(lost).as_py():
            return deliver(self, rows, trial=trial)
        answers = deliver(self, rows.filter(pc.invert(lost)), trial=trial)
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
