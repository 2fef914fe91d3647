"""Who is on a connection, and which of its rows and actions are let in.

Theory: a connection proves once who calls, with its hello. From then on its rows are checked where
they are offered, before those of several callers become one batch: behind that nobody knows whose
they are. The check reads the topics alone, by kernels where there are many rows, and the engine
learns nothing of principals.

    hello ──> Callers.admit ──> ConnectedCaller ──> check of rows, of actions
                                  ^
    every 10 s: another file, a token that ended ──> Callers.renew

Rules
- A batch is refused whole, with the operation and the first topic that it may not have. Otherwise
  the caller had to find out which of its rows were stored.
- A batch whose topics cannot be read is refused too, though the wheel might convert them: it would
  be stored unchecked.
- A caller that lost its proof may do nothing from that instant, also with what was read of it
  before, and then its connection ends.
- A stranger's reason goes to the node's log, once a second at most, and never to the stranger.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...security.accesslog import EVENT_OF, AccessLog, StrangerNotes
from ...security.pending import Amounts, PendingOffer
from ...security.principals import Authenticator, Identity, IdentityProof
from ...security.quotas import CountedConnection
from ...security.rights import Operation, Right, Rights, TopicList, forbidden
from ...wheel.errors import Forbidden, InvalidBatch, InvalidMessage, Unauthenticated
from ...wheel.plain import PlainBatch
from ...wheel.protocol import AppendCommand
from ...wire.server import Connection
from .ports import IntakeEvents

_NOTHING = Rights({})
_OFFSETS_OF_FEW = tuple(struct.Struct(f"<{count + 1}i") for count in range(9))
"""By a number of rows, the offsets of their topics."""
_TEXT = pa.utf8()
Int32s = npt.NDArray[np.int32]


class ConnectedCaller:
    """The caller of one connection. Any thread may ask it."""

    def __init__(
        self, callers: Callers, identity: Identity, proof: IdentityProof, host: str
    ) -> None:
        self.identity = identity
        self.host = host
        self._callers = callers
        self._proof = proof
        self._connection = CountedConnection()
        self._is_known = True

    @property
    def rights(self) -> Rights:
        """Its rights of now."""
        return self.identity.rights

    @property
    def party(self) -> str:
        """Its principal; where nobody has to prove who he is, its address."""
        return self.host if self._callers.authenticator.is_open else self.identity.principal

    # Rows

    def check_rows(self, rows: pa.RecordBatch) -> TopicColumn | None:
        """Check the topics of an Arrow batch, which nobody has validated yet. Returns them; None:
        nobody has looked. Errors: as of ``check``; ``InvalidBatch``: they cannot be read."""
        rights = self.identity.rights
        if rights.is_unlimited or not rows.num_rows:
            return None
        topics = TopicColumn.of(rows)
        if topics is None:
            raise InvalidBatch(
                "the topics of the batch cannot be read",
                limit="a column 'topic' of text without nulls",
                remedy="Build it with an Arrow library and the documented schema",
            )
        has = rights.topics(Right.SCHEDULE).has
        for topic in topics.distinct():
            if not has(topic):
                raise self._denied(
                    Operation.APPEND, topic.decode(errors="replace"), topics.index(topic)
                )
        return topics

    def check_plain(self, batch: PlainBatch) -> None:
        """Check the topics of plain rows. Errors: as of ``check``."""
        rights = self.identity.rights
        if rights.is_unlimited:
            return
        has = rights.topics(Right.SCHEDULE).has
        for number, row in enumerate(batch.rows):
            if not has(row[1]):
                topic = row[1].decode(errors="replace")
                raise self._denied(Operation.APPEND, topic, number)

    def charge(self, rows: int, nbytes: int, amounts: Callable[[], Amounts]) -> PendingOffer | None:
        """As ``Authenticator.charge``, for this caller."""
        authenticator = self._callers.authenticator
        return authenticator.charge(self.identity, rows, nbytes, amounts)

    # Actions

    def check(self, operation: Operation, topic: str = "") -> None:
        """Check an action, for a ``topic`` if it concerns one, and log it. Errors: ``Forbidden``;
        ``Unauthenticated``: it is known no more, and its connection is about to end."""
        if not self._is_known:
            raise Unauthenticated
        if not self.identity.rights.may(operation, topic):
            raise self._denied(operation, topic)
        if event := EVENT_OF.get(operation.right):
            self._callers.log.note(
                event, self.identity.principal, operation=operation.label, host=self.host
            )

    def topics_for(self, right: Right, fields: dict[str, Any]) -> Callable[[str], bool] | None:
        """Tells of a topic whether an action with these fields may concern it; None: it may concern
        every topic. A gateway, which may everything, names in ``topics`` those for which its own
        caller has the right. Errors: ``InvalidMessage``."""
        rights = self.identity.rights
        own = None if rights.is_unlimited else rights.topics(right).has
        given = fields.get("topics")
        if given is None:
            return own
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise InvalidMessage(
                "no usable 'topics'", got=repr(given)[:80], limit="a list of texts"
            )
        named = TopicList(given).has
        return named if own is None else lambda topic: own(topic) and named(topic)

    def _denied(
        self, operation: Operation, topic: str = "", row: int | None = None
    ) -> Forbidden | Unauthenticated:
        if not self._is_known:
            return Unauthenticated()
        self._callers.log.note(
            "denied",
            self.identity.principal,
            operation=operation.label,
            topic=topic,
            host=self.host,
        )
        return forbidden(operation, topic, row)

    # Its connection

    def connect(self) -> None:
        """Count its connection, until ``leave``. Errors: ``OverQuota``."""
        self._connection.count_for(self.identity.meter)

    def leave(self) -> None:
        self._connection.end()

    def renew(self) -> Unauthenticated | None:
        """Take the rights of now. Returns the error if it is known no more: it may do nothing
        then."""
        try:
            self.identity = self._callers.authenticator.authenticate(self._proof)
        except Unauthenticated as error:
            self._is_known = False
            self.identity = replace(self.identity, rights=_NOTHING)
            return error
        self._is_known = True
        return None


class TopicColumn:
    """The topics of a batch that nobody has validated. Only their offsets are checked here, which
    is a fraction of what Arrow's validation costs, and is enough to read no byte outside the
    batch."""

    def __init__(self, column: pa.Array, ends: Sequence[int] | Int32s, content: memoryview) -> None:
        self._column = column
        self._ends = ends
        self._content = content
        self._distinct: Iterable[bytes] | None = None

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> TopicColumn | None:
        """The topics; None: they cannot be read."""
        at = rows.schema.get_field_index("topic")
        column = None if at < 0 else rows.column(at)
        if column is None or column.type != _TEXT or column.null_count:
            return None
        count, start = len(column), column.offset * 4
        _, offsets, data = column.buffers()
        content = memoryview(data or b"")
        ends: Sequence[int] | Int32s
        try:
            if count < len(_OFFSETS_OF_FEW):  # NumPy would cost more than the rows do
                ends = _OFFSETS_OF_FEW[count].unpack_from(offsets or b"", start)
                rises = list(ends) == sorted(ends)
            else:
                ends = np.frombuffer(offsets or b"", np.int32, count + 1, start)
                rises = bool((ends[1:] >= ends[:-1]).all())
        except (ValueError, struct.error):  # fewer offsets than rows
            return None
        inside = ends[0] >= 0 and ends[-1] <= len(content)
        return cls(column, ends, content) if rises and inside else None

    def distinct(self) -> Iterable[bytes]:
        """The different topics, UTF-8 if the caller was honest, in the order in which they come."""
        if self._distinct is None:
            self._distinct = self._find_distinct()
        return self._distinct

    def _find_distinct(self) -> Iterable[bytes]:
        if not isinstance(self._ends, np.ndarray):
            texts = self._texts()
            return texts if len(texts) == 1 else dict.fromkeys(texts)
        first, second, last = (int(self._ends[at]) for at in (0, 1, -1))
        count, width = len(self._column), second - first
        # Mostly all are for one topic. The widths are compared too: ``a, aa`` and ``aa, a`` are the
        # same bytes.
        if width * count == last - first and (np.diff(self._ends) == width).all():
            topic = bytes(self._content[first:second])
            if self._content[first:last].tobytes() == topic * count:
                return (topic,)
        values: list[bytes] = self._column.view(pa.binary()).unique().to_pylist()
        return values

    def index(self, topic: bytes) -> int:
        """The first row with that topic."""
        return self._texts().index(topic)

    def _texts(self) -> list[bytes]:
        ends = self._ends.tolist() if isinstance(self._ends, np.ndarray) else self._ends
        content = self._content
        return [bytes(content[start:end]) for start, end in pairwise(ends)]


class Callers:
    """Makes callers of connections. Thread-safe."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        log: AccessLog | None = None,
        events: IntakeEvents | None = None,
    ) -> None:
        self.log = log or AccessLog(None)
        self._events = events or IntakeEvents()
        self._strangers = StrangerNotes(self.log, self._report)
        self.authenticator = authenticator or Authenticator()

    def admit(self, connection: Connection, command: AppendCommand) -> ConnectedCaller:
        """The caller of a connection, by its certificate and the token of its hello. Errors:
        ``Unauthenticated``."""
        proof = IdentityProof.of(connection.certificate_names, command.token)
        try:
            identity = self.authenticator.authenticate(proof)
        except Unauthenticated as error:
            self._note_stranger(connection.host, error.reason)
            raise
        self.log.note("login", identity.principal, host=connection.host)
        return ConnectedCaller(self, identity, proof, connection.host)

    def check_peer(self, connection: Connection) -> None:
        """Check that a peer may come where clients connect: not where there is a security file. It
        has no way to prove itself here, and whoever knew the address could pose as a peer. Errors:
        ``Unauthenticated``."""
        if not self.authenticator.is_open:
            self._note_stranger(connection.host, "a peer at the address of clients")
            raise Unauthenticated

    def _note_stranger(self, host: str, reason: str) -> None:
        self._events.refused(Unauthenticated.code, 0)
        self._strangers.note(host, reason)

    def _report(self, host: str, reason: str, count: int) -> None:
        self._events.event("unauthenticated", host=host, reason=reason, count=count)


def local_caller() -> ConnectedCaller:
    """A caller of a node without a security file: it may do everything."""
    callers = Callers()
    proof = IdentityProof()
    return ConnectedCaller(callers, callers.authenticator.authenticate(proof), proof, "")
