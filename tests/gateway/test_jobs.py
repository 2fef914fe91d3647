"""Jobs: bounded in number, stopped between two steps, with a summary that is always true."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwheel.gateway.jobs import GatewayJob, Jobs
from slotwheel.gateway.services import Services
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.rights import Operation
from slotwheel.wheel.errors import NodeUnreachable, Overloaded
from support.securing import EXAMPLE, parsed
from support.waiting import eventually


class Steps:
    """Work of three steps, each of which waits until it is allowed."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.done = 0
        self.job = GatewayJob("steps", 3, self.summary)

    def summary(self) -> dict[str, Any]:
        return {"done": self.done, "complete": self.done == 3}

    def work(self, job: GatewayJob) -> None:
        while self.done < 3 and not job.stopped():
            self.allowed.acquire()
            self.done += 1
            job.advance(1)


def test_a_job_runs_to_its_end() -> None:
    jobs, steps = Jobs(), Steps()
    jobs.start(steps.job, steps.work)
    assert steps.job.report().state == "running"
    steps.allowed.release(3)
    assert steps.job.wait(60)
    report = steps.job.report()
    assert (report.state, report.done, report.total) == ("done", 3, 3)
    assert jobs.find(steps.job.id) is steps.job


def test_a_stopped_job_says_what_it_has_done() -> None:
    jobs, steps = Jobs(), Steps()
    jobs.start(steps.job, steps.work)
    steps.allowed.release()
    eventually(lambda: steps.done == 1)
    steps.job.stop()
    steps.allowed.release()
    assert steps.job.wait(60)
    report = steps.job.report()
    assert (report.state, report.summary) == ("cancelled", {"done": 2, "complete": False})


def test_a_job_that_was_complete_before_it_was_stopped_is_done() -> None:
    jobs, steps = Jobs(), Steps()
    steps.allowed.release(3)
    jobs.start(steps.job, steps.work)
    assert steps.job.wait(60)
    steps.job.stop()
    assert steps.job.report().state == "done"


def test_a_failure_is_reported_with_what_was_done() -> None:
    def fail(job: GatewayJob) -> None:
        job.advance(1)
        raise NodeUnreachable("no node", remedy="Start one")

    jobs, job = Jobs(), GatewayJob("fails", 3, dict)
    jobs.start(job, fail)
    assert job.wait(60)
    report = job.report()
    assert (report.state, report.done) == ("failed", 1)
    assert report.error is not None
    assert (report.error.error_code, report.error.message) == (503, "no node")


def test_few_run_and_few_are_kept() -> None:
    jobs = Jobs(running_max=2, kept_max=3)
    running = [Steps(), Steps()]
    for one in running:
        jobs.start(one.job, one.work)
    with pytest.raises(Overloaded, match="jobs are running"):
        jobs.start(Steps().job, lambda _: None)
    for one in running:
        one.allowed.release(3)
        assert one.job.wait(60)
    later = []
    for _ in range(4):
        job = GatewayJob("short", 0, dict)
        jobs.start(job, lambda _: None)
        assert job.wait(60)
        later.append(job)
    assert jobs.every() == [later[3], later[2], later[1]]
    assert jobs.find(running[0].job.id) is None


def test_a_job_ends_when_its_caller_loses_a_topic_and_goes_on_when_it_gets_one() -> None:
    file = EXAMPLE.replace('"token:billing" = ["orders"]', '"token:billing" = ["canceller"]')
    authenticator = Authenticator(parsed(file))
    caller = authenticator.authenticate(IdentityProof.of((), "swt_billing"))
    services = cast("Services", SimpleNamespace(identity=caller, authenticator=authenticator))
    check = Services.demand_again(services, Operation.CANCEL)
    steps = Steps()
    steps.job = GatewayJob("steps", 3, steps.summary, caller.principal, check)
    jobs = Jobs()
    jobs.start(steps.job, steps.work)
    authenticator.change(parsed(file.replace('cancel = ["', 'cancel = ["new", "')))
    steps.allowed.release()
    eventually(lambda: steps.done == 1)
    authenticator.change(parsed(file.replace('cancel = ["orders-*"]', 'cancel = ["orders-eu"]')))
    steps.allowed.release()
    assert steps.job.wait(60)
    report = steps.job.report()
    assert (report.state, report.done) == ("failed", 2)
    assert report.error is not None
    assert (report.error.error_code, report.error.code) == (403, "forbidden")
    # Who is no member any more has lost it as well.
    authenticator.change(parsed(EXAMPLE.replace('"token:billing" = ["orders"]', "")))
    assert GatewayJob("late", 1, dict, caller.principal, check).stopped()
