"""The command ``slotwheel demo``: it runs the story, proves the result, and prints both."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from ...wheel.errors import InvalidConfiguration
from ...wheel.slots.slot import path_of
from ..agree import compare_directories
from ..invocation import Exit
from ..printing import print_table
from ..shared import json_option, need_gateway, print_json
from ..terminal import echo
from ..verify import Summary, print_findings, verify
from .nodes import names_of
from .proof import Outage, Proof, Spread, prove
from .screen import Screen
from .secured import Secured
from .story import Aftermath, Story
from .traffic import TOPICS, Workload


@click.command("demo")
@click.option(
    "--peers",
    type=click.Choice(["1", "3", "5"]),
    default="1",
    help="How many peers; 1 is a node alone.",
)
@click.option(
    "--wheels",
    type=click.IntRange(1, 8),
    default=1,
    help="How many wheels of a fleet, each a node without peers; 1 is no fleet.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new data directory, with peers a folder for theirs."
    " [default: slotwheel-demo-… in the current folder]",
)
@click.option(
    "--messages",
    type=click.IntRange(min=1_000),
    default=60_000,
    help="Messages that become due while it runs.",
)
@click.option(
    "--kept",
    type=click.IntRange(min=20),
    default=3_000,
    help="Further messages due in an hour, which stay in their slot files.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=5, max=600),
    default=15.0,
    metavar="S",
    help="How long messages keep becoming due.",
)
@click.option(
    "--stay",
    is_flag=True,
    help="In the end start the nodes once more, with a gateway, print the address of its console,"
    " and stay until Ctrl-C.",
)
@click.option(
    "--tls",
    "with_tls",
    is_flag=True,
    help="Use TLS for clients and between peers, and let the client prove itself by a token: with"
    " certificates that openssl makes in the data directory.",
)
@json_option
def command(
    peers: str,
    wheels: int,
    data: Path | None,
    messages: int,
    kept: int,
    seconds: float,
    stay: bool,
    with_tls: bool,
    as_json: bool,
) -> int:
    """Show a node at work, several peers, or the wheels of a fleet, kill the one that delivers with
    SIGKILL twice, and prove that nothing was lost.

    Needs no Kafka: messages go to embedded topics. Ends by itself; exit code 1 if a message was
    lost, came early, or was delivered although its cancel was confirmed, if the peers differ, or if
    a node alone, which runs with exactly-once, delivered one twice.
    """
    if wheels > 1 and (peers != "1" or with_tls or stay):
        raise click.UsageError("--wheels is for nodes without --peers, --tls and --stay.")
    # SIGTERM is like Ctrl-C: otherwise the nodes would go on without the demo.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if stay:
        need_gateway()
    directory = _new_directory(data)
    workload = Workload(messages, kept, seconds)
    secured = Secured.made(directory, names_of(int(peers))) if with_tls else None
    with Screen(workload.total, messages, quiet=as_json) as screen:
        story = Story(directory, int(peers), workload, screen, secured, wheels)
        aftermath = story.run()
    proof = prove(aftermath.promises, aftermath.arrivals, aftermath.outages)
    in_files = aftermath.kept_in_files()
    verified = {name: verify(path, quiet=True) for name, path in aftermath.directories.items()}
    are_peers = len(aftermath.directories) > 1 and not aftermath.is_fleet
    differ = _differences(aftermath.directories) if are_peers else {}
    in_each = [sum(in_files.values())] if aftermath.is_fleet else [*in_files.values()]
    holds = (
        proof.holds
        and (proof.repeated == 0 or are_peers)
        and proof.refused == 0
        and not differ
        and all(summary.invalid == 0 for summary in verified.values())
        and all(rows == kept for rows in in_each)
    )
    if as_json:
        print_json(
            {
                "ok": holds,
                "directory": str(directory),
                **asdict(proof),
                "kept_in_slot_files": in_files,
                "cancel_answers": aftermath.cancel_answers,
                "outages": [asdict(outage) for outage in aftermath.outages],
                "differ": differ,
                "verify": {name: summary.to_json() for name, summary in verified.items()},
            }
        )
    else:
        echo()
        print_table(_lines(proof, aftermath.outages, in_files, are_peers), "lrl")
        echo()
        _print_checks(verified, differ, are_peers)
        echo()
        _print_what_next(directory, aftermath)
        echo("The proof holds." if holds else "THE PROOF FAILS: see above.")
    if stay:
        _stay(story, as_json, secured)
    return Exit.DONE if holds else Exit.FAILED


def _stay(story: Story, as_json: bool, secured: Secured | None) -> None:
    """Run the nodes once more, and print the console's address, until Ctrl-C."""
    with suppress(KeyboardInterrupt), story.staying() as address:
        url = f"{'http' if secured is None else 'https'}://{address}/console"
        if as_json:
            print_json({"console": url})
        else:
            echo()
            echo(f"The console: {url}  (Ctrl-C ends it)")
            if secured is not None:
                echo(f"It is proven by {secured.ca}; the token of a caller is in {secured.token}.")
                echo(f"The nodes: {story.by_hand}")
        threading.Event().wait()


