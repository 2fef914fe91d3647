"""Structured logs: one line an event, as text with ``key=value`` pairs or as JSON.

An event is a short fixed message and its fields, so that lines can be searched and counted. Lines
are written to stderr; a library's log line becomes an event without fields.
"""

from __future__ import annotations

import json
import logging
import time
from typing import IO

from ..wheel.texts import shown_text, visible_text

TEXT, JSON = FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_FIELDS = "slotwheel_fields"
_QUIET = ("kafka", "slotwheel.librdkafka")
"""Kafka clients log each failed connection attempt; the node logs the problem once."""


def event(logger: logging.Logger, level: int, message: str, **fields: object) -> None:
    """Log one event. ``fields`` must be numbers, texts, or lists of them."""
    logger.log(level, message, extra={_FIELDS: fields})


def set_up(log_format: str, level: str, stream: IO[str]) -> None:
    """Send every event from ``level`` on to ``stream``; earlier handlers are replaced."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if log_format == JSON else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.CRITICAL)


class TextLines(logging.Formatter):
    """``2026-11-20T18:00:00.123Z info listening on 127.0.0.1:7200 data=/var/lib/wheel``."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname.lower(), _one_line(record.getMessage())]
        parts += [f"{key}={_quoted(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            parts.append("traceback=" + json.dumps(self.formatException(record.exc_info)))
        return " ".join(parts)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, _FIELDS, {})
    return fields


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and not any(c in ' "=' for c in text) and visible_text(text) == text
    return text if plain else json.dumps(text)


def _one_line(text: str) -> str:
    return text if shown_text(text, lines=False) == text else json.dumps(text)
