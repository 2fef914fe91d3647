"""``slotwheel consume``: read an embedded topic, also while the node writes to it.

The reader needs no lock and no node: it sees what is committed, and with ``--follow`` looks again
until it is told to stop.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from ..delivery.topicreader import TopicReader, check_exists, ids
from ..wheel.schema import check_topic, times
from .directory import reading
from .printing import Fields, message_fields, quiet_pipe, text_line
from .shared import json_option

LOOK_AGAIN_S = 0.02


@click.command("consume", short_help="Print the messages of an embedded topic.")
@click.argument("topic")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The node's data directory.",
)
@click.option(
    "--from",
    "position",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Begin at this position.",
)
@click.option("--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option(
    "--arrow",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rows to FILE as an Arrow IPC stream instead of printing them.",
)
@json_option
def command(
    topic: str,
    data: Path,
    position: int,
    follow: bool,
    limit: int | None,
    arrow: Path | None,
    as_json: bool,
) -> None:
    """Print the messages of the embedded topic TOPIC: what has been delivered to it so far.

    With --json, each has position, id, key, value, headers, due_ms, created_ms, delivered_ms and
    lateness_ms. Bytes that are not UTF-8 stand under key_base64 or value_base64.
    """
    check_topic(topic)
    with reading(data) as files, quiet_pipe(), ExitStack() as stack:
        if not follow:
            check_exists(files, topic)
        reader = TopicReader(files, topic, position)
        stack.callback(reader.close)
        batches = reader.follow(_wait) if follow else reader.batches()
        write = _ArrowFile(stack, arrow) if arrow is not None else _printing(as_json)
        for batch in cut(batches, limit):
            write(batch)


def cut(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to ``limit`` rows; does not wait for one that is not needed."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        part = batch.slice(0, left)
        left -= part.num_rows
        yield part
        if left == 0:
            return


def message_records(batch: pa.RecordBatch) -> Iterator[Fields]:
    """What is printed of each row of a topic."""
    due, created, delivered = (times(batch, name) for name in ("due", "created", "delivered"))
    lateness = delivered - np.maximum(due, created)
    columns = (times(batch, "position"), due, created, delivered, lateness)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for id_, row, message in zip(ids(batch), rows, message_fields(batch), strict=True):
        position, due_ms, created_ms, delivered_ms, lateness_ms = row
        yield {
            "position": position,
            "id": id_,
            "due_ms": due_ms,
            "created_ms": created_ms,
            "delivered_ms": delivered_ms,
            "lateness_ms": lateness_ms,
            **message,
        }


def _printing(as_json: bool) -> Callable[[pa.RecordBatch], None]:
    form = json.dumps if as_json else text_line

    def write(batch: pa.RecordBatch) -> None:
        sys.stdout.write("".join(f"{form(fields)}\n" for fields in message_records(batch)))
        sys.stdout.flush()

    return write


class _ArrowFile:
    """Opens the file with the first batch, whose schema it has."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self._stack = stack
        self._path = path
        self._writer: Any = None

    def __call__(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            sink = self._stack.enter_context(pa.OSFile(str(self._path), "wb"))
            self._writer = self._stack.enter_context(pa.ipc.new_stream(sink, batch.schema))
        self._writer.write_batch(batch)


def _wait() -> bool:
    """Wait a little; False when nobody reads our output any more."""
    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if output.poll(0):
            return False
    except (OSError, ValueError):  # no real file: nothing to look at
        pass
    time.sleep(LOOK_AGAIN_S)
    return True
