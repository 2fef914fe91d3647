"""``slotwheel repair``: shows which rows of damaged slot files can be saved; --yes saves them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from ..reading.directory import reading, running_process
from ..reading.state import load_state
from ..reading.verify.salvage import Salvage, repair, salvage
from ..wheel.errors import DirectoryInUse, InvalidConfiguration
from ..wheel.files import DirectoryLock, OsFiles
from ..wheel.slots.mend import MENDED_DIRECTORY
from ..wheel.slots.slot import path_of
from ..wheel.state import LmdbState
from ..wheel.texts import counted
from .invocation import Exit
from .shared import data_argument, json_option, print_json
from .terminal import echo

_Slot = tuple[Salvage, list[str]]
"""The saved rows, and the paths of the damaged files that they replaced; empty: not yet."""
_NEXT = {
    False: "look whether a backup or a peer has them before you give them up with --yes",
    True: "what is left is repaired, and a node that is started delivers it",
}
"""The remedy for lost rows, by ``--yes``."""


@click.command("repair")
@data_argument
@click.option("--yes", is_flag=True, help="Do it. Without, only say what would be done.")
@json_option
def command(directory: Path, yes: bool, as_json: bool) -> int:
    """Replace each damaged slot file of the data directory DIR by what can be had of it.

    The node must be stopped. Without --yes nothing is changed: it says what is sound of each
    damaged file, what the journal still has, and what is lost, by id as far as ids can be read.
    With --yes the rows that are left take the place of the damaged file, which is kept in
    damaged/; a node that is started then delivers them. What is lost stays on record: `verify` and
    `replay` tell of it.

    The exit code is 1 if rows are lost, or would be; standard error says so.
    """
    with reading(directory) as files:  # refuses any other directory
        process = running_process(directory)
        if process is not None:
            raise DirectoryInUse(
                "a node is running on the data directory",
                got=f"{directory} (process {process})",
                remedy="Stop it first",
            )
        stored = load_state(directory)
        if not yes and (stored.incoming or files.list(MENDED_DIRECTORY)):
            raise InvalidConfiguration(
                "a repair or a switch to a snapshot was interrupted here, and its files are not in"
                " their places",
                got=str(directory),
                remedy="Start the node once, which completes it; --yes does so before it repairs",
            )
        peers = len(stored.checkpoint.config.get("stores", {})) - 1
        if yes and peers > 0:
            echo(
                f"warning: {directory} belongs to a group with {peers} other peers. A node mends"
                " its slot files from theirs by itself; what is given up here stays lost on this"
                " peer, also if another one has it.",
                err=True,
            )
        slots: list[_Slot] = [] if yes else [(saved, []) for saved in salvage(files, stored)]
    if yes:
        # New files may be read by whoever may read the directory.
        umask = os.umask(0o777 & ~directory.stat().st_mode)
        try:
            slots = _repair(directory)
        finally:
            os.umask(umask)
    if as_json:
        print_json({"directory": str(directory), "repaired": yes, "slots": _fields(slots)})
    else:
        _print(slots, yes=yes)
    lost = any(saved.lost for saved, _ in slots)
    if lost and not as_json:  # in JSON, each slot has its "lost"
        tense = "are" if yes else "would be"
        echo(f"error: rows {tense} lost (exit code 1); {_NEXT[yes]}", err=True)
    return Exit.FAILED if lost else Exit.DONE


def _repair(directory: Path) -> list[_Slot]:
    with ExitStack() as stack:
        lock = DirectoryLock(directory)
        stack.callback(lock.release)
        files = stack.enter_context(closing(OsFiles(directory)))
        return repair(files, stack.enter_context(closing(LmdbState(directory))))


def _fields(slots: Sequence[_Slot]) -> list[dict[str, Any]]:
    return [
        {
            "path": path_of(saved.slot),
            "paths": [path_of(slot) for slot in saved.files],
            "found": "; ".join(saved.faults.values()),
            "rows": saved.had,
            "sound": saved.sound.num_rows,
            "from_journal": saved.journal.num_rows,
            "lost": saved.lost,
            "lost_cancels": saved.lost_cancels,
            "at_most": saved.at_most,
            "lost_ids": saved.lost_ids,
            "kept": ", ".join(kept) or None,
        }
        for saved, kept in slots
    ]


def _print(slots: Sequence[_Slot], *, yes: bool) -> None:
    for saved, kept in slots:
        for fault in saved.faults.values():
            echo(fault)
        if len(saved.files) > 1:
            echo(f"  of the same time, and {'now' if yes else 'then'} one: {path_of(saved.slot)}")
        echo(
            f"  {counted(saved.had, 'row')} by the catalog, highest offset"
            f" {saved.highest}: {saved.journal.num_rows} in the journal,"
            f" {saved.sound.num_rows} more in sound blocks,"
            f" {'at most ' if saved.at_most else ''}{saved.lost} lost"
        )
        if saved.lost_cancels:
            echo(f"  cancels among them: {saved.lost_cancels}; their messages are delivered")
        for text in saved.lost_ids:
            echo(f"  lost: {text}")
        unknown = saved.lost - saved.lost_cancels - len(saved.lost_ids)
        if unknown > 0:
            messages = "1 message whose id" if unknown == 1 else f"{unknown:,} messages whose ids"
            echo(f"  lost: {messages} cannot be read any more")
        for path in kept:
            echo(f"  the damaged file is kept as {path}")
    at_most = "at most " if any(saved.at_most for saved, _ in slots) else ""
    lost = at_most + counted(sum(saved.lost for saved, _ in slots), "row")
    files = counted(sum(len(saved.files) for saved, _ in slots), "slot file")
    if not slots:
        echo("no slot file is damaged")
    elif yes:
        echo(f"repaired {files}, lost {lost}")
    else:
        echo(f"{files} damaged, {lost} would be lost; --yes repairs")
