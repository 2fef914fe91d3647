"""Progress of a proof: its phase, and how many of Spark's tasks are done.

On a terminal only, on standard error. Spark is queried in a thread of its own: a call to Java may
take a while, and the display would stand still. Tasks are those of the stages that began since
the phase changed; those of later stages are not known yet.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from rich.console import Console

from .progress import bars

_EVERY_S = 0.3


class SparkProgress:
    """Progress that is shown while the ``with`` block runs, and then removed."""

    def __init__(self, console: Console | None = None) -> None:
        self._shown = bars("count", "tasks", "elapsed", console=console)
        self._line = self._shown.add_task("starting Spark", total=None)
        self._lock = threading.Lock()
        self._stages: dict[int, tuple[int, int]] = {}
        """Tasks that are done, and all tasks, of each stage of this phase."""
        self._last_earlier_stage = -1
        """The last stage of earlier phases; -1: none."""
        self._ended = threading.Event()

    def phase(self, text: str) -> None:
        with self._lock:
            self._last_earlier_stage = max(self._stages, default=self._last_earlier_stage)
            self._stages = {}
        self._shown.reset(self._line, description=text, total=None)

    def watch(self, tracker: Any) -> None:
        """Follow a running Spark. ``tracker``: its ``statusTracker()``."""
        if not self._shown.disable:
            threading.Thread(target=self._watch, args=(tracker,), daemon=True).start()

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._shown.stop()

    def _watch(self, tracker: Any) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                self._update(tracker)
            except Exception:
                return  # Spark has ended; its caller reports that

    def _update(self, tracker: Any) -> None:
        active = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
        with self._lock:
            for number, (_, total) in self._stages.items():
                if number not in active:
                    self._stages[number] = total, total
            for number, stage in active.items():
                if stage is not None and number > self._last_earlier_stage:
                    self._stages[number] = stage.numCompletedTasks, stage.numTasks
            done = sum(part[0] for part in self._stages.values())
            total = sum(part[1] for part in self._stages.values())
        if total:
            self._shown.update(self._line, completed=done, total=total)
