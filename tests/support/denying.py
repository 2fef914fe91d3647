"""The deny matrix of the wire: each operation by each role, made from the table of operations."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from slotwheel.node.intake.actions import operation_of
from slotwheel.security.rights import Operation, Right
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.errors import Forbidden
from slotwheel.wheel.plain import encode_records
from slotwheel.wheel.protocol import (
    ACTIONS,
    CLOCK,
    CLOCK_COMMANDS,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    encode_json,
    encode_request,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wire.frames import Kind, encode_frame
from support.exchange import Exchange
from support.waiting import now_ms
from support.wheels import batch

ROLES = {
    "nobody": "",
    "scheduler": "schedule = ['orders', 'pay-*']",
    "other": "schedule = ['other-*']\ncancel = ['other-*']",
    "canceller": "cancel = ['orders']",
    "reader": "read = ['*']\nconsume = ['*']\nredrive = ['*']",
    "observer": "observe = true",
    "policies": "policies = true",
    "operator": "admin = true",
    "gateway": "gateway = true",
    "expired": "gateway = true",
}
"""What a role of that name grants. The token of each is ``swt_`` and its name; that of ``expired``
has ended."""
GRANTED = {
    "scheduler": {Right.SCHEDULE},
    "canceller": {Right.CANCEL},
    "other": {Right.SCHEDULE, Right.CANCEL},
    "reader": {Right.READ},
    "observer": {Right.OBSERVE},
    "policies": {Right.POLICIES},
    "operator": {Right.ADMIN},
    "gateway": set(Right),
}
TOPICS = ("orders", "pay-eu", "other-x", "slotwheel-trace", "orders-")
ALLOWED = {("scheduler", "orders"), ("scheduler", "pay-eu"), ("other", "other-x")}
ALLOWED |= {("gateway", topic) for topic in TOPICS}
"""Role and topic of the rows that are stored."""
FILE = "\n".join(
    [
        *(
            f"[tokens.{role}]\nsha256 = '{digest_of('swt_' + role)}'\n"
            + ("until = 2020-01-01T00:00:00Z\n" if role == "expired" else "")
            + f"[roles.{role}]\n{text}"
            for role, text in ROLES.items()
        ),
        "[members]",
        *(f"'token:{role}' = ['{role}']" for role in ROLES),
    ]
)
FIELDS: dict[str, dict[str, Any]] = {
    "cancel": {"ids": ["default.1.2.00000000"]},
    "reschedule": {"id": "default.1.2.00000000", "due_ms": 1},
    "named": {"topic": "orders", "name": "none"},
    "step-down": {"timeout_s": 1},
    "drain": {"on": False},
    "page": {"path": "/metrics"},
    "register": {"group": "g"},
    "forget": {"group": "g"},
}
"""Fields with which an action would be done."""


def hello(role: str, producer: int = 7) -> AppendCommand:
    return AppendCommand(producer, token=f"swt_{role}" if role else "")


def to(*topics: str) -> pa.RecordBatch:
    return batch([(now_ms() + 60_000, topic, b"x") for topic in topics])


def plain(number: int, *topics: str, key: RequestKey | None = None) -> bytes:
    """The frame of plain rows for these topics. ``key``: of the request that they are."""
    rows = [(now_ms() + 60_000, topic.encode(), None, None, b"x", ()) for topic in topics]
    body = encode_records(rows)
    metadata = encode_request(number, key, len(rows))
    return encode_frame(Kind.ROWS, metadata, len(body)) + body


def plain_answer(exchange: Exchange) -> StoredBatch | RefusedBatch:
    frame = exchange.frame()
    assert frame.kind == Kind.ANSWER
    return decode_answer(bytes(frame.body))


def operations() -> list[tuple[Operation, str, dict[str, Any]]]:
    """Each action with its name and fields."""
    named = [(name, FIELDS.get(name, {})) for name in ACTIONS if name != CLOCK]
    named += [(CLOCK, {"do": command}) for command in CLOCK_COMMANDS]
    return [(operation_of(name, fields), name, fields) for name, fields in named]


def wrong_answers(exchange: Exchange, role: str) -> list[object]:
    """Operations that a role should have been refused and was not, or the other way round."""
    granted = {Right.CONNECT, *GRANTED.get(role, ())}
    wrong: list[object] = []
    for number, (operation, name, fields) in enumerate(operations()):
        answer = exchange.ask(name, encode_json(fields), number)
        refused = answer.get("code") == "forbidden"
        if refused is (operation.right in granted):
            wrong.append((role, operation, answer))
        if refused and operation.label not in answer["message"]:
            wrong.append((role, operation, "the refusal does not name it"))
    for number, topic in enumerate(TOPICS):
        exchange.send(to(topic), 2 * number)
        by_arrow = exchange.answer()
        exchange.send_bytes(plain(2 * number + 1, topic))
        for answered in (by_arrow, plain_answer(exchange)):
            stored = isinstance(answered, StoredBatch)
            if stored is not ((role, topic) in ALLOWED):
                wrong.append((role, topic, answered))
            if isinstance(answered, RefusedBatch) and (
                not isinstance(answered.error, Forbidden) or repr(topic) not in str(answered.error)
            ):
                wrong.append((role, topic, answered.error))
    return wrong
