"""One run of the command line: its exit codes, and how it prints an error.

What ``main`` needs before it knows which command is wanted; so nothing is imported here but click.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum

import click


class Exit(IntEnum):
    """Exit codes. A command returns one of these, or None for DONE."""

    DONE = 0
    FAILED = 1
    """The command failed, or its answer is no; the output has the reason."""
    USAGE = 2
    """The command line itself is wrong."""
    DEFECT = 3
    """A defect of slotwheel, with a traceback; or the node could not sync its disk."""
    PARTLY = 4
    """``replay``: proven in part."""
    INTERRUPTED = 130


@dataclass(slots=True)
class Invocation:
    """State for the error handler after a command has failed; click's ``ctx.obj``."""

    json: bool = False


def note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """Callback of every ``--json``: the error handler must know it, whatever fails later."""
    if value:
        ctx.ensure_object(Invocation).json = True
        # What a client logs is no JSON; the error object comes besides.
        logging.getLogger("slotwheel.client").addHandler(logging.NullHandler())
    return value


def long_name(option: click.Option) -> str:
    """An option's long name without the dashes in front."""
    return max(option.opts, key=len).lstrip("-")
