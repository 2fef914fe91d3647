"""A bulk cancel over wheels is the sum of their jobs, and names those that it lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slotwheel.client.httpconnection import GatewayAccess
from slotwheel.gateway.front import jobs
from slotwheel.gateway.front.asking import WheelGateways
from slotwheel.gateway.front.jobs import FleetJob
from support.stubgateway import stub_gateway
from support.waiting import eventually


class WheelJobs:
    """The one job of a wheel's gateway, which cancels ``step`` of ``total`` messages each time that
    it is looked at. ``forgets_at``: so many cancelled, and the gateway was started again."""

    def __init__(
        self, total: int, step: int = 10, forgets_at: int | None = None, refusal: int = 0
    ) -> None:
        self.total, self.step, self.forgets_at = total, step, forgets_at
        self.refusal = refusal
        self.done = 0
        self.stopped = threading.Event()

    def __call__(self, method: str, path: str, _: object) -> tuple[int, Any]:
        if method == "POST":
            if self.refusal:
                return self.refusal, {"message": "as many jobs are running as may"}
            return 202, self.report()
        if self.forgets_at is not None and self.done >= self.forgets_at:
            return 404, {"message": "no such job"}
        assert path == "/v1/jobs/17"
        if method == "DELETE":
            self.stopped.set()
        else:
            self.done = min(self.total, self.done + self.step)
        return 200, self.report()

    def report(self) -> dict[str, Any]:
        complete = self.done == self.total
        ended = complete or self.stopped.is_set()
        return {
            "id": "17",
            "kind": "cancellation",
            "state": "done" if complete else "cancelled" if ended else "running",
            "created_ms": 1,
            "ended_ms": 2 if ended else None,
            "done": self.done,
            "total": self.total,
            "summary": {
                "answers": {"cancelled": self.done},
                "unanswered": 0,
                "complete": complete,
                "problems": [],
            },
            "error": None,
        }


@contextlib.contextmanager
def cancellation_of(**wheels: WheelJobs) -> Iterator[FleetJob]:
    with contextlib.ExitStack() as stack:
        addresses = {
            name: [stack.enter_context(stub_gateway(wheel))] for name, wheel in wheels.items()
        }
        gateways = WheelGateways(tuple(wheels), addresses, GatewayAccess(), 1.0)
        stack.callback(gateways.close)
        yield FleetJob(gateways, tuple(wheels), "/v1/cancellations", {}, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_LOOK_S", 0.01)
    monkeypatch.setattr(jobs, "_GONE_S", 0.3)


def answers_of(work: FleetJob) -> dict[str, int]:
    answers: dict[str, int] = work.summary()["answers"]
    return answers


def test_the_jobs_are_summed() -> None:
    steps: list[int] = []
    with cancellation_of(a=WheelJobs(35), b=WheelJobs(50), c=WheelJobs(0)) as work:
        work.run(steps.append, lambda: False)
        assert answers_of(work) == {"cancelled": 85}
        summary = work.summary()
        assert (summary["complete"], summary["problems"], sum(steps)) == (True, [], 85)


def test_a_wheel_that_loses_its_job_is_named_and_the_others_end() -> None:
    with cancellation_of(a=WheelJobs(35), b=WheelJobs(50, forgets_at=20)) as work:
        work.run(lambda _: None, lambda: False)
        assert answers_of(work) == {"cancelled": 55}, "the last counts that it told"
        summary = work.summary()
        assert not summary["complete"]
        names = [text.partition(":")[0] for text in summary["problems"]]
        assert names == ["the wheel b is missing"]


@pytest.mark.parametrize("status", [422, 429, 503])
def test_a_wheel_that_begins_no_job_is_named_and_the_others_end(status: int) -> None:
    with cancellation_of(a=WheelJobs(35), b=WheelJobs(50, refusal=status)) as work:
        work.run(lambda _: None, lambda: False)
        assert answers_of(work) == {"cancelled": 35}
        summary = work.summary()
        assert not summary["complete"]
        text = f"the wheel b is missing: its gateway answers {status}"
        assert summary["problems"][0].startswith(text)


def test_stopping_it_stops_the_jobs_of_all_wheels() -> None:
    wheels = {name: WheelJobs(1_000_000, step=1) for name in "abc"}
    stop = threading.Event()
    with cancellation_of(**wheels) as work:
        thread = threading.Thread(target=work.run, args=(lambda _: None, stop.is_set))
        thread.start()
        eventually(lambda: all(wheel.done for wheel in wheels.values()))
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
        assert all(wheel.stopped.is_set() for wheel in wheels.values())
        assert not work.summary()["complete"]
        assert answers_of(work)["cancelled"] == sum(wheel.done for wheel in wheels.values())
