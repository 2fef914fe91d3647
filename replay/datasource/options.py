"""The options of ``spark.read.format("slotwheel")``: text in, values out.

An error names the option, the value that was given, and the values that are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...reading.files import TOPIC, File
from ...reading.layout import FileFilter
from ...wheel.errors import InvalidConfiguration
from .columns import DELIVERED, FACTS, RECEIPTS, ROWS, SCAN, SCHEMAS
from .paths import PATH, PATHS, listed
from .segments import EVENTS

TRACE = "trace"
"""Name of the option with the directory of a trace store."""

KNOWN = (
    PATH,
    "slots",
    "journal",
    "archive",
    "topics",
    "from",
    "to",
    "topic",
    "peer",
    "columns",
    "view",
    "starting",
    "max_bytes",
    "dead_letter_topic",
)
OF_TABLES = frozenset(
    {
        *("provider", "location", "owner", "external", "comment", "collation"),
        *("is_managed_location", "table_type", "serialization.format"),
    }
)
"""Options that Spark's catalogue adds for a table; they are ignored."""
_OF_TABLE = "option."
"""Prefix of the copies that Spark adds of a table's options."""
STARTING = ("earliest", "latest")
MAX_BYTES = 64 << 20
_BY_DEFAULT = {
    ROWS: {"topics": False},
    DELIVERED: {"slots": False, "journal": False, "archive": False},
    RECEIPTS: {"slots": False, "journal": False, "archive": False, "topics": False},
    FACTS: {},
}
"""Kinds of files that a view reads by default; views that are not here are as ``ROWS``."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    paths: tuple[str, ...]
    wanted: FileFilter
    """The kinds of files, and the due times, that are read."""
    topic: frozenset[str] = frozenset()
    """Topics whose rows are read; empty: all."""
    peer: str = ""
    columns: tuple[str, ...] = ()
    view: str = ROWS
    starting: str = "earliest"
    """The position at which a stream without a checkpoint begins."""
    max_bytes: int = MAX_BYTES
    """About how many bytes of the journals, and of the topics each, are in a stream's batch."""
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    """For the views ``facts`` and ``scan``: the topic of the dead letters."""

    def includes(self, file: File, peer: str) -> bool:
        """True if a file may hold wanted rows. ``peer``: the name of its directory."""
        is_other = bool(self.topic) and file.kind == TOPIC and file.topic not in self.topic
        return self.peer in ("", peer) and not is_other


def parse(options: Mapping[str, str], views: tuple[str, ...] = tuple(SCHEMAS)) -> SourceOptions:
    """Options as values. ``views``: those that are allowed, ``STREAM_VIEWS`` of a stream.
    Errors: ``InvalidConfiguration``."""
    for name in options:
        if name not in (*KNOWN, PATHS, *OF_TABLES) and not name.startswith(_OF_TABLE):
            raise _wrong(name, options[name], f"the options are {', '.join(KNOWN)}")
    view = options.get("view", ROWS)
    if view not in views:
        shown = [name for name in views if name != SCAN]
        raise _wrong("view", view, " or ".join(shown))
    starting = options.get("starting", STARTING[0])
    if starting not in STARTING:
        raise _wrong("starting", starting, " or ".join(STARTING))
    max_bytes = options.get("max_bytes", str(MAX_BYTES))
    if not max_bytes.isdigit() or int(max_bytes) == 0:
        raise _wrong("max_bytes", max_bytes, "a number of bytes, 1 or more")
    columns = _several(options, "columns")
    for column in columns:
        if column not in SCHEMAS[view].names:
            raise _wrong("columns", column, f"the columns are {', '.join(SCHEMAS[view].names)}")
    start_ms, end_ms = _times(options)
    default = _BY_DEFAULT.get(view, _BY_DEFAULT[ROWS])
    kinds = {
        name: _flag(options, name, default.get(name, True))
        for name in ("slots", "journal", "archive", "topics")
    }
    return SourceOptions(
        paths=listed(options),
        wanted=FileFilter(**kinds, start_ms=start_ms, end_ms=end_ms),
        topic=frozenset(_several(options, "topic")),
        peer=options.get("peer", ""),
        columns=columns,
        view=view,
        starting=starting,
        max_bytes=int(max_bytes),
        dead_letter_topic=options.get("dead_letter_topic", DEAD_LETTER_TOPIC),
    )


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """``start_ms``, ``end_ms``: events from when to when, the end excluded; None: all."""

    root: str
    columns: tuple[str, ...]
    start_ms: int | None
    end_ms: int | None


def parse_trace(options: Mapping[str, str]) -> TraceOptions:
    """The options of a trace store. Errors: ``InvalidConfiguration``."""
    known = (TRACE, "from", "to", "columns")
    for name, text in options.items():
        if name not in (*known, *OF_TABLES) and not name.startswith(_OF_TABLE):
            raise _wrong(name, text, f"beside {TRACE!r} there are {', '.join(known[1:])}")
    columns = _several(options, "columns") or tuple(EVENTS.names)
    for column in columns:
        if column not in EVENTS.names:
            raise _wrong("columns", column, f"the columns are {', '.join(EVENTS.names)}")
    start_ms, end_ms = _times(options)
    return TraceOptions(options[TRACE], columns, start_ms, end_ms)


def schema_of(chosen: SourceOptions) -> pa.Schema:
    """The schema of the chosen columns; of all columns of the view if none was chosen."""
    schema = SCHEMAS[chosen.view]
    return pa.schema([schema.field(name) for name in chosen.columns or schema.names])


def _several(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _wrong(name, text, "true or false")
    return text.lower() == "true"


def _times(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    start_ms, end_ms = _time(options, "from"), _time(options, "to")
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise _wrong("to", options["to"], f"later than from={options['from']}")
    return start_ms, end_ms


def _time(options: Mapping[str, str], name: str) -> int | None:
    """A time option: milliseconds since the epoch, or ISO 8601, which without a zone is UTC."""
    text = options.get(name)
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(name, text, "milliseconds, or 2026-11-21T18:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _wrong(name: str, got: str, limit: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"the option {name!r} of the data source cannot be that",
        got=repr(got),
        limit=limit,
        remedy=f"Change .option({name!r}, …)",
    )
