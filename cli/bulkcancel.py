"""The course of a bulk cancel: count, ask, cancel, report.

Nothing is cancelled before the user has seen the number of messages and has confirmed it. Whatever
stops the command, it reports the node's answers so far; it can be run again to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..client.cancels import UNKNOWN, UNREACHABLE
from ..reading.search.followup import Cancellation
from ..reading.search.pending import PendingReader
from ..reading.search.query import Query
from ..wheel.texts import counted
from .invocation import Exit
from .progress import progress_bar
from .reaching import Reached, connected
from .resending import confirmed, interruptible
from .shared import print_json
from .terminal import echo


@dataclass(frozen=True, slots=True)
class BulkCancel:
    """A bulk cancel. ``yes``: it does not ask."""

    address: Reached
    timeout: timedelta
    yes: bool
    as_json: bool

    def run(self, reader: PendingReader, query: Query) -> int:
        """Cancel the messages that fulfil the query. The exit code is 1 unless the node could
        answer for every match. Errors: ``click.UsageError`` when there is nobody to ask."""
        with connected(self.address, self.timeout) as client:
            cancellation = Cancellation(reader, client.cancel, query)
            matches = cancellation.count().total
            if not self.as_json:
                echo(f"{counted(matches, 'message')} to cancel", err=True)
            if matches and not confirmed("cancel", yes=self.yes):
                return Exit.FAILED
            client.status()  # without a node the command ends here, with an error and no report
            try:
                with (
                    interruptible(),
                    progress_bar("cancelling", matches, "count", "elapsed") as advance,
                ):
                    cancellation.run(advance)
            finally:
                self._report(cancellation, matches)
        answers = cancellation.answers
        failed = answers[UNKNOWN] or answers[UNREACHABLE] or not cancellation.complete
        return Exit.FAILED if failed else Exit.DONE

    def _report(self, cancellation: Cancellation, matches: int) -> None:
        if self.as_json:
            print_json(_fields(cancellation, matches))
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


def _fields(cancellation: Cancellation, matches: int) -> dict[str, Any]:
    return {
        "counted": matches,
        "asked": cancellation.asked,
        "answers": dict(cancellation.answers),
        "unanswered": cancellation.unanswered,
        "complete": cancellation.complete,
        "problems": [f"{problem.file}: {problem.text}" for problem in cancellation.problems],
    }
