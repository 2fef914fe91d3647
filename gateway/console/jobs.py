"""Jobs: cancels and redrives of many messages, how far they are, and a way to stop them."""

from __future__ import annotations

from ..endpoint import RouteCall
from ..jobs import JobReport
from ..requests import Reply
from ..v1.joblist import job_of, jobs_of, stopped_job
from .acting import ActionBody
from .parts import PagePart, PartsQuery, page
from .rendering import address, redirect


class JobForm(PartsQuery, forbid_unknown_fields=True):
    id: str = ""


async def jobs(call: RouteCall[PartsQuery, None]) -> Reply:
    async def reports() -> list[JobReport]:
        return [job.report() for job in jobs_of(call.services)]

    parts = {"jobs": PagePart("jobs/list.html", None, reports, live=True)}
    return await page(call, "jobs", "jobs.html", parts)


async def job(call: RouteCall[JobForm, None]) -> Reply:
    """A job, and what it has done; it is asked for again as long as it runs."""
    asked = job_of(call.services, call.query.id)

    async def report() -> JobReport:
        return asked.report()

    running = asked.ended_ms is None
    parts = {"job": PagePart("jobs/job.html", None, report, live=running)}
    return await page(call, "jobs", "job.html", parts, form=call.query)


async def stop(call: RouteCall[JobForm, ActionBody]) -> Reply:
    """Stop a job. What it has done stays done, and it can be begun again."""
    report = await stopped_job(call.services, call.query.id)
    return redirect(address("/job", id=report.id))
