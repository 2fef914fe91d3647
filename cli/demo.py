"""``slotwheel demo``: a node is started, killed and started again, and the result is proven.

What it claims follows from what the client was promised (its receipts and the answers to its
cancels) and from what stands in the topics' files at the end; the node is not asked.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from ..wheel.errors import InvalidConfiguration
from ..wheel.slotfile import path_of
from .demo_arrivals import TOPICS
from .demo_proof import Lateness, Proof, prove
from .demo_scenario import Outcome, Scenario
from .demo_screen import Screen
from .directory import reading
from .shared import json_option, print_json
from .verify import Summary, check_all


@click.command("demo", short_help="Show a node at work, killed in the middle.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new data directory. [default: slotwheel-demo-… in the current folder]",
)
@click.option(
    "--messages",
    type=click.IntRange(min=1_000),
    default=120_000,
    show_default=True,
    metavar="N",
    help="Messages that become due while it runs.",
)
@click.option(
    "--kept",
    type=click.IntRange(min=20),
    default=3_000,
    show_default=True,
    metavar="N",
    help="Further messages due in an hour, which stay in their slot files.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=3, max=600),
    default=15.0,
    show_default=True,
    metavar="S",
    help="How long messages keep becoming due.",
)
@json_option
def command(data: Path | None, messages: int, kept: int, seconds: float, as_json: bool) -> None:
    """Show a node at work, kill it with SIGKILL in the middle, and prove that nothing was lost.

    Needs no Kafka: messages go to embedded topics. Ends by itself; exit code 1 if a message was
    lost, came early, or was delivered although its cancel was confirmed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    directory = _new_directory(data)
    with Screen(messages + kept, messages, quiet=as_json) as screen:
        outcome = Scenario(directory, messages, kept, seconds, screen).run()
    proof = prove(outcome.sent, outcome.arrived, outcome.killed_ms, outcome.ready_ms)
    in_files = _rows_in_slots(directory, outcome.slot_seconds)
    summary = _verify(directory)
    holds = proof.holds and summary.invalid == 0 and in_files == kept and proof.refused == 0
    if as_json:
        print_json(
            {
                "ok": holds,
                "directory": str(directory),
                **asdict(proof),
                "kept_in_slot_files": in_files,
                "cancel_answers": outcome.cancel_answers,
                "away_ms": outcome.ready_ms - outcome.killed_ms,
                "verify": {"ok": summary.ok, "invalid": summary.invalid},
            }
        )
    else:
        _print(directory, outcome, proof, in_files, summary)
        click.echo("The proof holds." if holds else "THE PROOF FAILS: see above.")
    if not holds:
        click.get_current_context().exit(1)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """SIGTERM ends it as Ctrl-C does: the child is ended, too."""
    raise KeyboardInterrupt


def _new_directory(data: Path | None) -> Path:
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


def _rows_in_slots(directory: Path, seconds: list[int]) -> int:
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


def _verify(directory: Path) -> Summary:
    summary = Summary()
    with reading(directory) as files:
        for item in check_all(directory, files, running=False):
            summary.add(item)
    return summary


def _print(
    directory: Path, outcome: Outcome, proof: Proof, in_files: int, summary: Summary
) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value, note in _lines(outcome, proof, in_files):
        table.add_row(name, value, note)
    click.echo()
    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(table)
    click.echo()
    for finding in summary.faults[:20]:
        click.echo(f"invalid: {finding}")
    click.echo(f"slotwheel verify: {summary.verdict}")
    click.echo()
    slots = directory / "slots"
    click.echo(f"Slot files: {slots} (the {in_files:,} messages due in an hour). Open one:")
    path = directory / path_of(outcome.slot_seconds[0])
    code = f"import pyarrow as pa; print(pa.ipc.open_stream(pa.OSFile('{path}')).read_all())"
    click.echo(f'  {sys.executable} -c "{code}"')
    click.echo("Look around, and remove it when you are done:")
    program = Path(sys.argv[0]).name
    slotwheel = sys.argv[0] if program == "slotwheel" else "slotwheel"
    click.echo(f"  {slotwheel} inspect slots {directory}")
    click.echo(f"  {slotwheel} consume {TOPICS[0]} --data {directory} --limit 5")
    click.echo(f"  rm -r {directory}")


def _lines(outcome: Outcome, proof: Proof, in_files: int) -> list[tuple[str, str, str]]:
    wrong = proof.cancelled_but_delivered
    away = (outcome.ready_ms - outcome.killed_ms) / 1000
    found = [
        (
            "sent",
            f"{proof.sent:,}",
            f"{proof.kept:,} of them due in an hour: {in_files:,} in files",
        ),
        ("delivered", f"{proof.delivered:,}", "different messages"),
        ("repeated", f"{proof.repeated:,}", "sent again after the kill: the mark was not on disk"),
        ("cancelled", f"{proof.cancelled:,}", f"{wrong:,} of them delivered"),
        ("early", f"{proof.early:,}", ""),
        ("lost", f"{proof.lost:,}", ""),
        ("lateness p50 / p99 / max", _ms(proof.lateness), f"of {proof.lateness.count:,} messages"),
        (
            "  of those that waited",
            _ms(proof.outage),
            f"{proof.outage.count:,}, as the node was dead for {away:.1f} s",
        ),
    ]
    if proof.foreign or proof.refused:
        found.append(("foreign, refused", f"{proof.foreign:,}, {proof.refused:,}", ""))
    return found


def _ms(lateness: Lateness) -> str:
    if lateness.count == 0:
        return "-"
    return f"{lateness.p50:.0f} / {lateness.p99:.0f} / {lateness.max:.0f} ms"
