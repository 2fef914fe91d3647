"""Jobs of this gateway: looked at, and stopped."""

from __future__ import annotations

from ...security.rights import Operation, Right
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError
from ..jobs import GatewayJob, JobReport, JobReports
from ..requests import Reply, as_json
from ..services import Services

_STOP_S = 5.0


async def list_jobs(call: RouteCall[NoQuery, None]) -> Reply:
    """List the jobs of this gateway, the newest first: those that the caller has begun, and for an
    administrator all. Those that have ended are kept for a day, the last hundred of them."""
    return as_json(JobReports([job.report() for job in jobs_of(call.services)]))


async def get_job(call: RouteCall[NoQuery, None]) -> Reply:
    """Show a job: its state, how far it has come, and what it has done."""
    return as_json(job_of(call.services, call.path["id"]).report())


async def stop_job(call: RouteCall[NoQuery, None]) -> Reply:
    """Stop a job. What it has done stays done. It ends with its next step, for which the answer
    waits a moment: it may still be running."""
    return as_json(await stopped_job(call.services, call.path["id"]))


async def stopped_job(services: Services, job_id: str) -> JobReport:
    """Stop a job, and wait ``_STOP_S`` at most for its end. Errors: as of ``job_of``."""
    job = job_of(services, job_id)
    job.stop()
    await services.run(job.wait, _STOP_S)
    return job.report()


def jobs_of(services: Services) -> list[GatewayJob]:
    """The jobs that the caller has begun, for an administrator all; the newest first."""
    return [job for job in services.jobs.every() if _is_visible(services, job)]


def _is_visible(services: Services, job: GatewayJob) -> bool:
    identity = services.identity
    rights = identity.rights
    is_admin = rights.is_unlimited or Right.ADMIN in rights.flags
    return is_admin or job.principal == identity.principal


def job_of(services: Services, job_id: str) -> GatewayJob:
    """A job that the caller may see. Errors: ``HttpError`` 404."""
    job = services.jobs.find(job_id)
    if job is None or not _is_visible(services, job):
        raise HttpError(
            404,
            "no such job",
            place="path id",
            got=job_id,
            remedy="/v1/jobs lists them; each gateway has its own, and forgets them when it ends",
        )
    return job


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(Operation.JOBS, "GET", "/v1/jobs", list_jobs, {200: JobReports}, name="listJobs"),
    endpoint(Operation.JOBS, "GET", "/v1/jobs/{id}", get_job, {200: JobReport}, name="getJob"),
    endpoint(Operation.JOBS, "DELETE", "/v1/jobs/{id}", stop_job, {200: JobReport}, name="stopJob"),
]
