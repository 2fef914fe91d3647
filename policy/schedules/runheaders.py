"""The headers of a scheduled message: its template's, and those that say which run it is.

They are a format (docs/schedules.md): receivers in any language read them. A receiver that got two
messages of one schedule knows by the number that they are two runs, and by a gap that one is still
on its way.
"""

from __future__ import annotations

from ...wheel.expiry import EXPIRES_HEADER
from ...wheel.names import NAME_HEADER
from ...wheel.rows import Header
from .missed import ScheduledRun
from .spec import Schedule

SCHEDULE_HEADER = "slotwheel-schedule"
"""The name of the schedule, UTF-8."""
RUN_HEADER = "slotwheel-schedule-run"
"""The number of the run, from 1 on, in decimal digits, as in all that follow."""
NOMINAL_HEADER = "slotwheel-schedule-due-ms"
"""When the schedule says that it is due, ms since the epoch. ``slotwheel-due-ms`` has the jitter,
too."""
PASSED_OVER_HEADER = "slotwheel-schedule-missed"
"""How many runs before it were missed and became no messages."""


def run_headers(schedule: Schedule, run: ScheduledRun) -> list[Header]:
    """The headers with which the message of a run is stored."""
    template = schedule.template
    headers = [
        *template.headers,
        (SCHEDULE_HEADER, schedule.name.encode()),
        (RUN_HEADER, b"%d" % run.number),
        (NOMINAL_HEADER, b"%d" % run.nominal_ms),
        (PASSED_OVER_HEADER, b"%d" % run.passed_over),
    ]
    if template.ttl_ms is not None:
        headers.append((EXPIRES_HEADER, b"%d" % (run.due_ms + template.ttl_ms)))
    if template.name is not None:
        headers.append((NAME_HEADER, template.name.encode()))
    return headers
