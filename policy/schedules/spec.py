"""A schedule as it is written, sent and stored: which message comes again and again, and when.

    {"name": "daily-report", "cron": "30 8 * * MON-FRI", "zone": "Europe/Berlin",
     "template": {"topic": "reports", "value": "yesterday", "ttl_ms": 3600000}}

    {"name": "heartbeat", "every_ms": 60000, "jitter_ms": 5000, "missed": "skip",
     "template": {"topic": "beats"}}

Rules
- Equal schedules have equal bytes: fields that say the default are left out, and their order is
  fixed. Otherwise a peer could not compare its table with another's.
- A schedule is checked whole before it is stored. One that is stored never fails when it fires: a
  cron expression that never fires, or a topic that Kafka cannot have, would be noticed at night.
- What is due when is a function of the schedule and of the run before, and of no clock
  (``successor.py``), so every peer, and the proof, compute the same runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from ...wheel.checks import PARTITION_MAX, RESERVED_PREFIX, check_topic, is_time, reserved_header
from ...wheel.errors import InvalidMessage
from ...wheel.names import NAME_HEADER, check_name
from ...wheel.rows import Header
from .cron import cron_expression
from .fields import JsonFields, content_fields, header_pairs
from .zones import is_zone

TEMPLATE_BYTES_MAX = 64 * 1024
"""The most bytes of a template's key, value and headers: a group keeps 100,000 schedules."""
HEADERS_MAX = 100
EVERY_MS = range(1000, 10 * 366 * 86_400_000 + 1)
JITTER_MAX_MS = 86_400_000
CATCH_UP_MAX_MS = 366 * 86_400_000
CATCH_UP_MS = 86_400_000
"""How far back missed runs are made up unless the schedule says otherwise, ms: a day."""
COUNT_MAX = 1 << 53
_TTL_LIMIT_MS = 1 << 56
UTC = "UTC"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_TEMPLATE = (
    *("topic", "value", "value_base64", "key", "key_base64", "headers"),
    *("partition", "ttl_ms", "name"),
)
_SCHEDULE = (
    *("name", "template", "cron", "zone", "every_ms", "anchor_ms", "start_ms", "end_ms", "count"),
    *("jitter_ms", "missed", "catch_up_ms", "paused"),
)

_NO_FIELD = (
    "Correct the name; what concerns the message, such as topic and value, stands in template"
)


class Missed(StrEnum):
    """What becomes of runs that were due while nobody fired them: the last of them becomes a
    message, none does, or all do."""

    LAST = "last"
    SKIP = "skip"
    ALL = "all"


_MISSED = {missed.value: missed for missed in Missed}


