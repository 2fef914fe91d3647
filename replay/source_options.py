"""The options of ``spark.read.format("slotwheel")``: text in, values out.

Errors name the option, what was given, what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ..delivery.names import DEAD_LETTER_TOPIC
from ..wheel.errors import InvalidConfiguration
from .reading.layout import Wanted

VIEWS = ("rows", "problems")
STREAM_VIEWS = (*VIEWS, "facts")
KNOWN = (
    "path",
    "slots",
    "journal",
    "archive",
    "topics",
    "from",
    "to",
    "peer",
    "columns",
    "view",
    "starting",
    "max_bytes",
    "dead_letter_topic",
)
STARTING = ("earliest", "latest")
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SourceOptions:
    paths: tuple[str, ...]
    wanted: Wanted
    peer: str = ""
    columns: tuple[str, ...] = ()
    view: str = "rows"
    starting: str = "earliest"
    """A stream: from where it begins when it has no checkpoint."""
    max_bytes: int = MAX_BYTES
    """A stream: about as much of the journals, and of the topics, in one batch."""
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    """A stream of facts: where messages are that no topic took."""


def parse(options: Mapping[str, str], all_columns: tuple[str, ...]) -> SourceOptions:
    """Errors: ``InvalidConfiguration``."""
    for name in options:
        if name not in KNOWN:
            raise _wrong(name, options[name], f"the options are {', '.join(KNOWN)}")
    paths = tuple(one.strip() for one in options.get("path", "").split(",") if one.strip())
    if not paths:
        raise InvalidConfiguration(
            "no data directory is given", remedy="Name one, or several with commas, in load()"
        )
    view = options.get("view", VIEWS[0])
    if view not in STREAM_VIEWS:
        raise _wrong("view", view, " or ".join(VIEWS))
    starting = options.get("starting", STARTING[0])
    if starting not in STARTING:
        raise _wrong("starting", starting, " or ".join(STARTING))
    max_bytes = options.get("max_bytes", str(MAX_BYTES))
    if not max_bytes.isdigit() or int(max_bytes) == 0:
        raise _wrong("max_bytes", max_bytes, "a number of bytes, 1 or more")
    columns = tuple(one.strip() for one in options.get("columns", "").split(",") if one.strip())
    for column in columns:
        if column not in all_columns:
            raise _wrong("columns", column, f"the columns are {', '.join(all_columns)}")
    start_ms, end_ms = _time(options, "from"), _time(options, "to")
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise _wrong("to", options["to"], f"later than from={options['from']}")
    wanted = Wanted(
        slots=_flag(options, "slots", True),
        journal=_flag(options, "journal", True),
        archive=_flag(options, "archive", True),
        topics=_flag(options, "topics", False),
        start_ms=start_ms,
        end_ms=end_ms,
    )
    return SourceOptions(
        paths,
        wanted,
        options.get("peer", ""),
        columns,
        view,
        starting,
        int(max_bytes),
        options.get("dead_letter_topic", DEAD_LETTER_TOPIC),
    )


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _wrong(name, text, "true or false")
    return text.lower() == "true"


def _time(options: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since the epoch, or ISO 8601; without a zone UTC is meant."""
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
