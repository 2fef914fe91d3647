"""What the demos do with their data directories: make them, count what is in them, tell of it."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from ..wheel.errors import InvalidConfiguration
from ..wheel.slotfile import path_of
from .demo_proof import Lateness, Proof
from .directory import reading
from .verify import Summary, check_all

Line = tuple[str, str, str]
"""Name, value, note."""
_FAULTS_SHOWN = 20


def interrupt_on_sigterm() -> None:
    """SIGTERM ends a demo as Ctrl-C does: its children are ended, too."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise KeyboardInterrupt


def new_directory(data: Path | None) -> Path:
    """``data``, made; or a new one in the current folder. Errors: ``InvalidConfiguration``."""
    if data is None:
        return Path(tempfile.mkdtemp(prefix="slotwheel-demo-", dir=".")).resolve()
    if data.exists() and any(data.iterdir()):
        raise InvalidConfiguration(
            "the demo needs a new data directory",
            got=f"{data}, which is not empty",
            remedy="Name another --data, or leave it out",
        )
    data.mkdir(parents=True, exist_ok=True)
    return data.resolve()


def rows_in_slots(directory: Path, seconds: Sequence[int]) -> int:
    """The rows of the kept messages, counted as anyone could: with pyarrow alone."""
    rows = 0
    for second in seconds:
        try:
            with (
                pa.OSFile(str(directory / path_of(second))) as file,
                pa.ipc.open_stream(file) as all_,
            ):
                rows += sum(batch.num_rows for batch in all_)
        except FileNotFoundError:
            continue
    return rows


def verify(directory: Path) -> Summary:
    summary = Summary()
    with reading(directory) as files:
        for item in check_all(directory, files, running=False):
            summary.add(item)
    return summary


def proof_lines(proof: Proof, in_files: str, repeated: str) -> list[Line]:
    """The closing table but for what is special to one demo."""
    wrong = proof.cancelled_but_delivered
    return [
        ("sent", f"{proof.sent:,}", f"{proof.kept:,} of them due in an hour: {in_files}"),
        ("delivered", f"{proof.delivered:,}", "different messages"),
        ("repeated", f"{proof.repeated:,}", repeated),
        ("cancelled", f"{proof.cancelled:,}", f"{wrong:,} of them delivered"),
        ("early", f"{proof.early:,}", ""),
        ("lost", f"{proof.lost:,}", ""),
        (
            "lateness p50 / p99 / max",
            in_ms(proof.lateness),
            f"of {proof.lateness.count:,} messages",
        ),
    ]


def in_ms(lateness: Lateness) -> str:
    if lateness.count == 0:
        return "-"
    return f"{lateness.p50:.0f} / {lateness.p99:.0f} / {lateness.max:.0f} ms"


def print_lines(lines: Sequence[Line]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for line in lines:
        table.add_row(*line)
    click.echo()
    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(table)
    click.echo()


def print_faults(summary: Summary) -> None:
    for finding in summary.faults[:_FAULTS_SHOWN]:
        click.echo(f"invalid: {finding}")


def print_replay(receipts: Path, *directories: Path) -> None:
    """How to prove it once more, by other means."""
    click.echo("Let Spark prove it from the files and the client's receipts (README.md, Prove it);")
    click.echo(f"needs Java 17, and once: {sys.executable} -m pip install 'slotwheel[replay]'")
    where = " ".join(str(directory) for directory in directories)
    click.echo(f"  {program()} replay {where} --receipts {receipts}")


def program() -> str:
    """How to call us again, for a line that can be copied."""
    return sys.argv[0] if Path(sys.argv[0]).name == "slotwheel" else "slotwheel"
