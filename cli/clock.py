"""``slotwheel clock``: the clock that a node goes by, and what to do when it was wrong."""

from __future__ import annotations

from datetime import timedelta

import click

from ..client import Client
from ..client.addresses import Nodes
from ..wheel.protocol import CLOCK_ACCEPT, CLOCK_SET_BACK, CLOCK_SHOW
from ..wheel.texts import time_text
from .reaching import node_options
from .shared import json_option, print_json
from .terminal import echo


@click.command("clock")
@click.option(
    "--accept", is_flag=True, help="The wall clock is right, however far it jumped: go by it."
)
@click.option(
    "--set-back",
    is_flag=True,
    help="The clock was ahead and is right now: deliver again at once. What has left stays so.",
)
@node_options
@json_option
def command(
    accept: bool, set_back: bool, address: Nodes, timeout: timedelta, as_json: bool
) -> None:
    """Show the clock that a node goes by, and the mark, up to which messages have left.

    A wall clock that jumps ahead by more than an hour is not believed before --accept. A mark that
    is ahead of the clock, as the clock was wrong, stops delivery until the clock has caught up, or
    until --set-back.
    """
    if accept and set_back:
        raise click.UsageError("give --accept or --set-back, not both")
    action = CLOCK_ACCEPT if accept else CLOCK_SET_BACK if set_back else CLOCK_SHOW
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        answer = client.clock(action)
    if as_json:
        print_json(answer)
        return
    clock = answer["clock"]
    echo(f"clock  {time_text(clock['now_ms'])}")
    if clock["jumped_ms"]:
        ahead = timedelta(seconds=round(clock["jumped_ms"] / 1000))
        echo(f"wall   {time_text(clock['wall_ms'])}  jumped {ahead} ahead, not believed")
    mark = time_text(clock["mark_ms"]) if clock["mark_ms"] > 0 else "-"
    behind = timedelta(seconds=round(clock["behind_ms"] / 1000))
    echo(f"mark   {mark}" + (f"  {behind} ahead of the clock" if behind else ""))
    if set_back:
        echo("the mark is set back to the clock")
