"""A bulk cancel over a fleet: a job at the gateway of each wheel, summed.

Rules
- The counts stay true whatever happens: of a wheel that does not answer any more the last ones
  that it told count, and the cancel is not complete. Running it again does no harm.
- Stopping it stops the jobs of all wheels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

import msgspec

from ...wheel.errors import NodeUnreachable, SlotwheelError
from ..jobs import JobReport
from ..v1.cancellations import Where
from .asking import WheelGateways, joined, problem_of

_LOOK_S = 0.2
_GONE_S = 15.0
"""A wheel that was silent for so long, s, is not waited for any more."""


class FleetCancellation:
    """A cancel of all messages that fulfil ``where``, of the topics of the patterns ``topics``."""

    def __init__(
        self,
        gateways: WheelGateways,
        names: Sequence[str],
        where: Where,
        topics: Sequence[str] | None,
    ) -> None:
        self._gateways = gateways
        self._names = names
        self._body = msgspec.to_builtins({"where": where})
        self._topics = topics
        self._reports: dict[str, JobReport] = {}
        self._missing: dict[str, str] = {}
        self._ended = False

    @property
    def answers(self) -> Counter[str]:
        """The number of messages with each answer."""
        total: Counter[str] = Counter()
        for report in self._reports.values():
            total.update(report.summary["answers"])
        return total

    @property
    def unanswered(self) -> int:
        """The number of messages whose cancel was sent and whose answer is not known."""
        return sum(report.summary["unanswered"] for report in self._reports.values())

    @property
    def problems(self) -> list[str]:
        told = [report.summary["problems"] for report in self._reports.values()]
        return [*self._missing.values(), *joined(told, self._reports)]

    @property
    def complete(self) -> bool:
        reports = self._reports.values()
        every = all(report.summary["complete"] for report in reports)
        return self._ended and every and not self._missing

    def run(self, progress: Callable[[int], None], stopped: Callable[[], bool]) -> None:
        """Begin a job at each wheel, and wait for their ends. Errors: ``HttpError``: the condition
        is at fault; that of a wheel's job."""
        begun = self._each("POST", dict.fromkeys(self._names, "/v1/cancellations"), self._body)
        for name, answer in begun.items():
            if isinstance(answer, JobReport):
                self._reports[name] = answer
            else:
                self._missing[name] = problem_of(name, answer)
        running = set(self._reports)
        heard = dict.fromkeys(running, time.monotonic())
        done, stops = 0, False
        while running:
            stops = stops or stopped()
            method = "DELETE" if stops else "GET"
            paths = {name: f"/v1/jobs/{self._reports[name].id}" for name in running}
            for name, answer in self._each(method, paths).items():
                if isinstance(answer, JobReport):
                    heard[name], self._reports[name] = time.monotonic(), answer
                    if answer.ended_ms is not None:
                        running.discard(name)
                elif time.monotonic() - heard[name] > _GONE_S:
                    self._missing[name] = problem_of(name, answer)
                    running.discard(name)
            now_done = sum(report.done for report in self._reports.values())
            progress(now_done - done)
            done = now_done
            if running:
                time.sleep(_LOOK_S)
        for name, report in self._reports.items():
            if report.error is not None:
                self._missing[name] = f"the wheel {name} failed: {report.error.message}"
        self._ended = True

    def _each(
        self, method: str, paths: dict[str, str], body: Any = None
    ) -> dict[str, JobReport | SlotwheelError]:
        calls = {
            name: self._gateways.submit(
                name, method, path, JobReport, body=body, topics=self._topics
            )
            for name, path in paths.items()
        }
        wait(calls.values())
        answers: dict[str, JobReport | SlotwheelError] = {}
        for name, call in calls.items():
            try:
                answers[name] = call.result()
            except NodeUnreachable as error:
                answers[name] = error
        return answers
