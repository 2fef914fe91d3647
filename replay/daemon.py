"""Starts the Python processes of Spark's tasks, on this machine alone.

    python -m slotwheel.replay.daemon pyspark.worker

Theory: Spark's own daemon forks a process for each task that runs at the same time, and each one
imports all that its task needs, which takes longer than a small task. This daemon imports it first,
so that a process has it from its first moment on.

Rules
- Importing may start no thread but those of libraries that are prepared for a fork, as NumPy's and
  pyarrow's allocators are: a process that is forked has none of its parent's threads, and would
  wait for ever for a lock that one of them held. pyarrow's pool begins with its first work.
- Only sessions that slotwheel starts use it. Those of a user have tasks that may need pandas.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark import daemon

from ..wheel.withoutpandas import hide_pandas

NEEDED = (
    "pyspark.worker",
    "slotwheel.replay.facts.scan",
    "slotwheel.replay.judging.ranges",
    "slotwheel.replay.source",
)


def main() -> None:
    hide_pandas()
    for name in NEEDED:
        import_module(name)
    gc.freeze()  # Spark looks for what can be freed behind each task: not among all this
    daemon.manager()


if __name__ == "__main__":
    main()
