"""A job over a fleet: one at the gateway of each wheel, summed.

Rules
- The counts stay true whatever happens: of a wheel that does not answer any more the last ones
  that it told count, and the job is not complete. Running it again does no harm.
- Stopping it stops the jobs of all wheels.
- What one wheel refuses, or has forgotten as its gateway was started again, ends the job of this
  wheel alone. Otherwise those of the others would go on, and nobody could stop them.
- A job whose beginning was not answered in time may run, and its wheel is named as missing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from typing import Any

from ...wheel.errors import NodeUnreachable
from ..errors import HttpError
from ..jobs import JobReport
from .asking import WheelGateways, problem_of

_LOOK_S = 0.2
_GONE_S = 15.0
"""A wheel that was silent for so long, s, is not waited for any more."""


class FleetJob:
    """The job that ``POST path`` with ``body`` begins at each wheel ``names``, for topics of the
    patterns ``topics``; None: all."""

    def __init__(
        self,
        gateways: WheelGateways,
        names: Sequence[str],
        path: str,
        body: Any,
        topics: Sequence[str] | None,
    ) -> None:
        self._gateways = gateways
        self._names = names
        self._path = path
        self._body = body
        self._topics = topics
        self._reports: dict[str, JobReport] = {}
        self._missing: dict[str, str] = {}
        self._ended = False

    def summaries(self) -> dict[str, dict[str, Any]]:
        """What the job of each wheel tells that has begun one."""
        return {name: report.summary for name, report in list(self._reports.items())}

    def problems(self) -> list[str]:
        """Lines that name the wheels whose jobs are missing, and what the others tell."""
        told = self.summaries()
        return [
            *list(self._missing.values()),
            *(f"{name}: {text}" for name in told for text in told[name].get("problems", ())),
        ]

    def summary(self) -> dict[str, Any]:
        """The sum of what the wheels' jobs tell; ``problems`` name those that are missing."""
        told = self.summaries()
        summary = joined_summary(told.values())
        summary["problems"] = self.problems()
        every = self._ended and not self._missing
        summary["complete"] = every and all(each.get("complete") for each in told.values())
        return summary

    def run(self, progress: Callable[[int], None], stopped: Callable[[], bool]) -> None:
        """Begin a job at each wheel, and wait for their ends. A wheel that does not answer, or
        whose job fails, is named in ``problems``."""
        for name, answer in self._each(
            "POST", dict.fromkeys(self._names, self._path), self._body
        ).items():
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
    ) -> dict[str, JobReport | NodeUnreachable]:
        calls = {
            name: self._gateways.submit(
                name,
                method,
                path,
                JobReport,
                body=body,
                topics=self._topics,
                kept_by_one=method != "POST",
                busy=method == "POST",
            )
            for name, path in paths.items()
        }
        wait(calls.values())
        answers: dict[str, JobReport | NodeUnreachable] = {}
        for name, call in calls.items():
            try:
                answers[name] = call.result()
            except NodeUnreachable as error:
                answers[name] = error
            except HttpError as error:
                text = f"its gateway answers {error.status}: {error.message}"
                answers[name] = NodeUnreachable(text)
        return answers


def joined_summary(summaries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Numbers and counts by name are summed, truths hold if they hold for all, lists are one."""
    joined: dict[str, Any] = {}
    for summary in summaries:
        for name, value in summary.items():
            if name not in joined:
                joined[name] = value
            elif isinstance(value, bool):
                joined[name] = joined[name] and value
            elif isinstance(value, dict):
                joined[name] = dict(Counter(joined[name]) + Counter(value))
            else:
                joined[name] = joined[name] + value
    return joined