@dataclass(frozen=True, slots=True)
class Template:
    """The message of each run. ``ttl_ms``: how long after it is due it is worth something, ms;
    None: for ever. ``name``: the message's name, by which one that is still pending is replaced."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    ttl_ms: int | None = None
    name: str | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of key, value and headers."""
        contents = (self.value, self.key, *(value for _, value in self.headers))
        names = sum(len(name.encode()) for name, _ in self.headers)
        return names + sum(len(content or b"") for content in contents)

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "topic": self.topic,
            **content_fields("value", self.value),
            **content_fields("key", self.key),
            "headers": header_pairs(self.headers) or None,
            "partition": self.partition,
            "ttl_ms": self.ttl_ms,
            "name": self.name,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def _from_json(cls, place: str, given: object) -> Self:
        fields = JsonFields(place, given, _TEMPLATE, "$.template")
        topic = fields.text("topic", 'Write "topic": "orders"')
        try:
            check_topic(topic or "")
        except InvalidMessage as fault:
            raise fields.refused("topic", fault) from None
        headers = fields.headers("headers")
        if len(headers) > HEADERS_MAX:
            raise fields.error(
                "headers", len(headers), f"{HEADERS_MAX} headers at most", "Leave some out"
            )
        if wrong := [name for name, _ in headers if name.startswith(RESERVED_PREFIX)]:
            reserved = reserved_header(wrong)
            if NAME_HEADER in wrong:
                reserved.remedy = 'Write the message\'s name as "name" in template'
            raise fields.refused("headers", reserved)
        template = cls(
            topic=topic or "",
            value=fields.content("value"),
            key=fields.content("key"),
            headers=headers,
            partition=fields.number(
                "partition",
                range(PARTITION_MAX + 1),
                f"0 to {PARTITION_MAX}",
                "Leave it out to let the key decide",
            ),
            ttl_ms=fields.number(
                "ttl_ms", range(1, _TTL_LIMIT_MS), "at least 1 ms", "Write it in milliseconds"
            ),
            name=_name(fields, required=False),
        )
        if template.nbytes > TEMPLATE_BYTES_MAX:
            raise fields.too_large(
                f"{template.nbytes} bytes of key, value and headers",
                f"{TEMPLATE_BYTES_MAX} bytes",
                "Send a key by which the receiver finds the rest",
            )
        return template


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which message comes when. Exactly one of ``cron``, whose local times are those of ``zone``,
    and ``every_ms``. Times are ms since the epoch, spans ms.

    ``anchor_ms``: runs of ``every_ms`` are whole multiples of it away from there; None: from the
    start, or else from 1970-01-01, so that every hour is on the hour (UTC). ``start_ms``,
    ``end_ms``: no run is due before the one, or at the other or later. ``count``: it ends with so
    many messages. ``jitter_ms``: a run is due up to so much later. ``catch_up_ms``: missed runs
    that are older do not become messages, whatever ``missed`` says. ``paused``: nothing fires.
    """

    name: str
    template: Template
    cron: str | None = None
    zone: str = UTC
    every_ms: int | None = None
    anchor_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    count: int | None = None
    jitter_ms: int = 0
    missed: Missed = Missed.LAST
    catch_up_ms: int = CATCH_UP_MS
    paused: bool = False

    @classmethod
    def from_json(cls, given: object) -> Self:
        """Decode a schedule. Errors: ``InvalidField`` with the place of the value."""
        fields = JsonFields(_place_of(given), given, _SCHEDULE, remedy=_NO_FIELD)
        name = _name(fields, required=True) or ""
        cron, every_ms = _rhythm(fields)
        start_ms, end_ms = _time(fields, "start_ms"), _time(fields, "end_ms")
        if start_ms is not None and end_ms is not None and start_ms >= end_ms:
            raise fields.error(
                "end_ms",
                f"{end_ms} ms, with a start at {start_ms} ms",
                "an end behind the start",
                "Correct one of the two; the end itself is left out",
            )
        anchor_ms = _time(fields, "anchor_ms")
        if anchor_ms is not None and every_ms is None:
            raise fields.error("anchor_ms", anchor_ms, "none with cron", "Leave it out")
        paused = fields.given("paused")
        if paused is not None and not isinstance(paused, bool):
            raise fields.error("paused", repr(paused)[:80], "true or false", "Write one of these")
        return cls(
            name=name,
            template=Template._from_json(f"{fields.place}, template", fields.given("template")),
            cron=cron,
            zone=_zone(fields, every_ms),
            every_ms=every_ms,
            anchor_ms=anchor_ms,
            start_ms=start_ms,
            end_ms=end_ms,
            count=fields.number(
                "count", range(1, COUNT_MAX), "at least 1", "Leave it out to go on for ever"
            ),
            jitter_ms=_jitter(fields, every_ms),
            missed=fields.choice("missed", _MISSED, Missed.LAST),
            catch_up_ms=_catch_up(fields),
            paused=bool(paused),
        )

    def to_json(self) -> dict[str, Any]:
        """The schedule as ``from_json`` reads it; what is the default is left out."""
        fields: dict[str, Any] = {
            "name": self.name,
            "template": self.template.to_json(),
            "cron": self.cron,
            "zone": None if self.zone == UTC else self.zone,
            "every_ms": self.every_ms,
            "anchor_ms": self.anchor_ms,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "count": self.count,
            "jitter_ms": self.jitter_ms or None,
            "missed": None if self.missed == Missed.LAST else self.missed.value,
            "catch_up_ms": None if self.catch_up_ms == CATCH_UP_MS else self.catch_up_ms,
            "paused": self.paused or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def encoded(self) -> bytes:
        """The schedule as JSON; equal bytes for equal schedules."""
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, spec: bytes) -> Self:
        """The schedule that ``encoded`` has made these bytes of. Errors: ``ValueError``: these
        are no JSON; ``InvalidField``."""
        return cls.from_json(json.loads(spec))

    def pausing(self, paused: bool) -> Self:
        """This schedule, paused or resumed."""
        return replace(self, paused=paused)


def rhythm_text(fields: Mapping[str, Any]) -> str:
    """When a schedule fires, for people: its cron expression as it was written, or ``every 90 s``.
    ``fields``: as of ``Schedule.to_json``."""
    if fields.get("cron") is not None:
        return str(fields["cron"])
    every_ms = int(fields["every_ms"])
    unit_ms, unit = next((ms, unit) for ms, unit in _UNITS if every_ms % ms == 0)
    return f"every {every_ms // unit_ms} {unit}"


def _place_of(given: object) -> str:
    """The begin of each error: with the schedule's name, as a file may have a hundred schedules."""
    name = given.get("name") if isinstance(given, Mapping) else None
    try:
        check_name(name if isinstance(name, str) else "")
    except InvalidMessage:
        return "schedule"
    return f"schedule {name!r}"


