"""A node whose sink lies: of some messages it says that they are in their topic, and they are not.

    python -m support.lossynode node --data DIR …

Everything else is the node as it is. It believes its sink, as it must: the mark passes the message,
and no part of the wheel will ever send it again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.cli.main import main
from slotwheel.delivery.embedded import EmbeddedSink
from slotwheel.delivery.sink import Answer, Answers
from support.nodeprocess import NodeProcess

LOST = b"this one is lost"
_deliver = EmbeddedSink.deliver


def lossy(self: EmbeddedSink, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
    """Keep to oneself what has that value, and answer for it."""
    lost = pc.fill_null(pc.equal(rows.column("value"), pa.scalar(LOST, pa.binary())), False)
    if not pc.any(lost).as_py():
        return _deliver(self, rows, trial=trial)
    answers = _deliver(self, rows.filter(pc.invert(lost)), trial=trial)
    assert set(answers.codes.tolist()) <= {int(Answer.ACCEPTED)}
    return Answers.same(rows.num_rows, Answer.ACCEPTED)


class LossyNode(NodeProcess):
    def command(self) -> list[str]:
        python, module, _, *rest = super().command()
        self._variables["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        )
        return [python, module, "support.lossynode", *rest]


if __name__ == "__main__":
    EmbeddedSink.deliver = lossy  # type: ignore[method-assign]
    main(sys.argv[1:])
