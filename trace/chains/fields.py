"""Chains, events and figures as fields, for text and for JSON: the same names wherever they are
shown."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow as pa

from ...reading.messagefields import Fields, content
from ...wheel.ids import MessageId
from ..events import STORED
from .anomalies import AnomalyKind, anomaly_text
from .assembling import id_of
from .chain import Chain, ChainStep
from .latency import Latency

_OF_SENDER = ("sender", "client", "address", "sender_tags")


def event_fields(events: pa.Table) -> Iterator[Fields]:
    """The fields of each event (schema ``STORED``); null and empty ones are left out."""
    for row in events.to_pylist():
        fields: Fields = {"at_ms": _ms(row.pop("at")), "kind": row.pop("kind")}
        for name in ("id", "origin"):
            message_id = id_of(row.pop(name))
            fields[name] = None if message_id is None else str(message_id)
        fields |= content("key", row.pop("key"))
        fields |= row
        yield _given(fields)


def events_of(fields: Iterable[Mapping[str, Any]]) -> pa.Table:
    """The inverse of ``event_fields``: schema ``STORED``. Errors: ``UnknownId``."""
    rows = []
    for given in fields:
        row: dict[str, Any] = {name: given.get(name) for name in STORED.names}
        row["at"] = given["at_ms"]
        for name in ("id", "origin"):
            if (text := given.get(name)) is not None:
                of = MessageId.parse(text)
                id_parts = {"group": of.group, "due": of.due, "offset": of.offset}
                row[name] = id_parts | {"check": of.check}
        if (raw := given.get("key_base64")) is not None:
            row["key"] = base64.b64decode(raw)
        elif row["key"] is not None:
            row["key"] = row["key"].encode()
        rows.append(row | {name: row[name] or "" for name in _OF_SENDER})
    return pa.Table.from_pylist(rows, STORED)


def chain_fields(chain: Chain) -> Fields:
    steps = []
    for step in chain.steps:
        fields = {name: value for name, value in asdict(step).items() if name != "key"}
        fields |= content("key", step.key)
        steps.append(_given(fields))
    return {
        "id": chain.id,
        "state": str(chain.state),
        "outcomes": {group: str(state) for group, state in chain.outcomes.items()},
        "messages": [_given(asdict(message)) for message in chain.messages],
        "steps": steps,
        "latency_ms": dict(chain.latency_ms),
        "anomalies": [_given(asdict(anomaly)) for anomaly in chain.anomalies],
        "complete": not chain.missing,
        "missing": list(chain.missing),
    }


def place_of(step: ChainStep) -> str:
    """Topic, partition and offset with slashes, as far as they are known."""
    parts = (step.topic, step.partition, step.offset)
    return "/".join(str(part) for part in parts if part is not None)


def anomaly_fields(anomalies: pa.Table) -> Iterator[Fields]:
    """Each anomaly of a table (schema ``ANOMALY``)."""
    for row in anomalies.to_pylist():
        of_id = id_of(row["id"])
        yield _given(
            {
                "kind": row["kind"],
                "at_ms": row["at"],
                "id": None if of_id is None else str(of_id),
                "topic": row["topic"],
                "group": row["group"],
                "amount": row["amount"],
                "text": anomaly_text(
                    AnomalyKind(row["kind"]), row["amount"], row["group"], row["why"]
                ),
            }
        )


def latency_fields(latency: Latency) -> Fields:
    return {
        "topic": latency.topic,
        "from_ms": latency.bucket_ms,
        "step": str(latency.step),
        "messages": latency.messages,
        "p50_ms": latency.p50,
        "p95_ms": latency.p95,
        "p99_ms": latency.p99,
        "max_ms": latency.max,
    }


def _given(fields: Fields) -> Fields:
    return {
        name: value
        for name, value in fields.items()
        if not (value is None or value is False or value == "")
    }


def _ms(value: datetime) -> int:
    return round(value.timestamp() * 1000)