def _name(fields: JsonFields, required: bool) -> str | None:
    """The field ``name``: a schedule's, by the rules of a message's name, or a message's."""
    name = fields.text("name", 'Write "name": "daily-report"')
    if name is None and not required:
        return None
    try:
        check_name(name or "")
    except InvalidMessage as fault:
        remedy = "Choose another one, such as daily-report"
        raise fields.error("name", fault.got, str(fault.limit), remedy) from None
    return name


def _rhythm(fields: JsonFields) -> tuple[str | None, int | None]:
    """The text of a cron expression, or the ms of ``every_ms``."""
    remedy = 'Write "cron": "30 8 * * *", or "every_ms": 60000'
    cron = fields.text("cron", remedy)
    every_ms = fields.number(
        "every_ms",
        EVERY_MS,
        f"{EVERY_MS.start} to {EVERY_MS.stop - 1} ms: once a second at most",
        "Let it fire less often, and send several messages at a time",
    )
    if (cron is None) == (every_ms is None):
        got = "neither" if cron is None else "both"
        raise fields.error("cron and every_ms", got, "exactly one of them", remedy)
    if cron is None:
        return None, every_ms
    try:
        return cron_expression(cron).text, None
    except InvalidMessage as fault:
        raise fields.refused("cron", fault) from None


def _zone(fields: JsonFields, every_ms: int | None) -> str:
    remedy = 'Write it as in "zone": "Europe/Berlin", or leave it out for UTC'
    zone = fields.text("zone", remedy)
    if zone is None or zone == UTC:
        return UTC
    if every_ms is not None:
        raise fields.error(
            "zone",
            repr(zone[:80]),
            "none with every_ms, which no clock change moves",
            "Leave it out",
        )
    if not is_zone(zone):
        raise fields.error("zone", repr(zone[:80]), "a time zone of the IANA table", remedy)
    return zone


def _time(fields: JsonFields, name: str) -> int | None:
    ms = fields.given(name)
    if ms is None or (type(ms) is int and is_time(ms)):
        return ms
    raise fields.error(
        name,
        repr(ms)[:80],
        "milliseconds since 1970, in the years 2000 to 9999",
        "Write it in milliseconds, as in 1790000000000, or leave it out",
    )


def _jitter(fields: JsonFields, every_ms: int | None) -> int:
    limit = min(JITTER_MAX_MS, JITTER_MAX_MS if every_ms is None else every_ms - 1)
    jitter = fields.number(
        "jitter_ms",
        range(limit + 1),
        f"0 to {limit} ms: a day at most, and less than every_ms",
        "Write it shorter, or leave it out",
    )
    return jitter or 0


def _catch_up(fields: JsonFields) -> int:
    catch_up = fields.number(
        "catch_up_ms",
        range(CATCH_UP_MAX_MS + 1),
        f"0 to {CATCH_UP_MAX_MS} ms, a year",
        "Write it shorter, or leave it out for a day",
    )
    return CATCH_UP_MS if catch_up is None else catch_up
