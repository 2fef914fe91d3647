"""One run of the command line: its exit codes, and whether its errors are JSON.

``main`` needs this before it knows the command, so nothing is imported here but click: otherwise
``--help`` would wait for it.
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
    """The error handler's knowledge of the command that failed; click's ``ctx.obj``."""

    json: bool = False


def note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """Callback of every ``--json``: the error handler must know it, whatever fails later."""
    if value:
        ctx.ensure_object(Invocation).json = True
        # A client's log lines would stand among the JSON on stderr.
        logging.getLogger("slotwheel.client").addHandler(logging.NullHandler())
    return value


def long_name(option: click.Option) -> str:
    """An option's long name without the dashes in front."""
    return max(option.opts, key=len).lstrip("-")
