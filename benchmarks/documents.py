"""Tables of the documents that are made of results.json, as RESULTS.md is.

A document marks the place of a table by its name, and what stands there is replaced::

    <!-- benchmarks: stages -->
    <!-- benchmarks: end -->

Otherwise a figure that was copied by hand would stay behind when its benchmark runs again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .plots import QUEUES, STAGES, SUSTAINED
from .results import Results, text_of
from .servers.all import ALL
from .stages import BESIDES
from .stages import STAGES as STEPS

DOCUMENTS = tuple(
    Path(__file__).resolve().parents[1] / "docs" / name
    for name in ("choosing.md", "performance.md")
)
_PLACE = re.compile(r"(<!-- benchmarks: (\w+) -->\n).*?(<!-- benchmarks: end -->)", re.DOTALL)
_PACED = "delay queues, lateness at 10,000/s"
_OF_QUEUES = (
    ("one caller that waits: messages/s", QUEUES, "durable messages/s in batches of 1"),
    (
        "64 callers that wait, each with a connection of its own: messages/s",
        "delay queues, 64 callers with connections of their own",
        "durable messages/s in batches of 1",
    ),
    (
        "batches of 100, one after the other: messages/s",
        QUEUES,
        "durable messages/s in batches of 100",
    ),
    ("batches of 1000: messages/s", QUEUES, "durable messages/s in batches of 1000"),
    ("500/s in and out: lateness p50, ms", "delay queues, lateness at 500/s", "lateness p50, ms"),
    ("p99, ms", "delay queues, lateness at 500/s", "lateness p99, ms"),
    ("10,000/s in and out for 20 s: left in time, of 200,000", _PACED, "taken"),
    ("lateness p50, ms", _PACED, "lateness p50, ms"),
    ("lateness p99, ms", _PACED, "lateness p99, ms"),
    ("processor time of the server, us/message", _PACED, "processor time, us/message"),
    (
        "100,000 due within one second: the last one left after, ms",
        "delay queues, burst",
        "burst of 100,000, last one after the second began, ms",
    ),
)
_LOADS = (
    ("batches of 10", "batches of 10"),
    ("batches of 1000", "batches of 1000"),
    ("the same, due over two hours", "batches of 1000 over two hours"),
    ("10,000 a second", "10,000 a second"),
    ("50,000 a second", "50,000 a second"),
    ("100,000 a second", "100,000 a second"),
)
_WAYS = (
    ("batches of 1000, two clients", SUSTAINED, "node CPU, us/message", "client CPU, us/message"),
    *(
        (
            name,
            "single sends",
            f"us of the node a message, {count} clients",
            f"us of the client a message, {count} clients",
        )
        for name, count in (("one caller that waits", 1), ("64 callers that wait", 64))
    ),
    (
        "HTTP, 64 connections (beside the node, the gateway)",
        "HTTP",
        "us of the node a message, 64 connections",
        "us of the gateway a message, 64 connections",
    ),
    (
        "three peers (all nodes)",
        "replication",
        "three peers, CPU of nodes, us/message",
        "three peers, CPU of clients, us/message",
    ),
    ("10,000/s in and out", "lateness at 10,000/s", "node CPU, us/message", ""),
    ("100,000/s in and out", "lateness at 100,000/s", "node CPU, us/message", ""),
    ("50,000/s into Kafka", "lateness into Kafka at 50,000/s", "node CPU, us/message", ""),
)


def write(results: Results) -> None:
    for path in DOCUMENTS:
        path.write_text(filled(path.read_text("utf-8"), results), "utf-8")


def filled(text: str, results: Results) -> str:
    """A document with its tables made anew. Errors: ``KeyError`` for a name that is no table's."""

    def table(place: re.Match[str]) -> str:
        lines = ["", *_TABLES[place[2]](results), "", place[3]]
        return place[1] + "\n".join(lines)

    return _PLACE.sub(table, text)


def _value(results: Results, run: str, figure: str) -> str:
    """Empty if it was not measured."""
    found = results[run].figures.get(figure) if run in results else None
    return "" if found is None else text_of(figure, found.median)


def _rows(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Those that were measured."""
    yield f"| {' | '.join(head)} |"
    yield "| --- " * len(head) + "|"
    for row in rows:
        if any(row[1:]):
            yield f"| {' | '.join(cell or '-' for cell in row)} |"


def _queues(results: Results) -> Iterator[str]:
    names = [kind.name for kind in ALL]
    rows = (
        [text, *(_value(results, run, f"{name}, {figure}") for name in names)]
        for text, run, figure in _OF_QUEUES
    )
    return _rows(["", *names], rows)


def _stages(results: Results) -> Iterator[str]:
    steps = [*((step, step) for step in STEPS), ("all of these", "all")]
    steps += [(f"besides: {step}", f"{step} besides") for step in BESIDES]
    rows = (
        [text, *(_value(results, STAGES, f"{step}, {load}, us") for _, load in _LOADS)]
        for text, step in steps
    )
    return _rows(["us a message", *(name for name, _ in _LOADS)], rows)


def _ways(results: Results) -> Iterator[str]:
    rows = (
        [text, _value(results, run, node), _value(results, run, other)]
        for text, run, node, other in _WAYS
    )
    return _rows(["us a message", "node", "client"], rows)


_TABLES = {"queues": _queues, "stages": _stages, "ways": _ways}
