"""The course of a bulk cancel: count, ask, cancel, report.

Nothing is cancelled before the user has seen how many messages it is about and confirmed. Whatever
stops the command, it says what the node has answered by then; it is run again to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..client import Client
from ..reading.search.followup import Cancellation
from ..reading.search.pending import PendingReader
from ..reading.search.query import Query
from ..wheel.texts import counted
from .invocation import Exit
from .progress import progress_bar
from .resending import confirmed, interruptible
from .shared import print_json
from .terminal import echo

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BulkCancel:
    """What a bulk cancel is told by the command line."""

    address: str
    timeout: timedelta
    yes: bool
    as_json: bool

    def run(self, reader: PendingReader, query: Query) -> int:
        """Cancel what fulfils the query. The exit code is 1 unless the node could answer for every
        match. Errors: ``click.UsageError`` when there is nobody to ask."""
        client = Client(self.address, timeout_s=self.timeout.total_seconds())
        with client:
            cancellation = Cancellation(reader, client.cancel, query)
            found = cancellation.count().total
            if not self.as_json:
                echo(f"{counted(found, 'message')} to cancel", err=True)
            if found and not self.yes and not confirmed("cancel"):
                echo("Nothing was cancelled.", err=True)
                return Exit.FAILED
            client.status()  # a node that is not there is an error before anything is reported
            try:
                with interruptible(), progress_bar("cancelling", found, "count", "elapsed") as step:
                    cancellation.run(step)
            finally:
                self._report(cancellation, found)
        failed = cancellation.answers[_UNKNOWN] or not cancellation.complete
        return Exit.FAILED if failed else Exit.DONE

    def _report(self, cancellation: Cancellation, found: int) -> None:
        if self.as_json:
            print_json(_fields(cancellation, found))
            return
        for answer, count in sorted(cancellation.answers.items()):
            echo(f"{count:,}\t{answer}")
        if not cancellation.answers:
            echo("nothing was cancelled")
        if cancellation.unanswered:
            echo(f"{cancellation.unanswered:,}\tasked, and no answer received")
        for problem in cancellation.problems:
            echo(f"problem: {problem}", err=True)
        if not cancellation.complete:
            echo("not complete: run it again to go on", err=True)


def _fields(cancellation: Cancellation, found: int) -> dict[str, Any]:
    return {
        "counted": found,
        "asked": cancellation.asked,
        "answers": dict(cancellation.answers),
        "unanswered": cancellation.unanswered,
        "complete": cancellation.complete,
        "problems": [f"{one.file}: {one.text}" for one in cancellation.problems],
    }