def _new_directory(data: Path | None) -> Path:
    """The demo's directory, created: ``data`` or, without it, a new one in the current directory.
    Errors: ``InvalidConfiguration``: ``data`` is not empty."""
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


def _differences(directories: dict[str, Path]) -> dict[str, list[str]]:
    """The differences between the first peer and each other one that differs, by both names."""
    (first, path), *others = directories.items()
    agreements = {name: compare_directories(path, other, quiet=True) for name, other in others}
    return {
        f"{first} and {name}": agreement.problems
        for name, agreement in agreements.items()
        if not agreement.agrees
    }


def _lines(
    proof: Proof, outages: list[Outage], in_files: dict[str, int], are_peers: bool
) -> Iterator[tuple[str, str, str]]:
    by_node = " / ".join(f"{rows:,}" for rows in in_files.values())
    delivered_cancels = proof.cancelled_but_delivered
    yield "sent", f"{proof.sent:,}", f"{proof.kept:,} of them due in an hour: {by_node} in files"
    yield "delivered", f"{proof.delivered:,}", "different messages"
    remark = "sent again after a kill: not marked in time"
    yield "repeated", f"{proof.repeated:,}", remark if are_peers else "exactly once"
    yield "cancelled", f"{proof.cancelled:,}", f"{delivered_cancels:,} of them delivered"
    yield "early", f"{proof.early:,}", ""
    yield "lost", f"{proof.lost:,}", ""
    on_time, waited = proof.lateness, proof.waited
    yield "lateness p50 / p99 / max", _in_ms(on_time), f"of {on_time.count:,} messages"
    yield "lateness of those that waited", _in_ms(waited), f"{waited.count:,}, as a node was down"
    for outage in outages:
        gap = f"{outage.seconds * 1000:,.0f} ms"
        yield "outage", gap, f"from SIGKILL to {outage.killed} to the next delivery"
    if proof.foreign or proof.refused:
        yield "foreign, refused", f"{proof.foreign:,}, {proof.refused:,}", ""


def _in_ms(spread: Spread) -> str:
    return f"{spread.p50:.0f} / {spread.p99:.0f} / {spread.max:.0f} ms" if spread.count else "-"


def _print_checks(
    verified: dict[str, Summary], differ: dict[str, list[str]], are_peers: bool
) -> None:
    for summary in verified.values():
        print_findings("invalid", summary.faults)
        echo(f"slotwheel verify {summary.directory}: {summary.verdict}")
    for pair, problems in differ.items():
        echo(f"peers {pair} differ: {problems[0]}")
    if are_peers and not differ:
        echo("slotwheel verify --against: the peers agree")


def _print_what_next(directory: Path, after: Aftermath) -> None:
    # A command that is printed to be copied names the program as it was called.
    program = sys.argv[0] if Path(sys.argv[0]).name == "slotwheel" else "slotwheel"
    paths = list(after.directories.values())
    delivered = after.directories[after.outages[0].killed]
    slot = paths[0] / path_of(after.kept_seconds[0])
    code = f"import pyarrow as pa; print(pa.ipc.open_stream(pa.OSFile('{slot}')).read_all())"
    echo(f"Slot files of messages due in an hour are in {slot.parent}. Open one:")
    echo(f'  {sys.executable} -c "{code}"')
    echo("Let Spark prove it from the files and the client's receipts (README.md, Prove it);")
    echo(f"needs Java 17, and once: {sys.executable} -m pip install 'slotwheel[replay]'")
    for name, receipts in after.receipts.items():
        proven = [after.directories[name]] if name else paths
        flag = " --exactly-once" if len(proven) == 1 else ""
        echo(f"  {program} replay {' '.join(map(str, proven))} --receipts {receipts}{flag}")
    echo("Look around, and remove it when you are done:")
    echo(f"  {program} inspect slots {paths[0]}")
    echo(f"  {program} consume {TOPICS[0]} --data {delivered} --limit 5")
    echo(f"  rm -r {directory}")
