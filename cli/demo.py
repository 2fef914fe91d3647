"""``slotwheel demo``: a node is started, killed and started again, and the result is proven.

What it claims follows from what the client was promised (its receipts and the answers to its
cancels) and from what stands in the topics' files at the end; the node is not asked.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from ..wheel.slotfile import path_of
from .demo_arrivals import TOPICS
from .demo_proof import Proof, prove
from .demo_report import (
    Line,
    in_ms,
    interrupt_on_sigterm,
    new_directory,
    print_faults,
    print_lines,
    print_replay,
    program,
    proof_lines,
    rows_in_slots,
    verify,
)
from .demo_scenario import Outcome, Scenario
from .demo_screen import Screen
from .demo_sending import RECEIPTS
from .shared import json_option, print_json
from .verify import Summary


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
    interrupt_on_sigterm()
    directory = new_directory(data)
    with Screen(messages + kept, messages, quiet=as_json) as screen:
        outcome = Scenario(directory, messages, kept, seconds, screen).run()
    proof = prove(outcome.sent, outcome.arrived, outcome.outages)
    in_files = rows_in_slots(directory, outcome.slot_seconds)
    summary = verify(directory)
    holds = proof.holds and summary.invalid == 0 and in_files == kept and proof.refused == 0
    if as_json:
        print_json(
            {
                "ok": holds,
                "directory": str(directory),
                **asdict(proof),
                "kept_in_slot_files": in_files,
                "cancel_answers": outcome.cancel_answers,
                "away_ms": round(outcome.outages[0].seconds * 1000),
                "verify": {"ok": summary.ok, "invalid": summary.invalid},
            }
        )
    else:
        _print(directory, outcome, proof, in_files, summary)
        click.echo("The proof holds." if holds else "THE PROOF FAILS: see above.")
    if not holds:
        click.get_current_context().exit(1)


def _print(
    directory: Path, outcome: Outcome, proof: Proof, in_files: int, summary: Summary
) -> None:
    print_lines(_lines(outcome, proof, in_files))
    print_faults(summary)
    click.echo(f"slotwheel verify: {summary.verdict}")
    click.echo()
    slots = directory / "slots"
    click.echo(f"Slot files: {slots} (the {in_files:,} messages due in an hour). Open one:")
    path = directory / path_of(outcome.slot_seconds[0])
    code = f"import pyarrow as pa; print(pa.ipc.open_stream(pa.OSFile('{path}')).read_all())"
    click.echo(f'  {sys.executable} -c "{code}"')
    print_replay(directory / RECEIPTS, directory)
    click.echo("Look around, and remove it when you are done:")
    click.echo(f"  {program()} inspect slots {directory}")
    click.echo(f"  {program()} consume {TOPICS[0]} --data {directory} --limit 5")
    click.echo(f"  rm -r {directory}")


def _lines(outcome: Outcome, proof: Proof, in_files: int) -> list[Line]:
    away = f"{proof.outage.count:,}, as the node was dead for {outcome.outages[0].seconds:.1f} s"
    repeated = "sent again after the kill: the mark was not on disk"
    found = proof_lines(proof, f"{in_files:,} in files", repeated)
    found.append(("  of those that waited", in_ms(proof.outage), away))
    if proof.foreign or proof.refused:
        found.append(("foreign, refused", f"{proof.foreign:,}, {proof.refused:,}", ""))
    return found
