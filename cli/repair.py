"""``slotwheel repair``: what can be saved of damaged slot files, and, with --yes, the repair."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..reading.directory import reading, running_process
from ..reading.state import load_state
from ..reading.verify.salvage import Salvage, repair, salvage
from ..wheel.errors import DirectoryInUse, InvalidConfiguration
from ..wheel.files import DirectoryLock, OsFiles
from ..wheel.slots.mend import MENDED_DIRECTORY
from ..wheel.slots.slotfile import path_of
from ..wheel.state import LmdbState
from ..wheel.texts import counted
from .invocation import Exit
from .shared import data_argument, json_option, print_json
from .terminal import echo

_NEXT = {
    False: "look whether a backup or a peer has them before you give them up with --yes",
    True: "what is left is repaired, and a node that is started delivers it",
}
"""The remedy for lost rows, before and after a repair."""


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
        found = [] if yes else salvage(files, stored)
    kept: list[str] = [""] * len(found)
    if yes:
        # Its files are for whom the directory is.
        before = os.umask(0o777 & ~directory.stat().st_mode)
        try:
            done = _repair(directory)
        finally:
            os.umask(before)
        found, kept = [one for one, _ in done], [path for _, path in done]
    if as_json:
        print_json({"directory": str(directory), "repaired": yes, "slots": _fields(found, kept)})
    else:
        _print(found, kept, yes=yes)
    lost = any(one.lost for one in found)
    if lost and not as_json:  # in JSON, each slot has its "lost"
        tense = "are" if yes else "would be"
        echo(f"error: rows {tense} lost (exit code 1); {_NEXT[yes]}", err=True)
    return Exit.FAILED if lost else Exit.DONE


def _repair(directory: Path) -> list[tuple[Salvage, str]]:
    lock = DirectoryLock(directory)
    try:
        files, state = OsFiles(directory), LmdbState(directory)
        try:
            return repair(files, state)
        finally:
            state.close()
            files.close()
    finally:
        lock.release()


def _fields(found: Sequence[Salvage], kept: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "path": path_of(one.second),
            "found": one.found,
            "rows": one.info.rows,
            "sound": one.sound.num_rows,
            "from_journal": one.journal.num_rows,
            "lost": one.lost,
            "lost_cancels": one.lost_cancels,
            "at_most": one.at_most,
            "lost_ids": one.lost_ids,
            "kept": path or None,
        }
        for one, path in zip(found, kept, strict=True)
    ]


def _print(found: Sequence[Salvage], kept: Sequence[str], *, yes: bool) -> None:
    for one, path in zip(found, kept, strict=True):
        echo(one.found)
        echo(
            f"  {counted(one.info.rows, 'row')} by the catalog, highest offset {one.info.highest}:"
            f" {one.journal.num_rows} in the journal, {one.sound.num_rows} more in sound blocks,"
            f" {'at most ' if one.at_most else ''}{one.lost} lost"
        )
        if one.lost_cancels:
            echo(f"  cancels among them: {one.lost_cancels}; their messages are delivered")
        for text in one.lost_ids:
            echo(f"  lost: {text}")
        unknown = one.lost - one.lost_cancels - len(one.lost_ids)
        if unknown > 0:
            messages = "1 message whose id" if unknown == 1 else f"{unknown:,} messages whose ids"
            echo(f"  lost: {messages} cannot be read any more")
        if path:
            echo(f"  the damaged file is kept as {path}")
    at_most = "at most " if any(one.at_most for one in found) else ""
    lost = at_most + counted(sum(one.lost for one in found), "row")
    files = counted(len(found), "slot file")
    if not found:
        echo("no slot file is damaged")
    elif yes:
        echo(f"repaired {files}, lost {lost}")
    else:
        echo(f"{files} damaged, {lost} would be lost; --yes repairs")
