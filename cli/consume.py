"""``slotwheel consume``: read an embedded topic, also while a node writes to it, or one of Kafka.

The reader needs no lock and no node: it reads committed messages, and with ``--follow`` reads on
until it is stopped. An Arrow file gets its name when it is complete: half a dump would look like a
loss of messages.
"""

from __future__ import annotations

import json
import math
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from ..reading.directory import reading
from ..reading.messagefields import Fields
from ..reading.topicreader import TopicReader, check_exists
from ..wheel.checks import check_topic
from .fields import record_fields, topic_fields
from .printing import Listing, quiet_pipe
from .progress import progress_bar
from .shared import awaited, is_typed, json_option, kafka_option
from .terminal import echo

LOOK_AGAIN_S = 0.02


@click.command("consume")
@click.argument("topic")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Read the embedded topic in this data directory of a node.",
)
@click.option("--bootstrap", metavar="HOST:PORT,…", help="Read the topic of the Kafka there.")
@kafka_option
@click.option(
    "--from",
    "position",
    type=click.IntRange(min=0),
    default=0,
    help="Begin at this position, of Kafka in each partition.",
)
@click.option("--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), help="End after N messages.")
@click.option(
    "--arrow",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows to FILE as an Arrow IPC stream instead of printing them.",
)
@json_option
def command(
    topic: str,
    data: Path | None,
    bootstrap: str | None,
    kafka_settings: dict[str, str],
    position: int,
    follow: bool,
    limit: int | None,
    arrow: Path | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC: what has been delivered to it so far. It is an embedded topic
    (--data) or one of Kafka (--bootstrap); one of the two must be given.

    With --json, each has position, id, key, value, headers, due_ms, created_ms, delivered_ms and
    lateness_ms. Bytes that are not UTF-8 stand under key_base64 or value_base64.
    """
    data, bootstrap = one_source(data, bootstrap)
    if bootstrap is None and is_typed("kafka_settings"):
        raise click.UsageError("--kafka needs --bootstrap.")
    check_topic(topic)
    total = None  # of positions: more than messages where Kafka has compacted the topic
    with quiet_pipe(), ExitStack() as stack:
        if data is not None:
            batches = _embedded(stack, data, topic, position, follow, as_json)
            schema, fields = None, topic_fields
        else:
            from ..reading.kafka.dump import DUMP
            from ..reading.kafka.kafkatopic import KafkaTopic

            until_s = math.inf if follow else 0.0
            reader = awaited(lambda: KafkaTopic(str(bootstrap), topic, kafka_settings), until_s)
            stack.callback(reader.close)
            if not follow:
                total = reader.total(position)
            batches = reader.batches(position, _wait if follow else None)
            schema, fields = DUMP, record_fields
        if arrow is None:
            write = _printing(fields, as_json)
        else:
            write = stack.enter_context(arrow_file(arrow, schema, keep=follow))
        quiet = arrow is None or follow
        bar = progress_bar(f"reading {topic}", total, "count", quiet=quiet)
        advance = stack.enter_context(bar)
        for batch in cut(batches, limit):
            write(batch)
            advance(batch.num_rows)


def one_source(data: Path | None, bootstrap: str | None) -> tuple[Path | None, str | None]:
    """Exactly one of the two. The command line overrides the environment, which may be a node's.

    Errors: ``click.UsageError``.
    """
    if data is not None and bootstrap is not None:
        if is_typed("data") and not is_typed("bootstrap"):
            return data, None
        if is_typed("bootstrap") and not is_typed("data"):
            return None, bootstrap
    if (data is None) == (bootstrap is None):
        raise click.UsageError("Give either --data or --bootstrap.")
    return data, bootstrap


def _embedded(
    stack: ExitStack, data: Path, topic: str, position: int, follow: bool, as_json: bool
) -> Iterator[pa.RecordBatch]:
    def on_damage(text: str) -> None:
        echo(json.dumps({"damaged": text}) if as_json else f"damaged: {text}", err=True)

    files = stack.enter_context(reading(data))
    if not follow:
        check_exists(files, topic)
    reader = TopicReader(files, topic, position, on_damage)
    stack.callback(reader.close)
    return reader.follow(_wait) if follow else reader.batches()


def cut(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to ``limit`` rows; a batch behind them may never come, and is not awaited."""
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


def _printing(
    fields_of: Callable[[pa.RecordBatch], Iterator[Fields]], as_json: bool
) -> Callable[[pa.RecordBatch], None]:
    listed = Listing(as_json)

    def write(batch: pa.RecordBatch) -> None:
        for fields in fields_of(batch):
            listed.line(fields)
        sys.stdout.flush()

    return write


@contextmanager
def arrow_file(
    path: Path, schema: pa.Schema | None, *, keep: bool
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Give a function that writes a batch. ``schema``: None for that of the first batch; without
    any, no file is made. ``keep``: an interrupted command keeps the file, too."""
    # A pipe or a device is written to, not replaced.
    is_file = path.is_file() or not path.exists()
    part = path.with_name(path.name + ".part") if is_file else path
    writer: Any = None
    with ExitStack() as stack:

        def begin(schema: pa.Schema) -> Any:
            sink: Any = stack.enter_context(part.open("wb"))
            return stack.enter_context(pa.ipc.new_stream(sink, schema))

        def write(batch: pa.RecordBatch) -> None:
            nonlocal writer
            if writer is None:
                writer = begin(batch.schema)
            writer.write_batch(batch)

        if schema is not None:
            writer = begin(schema)
        whole = keep
        try:
            yield write
            whole = True
        finally:
            stack.close()
            if not is_file:
                pass
            elif writer is not None and whole:
                part.replace(path)
            else:
                part.unlink(missing_ok=True)


def _wait() -> bool:
    """Wait a little. Returns False when no process reads the output any more."""
    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if output.poll(0):
            return False
    except (OSError, ValueError):  # not a real file: it cannot be polled
        pass
    time.sleep(LOOK_AGAIN_S)
    return True
