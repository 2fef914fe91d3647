"""``slotwheel send``: send messages to a node, from arguments, a file or a pipe.

Theory: reading, sending and printing overlap. The main thread reads lines and passes them to the
client; a second thread waits for the receipts, in order, and prints the ids. The queue between them
and the client's buffer are bounded: otherwise a large file would fill the memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import click

from ..client import Message
from ..wheel.checks import check_topic, reserved_among, reserved_header
from ..wheel.errors import InvalidMessage
from ..wheel.names import IfExists, check_name
from .invocation import Exit
from .progress import progress_bar
from .reaching import Reached, connected, wheel_options
from .receipts import ReceiptPrinter
from .shared import check_due, due_options, json_option, name_option, pair, positive_span
from .terminal import echo

READ_BYTES = 256 << 10
PART_LINES_MAX = 5_000
LINE_BYTES_MAX = 64 << 20


_NO_VALUES = "Give values as arguments, by --file, or on stdin, one a line."


@click.command("send")
@click.argument("topic", required=False)
@click.argument("values", nargs=-1)
@due_options
@click.option("--level", help="Due after the delay of this level; see `slotwheel policies`.")
@click.option(
    "--route", help="Send to the topics of this route; then no TOPIC is given, only values."
)
@click.option(
    "--ttl",
    type=positive_span,
    help="Do not deliver them any more so long after they are due: 500ms, 30s, 5m, 2h.",
)
@click.option("--key", help="The key of every message.")
@click.option(
    "--header",
    "headers",
    type=pair,
    multiple=True,
    help="A header of every message; may be repeated.",
)
@name_option
@click.option(
    "--if-exists",
    type=click.Choice([rule.value for rule in IfExists]),
    help="What to do where a pending message of TOPIC has that name: replace (which holds without"
    " it) cancels that one, keep leaves it and drops the new one, refuse reports an error.",
)
@click.option("--partition", type=click.IntRange(min=0), help="The partition of the target topic.")
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    help="Read values from a file, one a line; - is stdin.",
)
@click.option(
    "--receipts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what was stored in a new FILE, for `slotwheel replay --receipts`.",
)
@wheel_options
@json_option
def command(
    topic: str | None,
    values: tuple[str, ...],
    delay: timedelta | None,
    at: datetime | None,
    level: str | None,
    route: str | None,
    ttl: timedelta | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    name: str | None,
    if_exists: str | None,
    partition: int | None,
    source: BinaryIO | None,
    receipts: Path | None,
    address: Reached,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Send messages to TOPIC, due after --delay or --level, or --at a time.

    VALUES are one message each. Without them, values are read from --file or stdin, one a line.
    Prints the id of each message once it is stored, one a line; what became of the message that had
    its --name before stands on stderr. A message that cannot be sent is reported on stderr and does
    not keep the others; the exit code is 1 then.
    """
    check_due(delay=delay, level=level, at=at)
    if route is not None and partition is not None:
        raise click.UsageError("Give --partition or --route, not both.")
    if route is not None:  # the first argument is a value then, and no topic
        values, topic = (*(() if topic is None else (topic,)), *values), ""
    elif topic is None:
        raise click.UsageError("Give a TOPIC, or --route.")
    else:
        check_topic(topic)
    if name is not None:
        check_name(name)
    elif if_exists is not None:
        raise click.UsageError("--if-exists needs --name.")
    if reserved := reserved_among([name for name, _ in headers]):
        raise reserved_header(reserved)
    if values and source is not None:
        raise click.UsageError("Give values as arguments or by --file, not both.")
    if not values and source is None and sys.stdin.isatty():
        raise click.UsageError(_NO_VALUES)
    stream = None if values else source or sys.stdin.buffer
    parts = iter([[value.encode() for value in values]]) if stream is None else read_parts(stream)
    printer = ReceiptPrinter(as_json, routed=route is not None, named=name is not None)
    total = None if stream is None else os.fstat(stream.fileno()).st_size or None  # 0: a pipe
    quiet = stream is None or sys.stdout.isatty()  # a bar would stand among the ids
    with (
        connected(address, timeout, receipts=receipts) as client,
        progress_bar("sending", total, "size", "speed", "elapsed", quiet=quiet) as advance,
    ):
        is_empty = True
        for part in parts:
            is_empty = False
            messages = [
                Message(
                    topic=topic,
                    value=value,
                    key=key,
                    headers=headers,
                    partition=partition,
                    due=at,
                    delay=delay,
                    ttl=ttl,
                    level=level,
                    route=route,
                    name=name,
                    if_exists=if_exists,
                )
                for value in part
            ]
            printer.put(client.send_many(messages))
            advance(sum(map(len, part)) + len(part))
        printer.finish()
    if is_empty:  # such as a value that was forgotten, in a script
        echo(f"no messages were given. {_NO_VALUES}", err=True)
    return Exit.FAILED if printer.bad else Exit.DONE


def read_parts(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of ``stream`` without their ends, as many at a time as one read gives, up to
    ``PART_LINES_MAX``: thousands of a file; one of a slow pipe, which must not wait for the next.
    Errors: ``InvalidMessage``: a line is longer than ``LINE_BYTES_MAX``."""
    read = stream.read1 if isinstance(stream, BufferedReader) else stream.read
    rest = bytearray()
    while data := read(READ_BYTES):
        rest += data
        if b"\n" not in data:
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidMessage(
                    "a line is too long to be a message",
                    got=f"more than {LINE_BYTES_MAX} bytes without a line's end",
                    limit=f"{LINE_BYTES_MAX} bytes",
                    remedy="Check that the values are one a line",
                )
            continue
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for start in range(0, len(lines), PART_LINES_MAX):
            yield [line.removesuffix(b"\r") for line in lines[start : start + PART_LINES_MAX]]
    if rest:
        yield [bytes(rest)]
