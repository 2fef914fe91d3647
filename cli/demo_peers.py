"""``slotwheel demo-peers``: three nodes as peers, the master killed twice, and the proof.

As in the demo of one node, what it claims follows from what the client was promised and from what
stands in the files; here in those of all three peers, which must agree, too.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .agree import compare_directories
from .demo_arrivals import TOPICS
from .demo_peers_scenario import PeersOutcome, PeersScenario
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
from .demo_screen import Screen
from .demo_sending import RECEIPTS
from .shared import json_option, print_json
from .verify import Summary


@click.command("demo-peers", short_help="Show three peers at work, their master killed twice.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new folder for their data. [default: slotwheel-demo-… in the current folder]",
)
@click.option(
    "--messages",
    type=click.IntRange(min=1_000),
    default=60_000,
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
    type=click.FloatRange(min=8, max=600),
    default=20.0,
    show_default=True,
    metavar="S",
    help="How long messages keep becoming due.",
)
@json_option
def command(data: Path | None, messages: int, kept: int, seconds: float, as_json: bool) -> None:
    """Show three peers on this machine, kill their master with SIGKILL twice, and prove the result.

    Needs no Kafka: messages go to embedded topics. Ends by itself; exit code 1 if a message was
    lost, came early, or was delivered although its cancel was confirmed, or if the peers differ.
    """
    interrupt_on_sigterm()
    directory = new_directory(data)
    with Screen(messages + kept, messages, quiet=as_json) as screen:
        outcome = PeersScenario(directory, messages, kept, seconds, screen).run()
    proof = prove(outcome.sent, outcome.arrived, outcome.outages)
    in_files = {
        name: rows_in_slots(path, outcome.slot_seconds)
        for name, path in outcome.directories.items()
    }
    summaries = {name: verify(path) for name, path in outcome.directories.items()}
    (first, path), *others = outcome.directories.items()
    differ = {
        f"{first} and {name}": found.problems
        for name, other in others
        if not (found := compare_directories(path, other, quiet=True)).agrees
    }
    holds = (
        proof.holds
        and not differ
        and proof.refused == 0
        and all(summary.invalid == 0 for summary in summaries.values())
        and all(rows == kept for rows in in_files.values())
    )
    if as_json:
        print_json(
            {
                "ok": holds,
                "directory": str(directory),
                **asdict(proof),
                "kept_in_slot_files": in_files,
                "cancel_answers": outcome.cancel_answers,
                "failover_ms": [round(one.seconds * 1000) for one in outcome.outages],
                "killed": outcome.killed,
                "differ": differ,
                "verify": {
                    name: {"ok": one.ok, "invalid": one.invalid} for name, one in summaries.items()
                },
            }
        )
    else:
        _print(directory, outcome, proof, in_files, summaries, differ)
        click.echo("The proof holds." if holds else "THE PROOF FAILS: see above.")
    if not holds:
        click.get_current_context().exit(1)


def _print(
    directory: Path,
    outcome: PeersOutcome,
    proof: Proof,
    in_files: dict[str, int],
    summaries: dict[str, Summary],
    differ: dict[str, list[str]],
) -> None:
    print_lines(_lines(outcome, proof, in_files))
    for name, summary in summaries.items():
        print_faults(summary)
        click.echo(f"slotwheel verify, peer {name}: {summary.verdict}")
    for pair, problems in differ.items():
        click.echo(f"peers {pair} differ: {problems[0]}")
    if not differ:
        click.echo("slotwheel verify --against: the peers agree")
    click.echo()
    print_replay(directory / RECEIPTS, *outcome.directories.values())
    click.echo("Look around, and remove it when you are done:")
    click.echo(f"  {program()} inspect slots {directory / 'a'}")
    click.echo(f"  {program()} consume {TOPICS[0]} --data {directory / 'b'} --limit 5")
    click.echo(f"  rm -r {directory}")


def _lines(outcome: PeersOutcome, proof: Proof, in_files: dict[str, int]) -> list[Line]:
    each = " / ".join(f"{rows:,}" for rows in in_files.values())
    repeated = "sent again by the next master: not marked in time"
    found = proof_lines(proof, f"{each} in files", repeated)
    waited = f"{proof.outage.count:,}, as there was no master"
    found.append(("  of those that waited", in_ms(proof.outage), waited))
    for killed, outage in zip(outcome.killed, outcome.outages, strict=True):
        gap = f"{outage.seconds * 1000:,.0f} ms"
        found.append(("failover", gap, f"from SIGKILL to {killed} to the next delivery"))
    if proof.foreign or proof.refused:
        found.append(("foreign, refused", f"{proof.foreign:,}, {proof.refused:,}", ""))
    return found
