"""The course of a redrive on the command line: show, ask, send, report.

Nothing is sent before the user has seen the number of letters and has confirmed it.
"""

from __future__ import annotations

import json

from ...reading.letters.course import NOTES_DELETED, RedriveCourse
from ...reading.letters.letters import place_text
from ...wheel.errors import SlotwheelError
from ...wheel.texts import counted
from ..invocation import Exit
from ..progress import progress_bar
from ..resending import confirmed, interruptible
from ..shared import print_json
from ..terminal import echo

_TOPICS_SHOWN = 10


def redrive(course: RedriveCourse, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Send the letters that ``course`` has counted. ``yes``: it does not ask. Returns the exit
    code. Errors: those of the node, of Kafka and of the disk."""
    _show(course)
    if dry_run or not course.counts.letters:
        _finish(course, as_json)
        return Exit.DONE
    course.check()
    if not confirmed("send", yes=yes):
        return Exit.FAILED
    with interruptible():
        return _send(course, as_json)


def _show(course: RedriveCourse) -> None:
    def note(text: str) -> None:
        echo(text, err=True)

    counts, order = course.counts, course.order
    note(f"{counted(counts.letters, 'letter')} to be sent again")
    for name, number in counts.topics.most_common(_TOPICS_SHOWN):
        note(f"  {number:,} to {name}")
    if len(counts.topics) > _TOPICS_SHOWN:
        note(f"  the others to {len(counts.topics) - _TOPICS_SHOWN:,} more topics")
    if counts.letters:
        when = "at once" if order.rate is None else f"{order.rate:g} in a second"
        note(f"  through {course.address}, due {when}")
    if counts.before:
        note(f"  left out: {counts.before:,} that were redriven before")
    if counts.not_sendable:
        note(
            f"  left out: {counts.not_sendable:,} that do not say where they were meant to go"
            " as a topic's name (--to-topic sends them), or of which a part is missing"
        )
    if course.redriven.some_deleted:
        note(f"  {NOTES_DELETED}")
    if course.redriven.others:
        note(f"  {course.redriven.others:,} records in the topic of notes are not slotwheel's")


def _send(course: RedriveCourse, as_json: bool) -> int:
    def report(place: tuple[int, int], error: SlotwheelError) -> None:
        letter = place_text(*place)
        if as_json:
            echo(json.dumps({"letter": letter, "error": error.to_wire()}), err=True)
        else:
            echo(f"error: letter {letter}: {error}", err=True)

    try:
        with progress_bar("sending", course.counts.letters, "count", "elapsed") as advance:
            course.send(report, advance)
    finally:
        _finish(course, as_json)
    assert course.sending is not None
    return Exit.FAILED if course.sending.resending.refused else Exit.DONE


def _finish(course: RedriveCourse, as_json: bool) -> None:
    if as_json:
        print_json(course.summary())
        return
    if course.sending is None:
        echo("redrove no letter")
        return
    state = course.sending.resending
    refused = f", {state.refused:,} refused" if state.refused else ""
    echo(f"redrove {counted(state.sent, 'letter')}{refused}")
    if course.sending.meanwhile:
        echo(f"{course.sending.meanwhile:,} were redriven by another command meanwhile")
    if course.left:
        doubt = f"; {state.under_way:,} more may have been sent" if state.under_way else ""
        echo(f"not complete: run it again to go on{doubt}")
