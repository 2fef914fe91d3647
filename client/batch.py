"""A batch for the node, under one sequence: one shipment, or several that waited together.

Theory: a caller's rows are in a shipment; a batch is sent. Its rows are those of its shipments, one
after the other, so an answer is shared out by counting: with shipments of 3 and 2 rows and the base
offset 100, the second shipment has the offsets 103 and 104. The state of sending (its time, its
tries) belongs to the batch, and is the same for each shipment in it.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..wheel import compute as pc
from ..wheel.checks import started
from ..wheel.delay import delay_of, due_times
from ..wheel.digest import digests
from ..wheel.errors import SlotwheelError
from ..wheel.ids import MessageId, id_texts
from ..wheel.names import NAME_HEADER
from ..wheel.plain import encode_records
from ..wheel.protocol import StoredBatch
from ..wheel.request import RequestKey
from ..wheel.rows import from_columns, header_values, taken
from ..wheel.schema import Int64s, UInt64s
from .columns import Errors, without
from .message import FlatMessage, clock_ms
from .predecessor import Predecessor
from .tries import Tries

ROW_OVERHEAD = 64
"""An estimate of a row's memory besides its content, bytes."""
_CONTENT = ("topic", "key", "value", "headers")
Columns = tuple[list[Any], ...]
"""Columns of many messages, in the order of ``rows.from_columns``."""
_Names = frozenset[bytes]
"""Names of messages, each behind its topic."""
_NO_NAMES: _Names = frozenset()
_BEHIND_TOPIC = b"\0"
"""A byte that no topic has, so that no name of one topic is taken for another one's."""


class ClientObserver(Protocol):
    """Gets shipments that are done."""

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        """A shipment is stored or has failed. ``content``: the rows that were to be sent, with
        their numbers among the caller's rows, ``kept`` (None: all of them). It is called by any
        thread, perhaps under the sender's lock: it must return at once."""


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Shipment:
    """Rows that are sent in one batch. Its maker gives all its content; then only the sender
    changes it, under its lock, and receipts read it once it is done.

    ``rows``, or ``columns`` of single messages, are to be sent (neither: there are none, or a batch
    has them). ``kept``: the numbers of these rows among all rows of the caller (None: all of them).
    """

    due: Int64s | list[int]
    """Due times of all rows, and until it is done delays (``wheel/delay.py``)."""
    rows: pa.RecordBatch | None = None
    columns: Columns | None = None
    kept: Int64s | None = None
    errors: Errors = field(default_factory=dict)
    nbytes: int = 0
    """The bytes that it takes of the buffer; with ``rows`` they need not be given."""
    copies: bool = False
    """Its rows are one message, for several topics: they are stored together, or none is. ``due``
    has one entry then."""
    whole: bool = False
    """It is stored with all of its rows or not at all, in a batch of its own."""
    request: RequestKey | None = None
    """The request that it is, perhaps a repeat; it is ``whole`` then."""
    on_done: Callable[[], None] | None = None
    """Called once, when done, by any thread, perhaps under the sender's lock: must not block."""
    wait_for: Callable[[Shipment, float | None], None] | None = None
    """Called by a thread that is about to wait until the shipment is done."""
    hurried: Callable[[], None] | None = None
    """Called by a thread that will wait for it soon: it lingers no longer."""
    began_s: float = field(default_factory=time.monotonic)
    """The time at which it was made, monotonic."""
    deadline: float = field(default=math.inf, init=False)
    """The time at which it is given up, monotonic."""
    batch: Batch | None = field(default=None, init=False)
    """The batch that it is sent in; None before it is first sent."""
    alone: bool = field(default=False, init=False)
    """True after its batch was refused as a whole: it is sent in a batch of its own."""
    postponed_for: SlotwheelError | None = field(default=None, init=False)
    """The error for which it was sent again later, the last time."""
    failure: SlotwheelError | None = field(default=None, init=False)
    stored: StoredBatch | None = field(default=None, init=False)
    group: str = field(default="", init=False)
    """The group of the node that has stored it."""
    _observed: tuple[ClientObserver, Columns | pa.RecordBatch, Int64s | None] | None = field(
        default=None, init=False
    )
    _places: Int64s | None = field(default=None, init=False)
    _names: _Names | None = field(default=None, init=False)
    _done: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        if self.rows is not None:
            self.nbytes = self.rows.nbytes + ROW_OVERHEAD

    @property
    def by_itself(self) -> bool:
        """True when no other shipment may share its batch."""
        return self.alone or self.whole

    @property
    def count(self) -> int:
        """The number of rows to be sent."""
        if self.rows is not None:
            return int(self.rows.num_rows)
        return 0 if self.columns is None else len(self.columns[0])

    @property
    def names(self) -> _Names:
        """The names of its rows, whose order among other shipments matters: of two messages of one
        name the later one has to be stored later. That of a shipment of many callers, who do not
        wait for each other, is nobody's concern."""
        if self.whole or (self.rows is None and self.columns is None):
            return _NO_NAMES
        if self._names is None:
            self._names = _names_in(self.content)
        return self._names

    @property
    def content(self) -> Columns | pa.RecordBatch:
        """The rows to be sent, at least one."""
        return self.rows if self.columns is None else self.columns

    def add(self, flat: FlatMessage, nbytes: int) -> int:
        """Add a message to ``columns``, whose first one is ``due``. Returns its number."""
        assert self.columns is not None
        for column, value in zip(self.columns, flat, strict=False):
            column.append(value)
        self.nbytes += nbytes
        return len(self.due) - 1

    def try_until(self, deadline: float) -> None:
        self.deadline = deadline

    def drop_rows(self) -> None:
        """Let go of the rows: its batch has them, or it is done."""
        self.rows = self.columns = None

    def leave_buffer(self) -> tuple[Batch | None, int]:
        """Let go of the batch, which a kept receipt would keep in memory. Returns it, and the bytes
        of the buffer that are free again."""
        left = self.batch, self.nbytes
        self.batch, self.nbytes = None, 0
        return left

    def take_back(
        self,
        rows: pa.RecordBatch,
        bad: Errors | None,
        *,
        alone: bool,
        postponed_for: SlotwheelError | None = None,
    ) -> None:
        """Take ``rows`` back from a batch that was refused, to send them in another one, without
        the ``bad`` ones (errors by number in ``rows``), whose errors are kept for receipts.
        ``postponed_for``: the error for which that is not done at once."""
        self.batch, self.rows, self.alone, self._names = None, rows, alone, None
        self.postponed_for = postponed_for
        if bad is None:
            return
        if self.copies:
            self.errors[0], self.rows = next(iter(bad.values())), None
            return
        kept, good = without(rows, list(bad))
        numbers = np.arange(rows.num_rows) if self.kept is None else self.kept
        for row, error in bad.items():
            self.errors[int(numbers[row])] = error
        self.kept, self.rows = numbers[kept], good

    def finish(self, stored: StoredBatch | None, group: str) -> None:
        self.stored, self.group = stored, group
        self.drop_rows()
        self.due = due_times(self.due, clock_ms() if stored is None else stored.created_ms)
        if stored is not None and stored.shift_ms:
            self.due = np.asarray(self.due, np.int64) + stored.shift_ms
        if self.kept is not None and stored is not None:
            self._places = np.full(len(self.due), -1, np.int64)
            self._places[self.kept] = np.arange(len(self.kept))
        self._end()

    def fail(self, error: SlotwheelError) -> None:
        self.failure = error
        self.drop_rows()
        self.due = due_times(self.due, clock_ms())
        self._end()

    def observe(self, observer: ClientObserver) -> None:
        """Report the end to ``observer``; call it once the content is complete."""
        self._observed = observer, self.content, self.kept

    def _end(self) -> None:
        self._done.set()
        observed, self._observed = self._observed, None
        if observed is not None:
            observer, content, kept = observed
            observer.shipped(self, content, kept)
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def hurry(self) -> None:
        """Send the shipment now, or when nothing else is in flight, as a caller will wait."""
        if self.hurried is not None and not self._done.is_set():
            self.hurried()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until the shipment is done; the sender stops lingering. Errors: ``TimeoutError``."""
        if self._done.is_set():
            return
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if self.wait_for is not None:
            self.wait_for(self, timeout_s)
        if not self._done.wait(None if end is None else max(0.0, end - time.monotonic())):
            raise TimeoutError(f"no receipt within {timeout_s} s; the message is still being sent")

    def error(self, row: int) -> SlotwheelError | None:
        return self.errors.get(row) or self.failure

    def id(self, row: int) -> str:
        """The id of a row. Errors: the row's own; ``SlotwheelError`` without receipts."""
        outcome = self._outcome(row)
        if isinstance(outcome, str):
            return outcome
        # Many rows may have one error, and its traceback grows each time it is raised.
        raise copy(outcome)

    def outcomes(self) -> list[str | SlotwheelError]:
        """The id or the error of each row, once the shipment is done. Rows may share an error:
        raise a copy of it, as a traceback grows each time."""
        if self.failure is not None or self.errors or self.kept is not None or not self.stored:
            return [self._outcome(row) for row in range(len(self.due))]
        due = np.asarray(self.due, np.int64)
        offsets = self.stored.base_offset + np.arange(len(due))
        ids: list[str | SlotwheelError]
        ids = id_texts(self.group, due, offsets, self.stored.checks).to_pylist()
        for place in self.stored.prior:
            ids[place] = self._id_at(self.stored, place, int(due[place]))
        return ids

    def _outcome(self, row: int) -> str | SlotwheelError:
        error = self.error(row)
        if error is not None:
            return error
        if self.stored is None:
            return SlotwheelError(
                "there is no id", got='acks="0"', remedy='Use acks="all" to get receipts'
            )
        return self._id_at(self.stored, self._place(row), self.due_ms(row))

    def _place(self, row: int) -> int:
        """The number of a caller's row among those that were sent."""
        return row if self._places is None else int(self._places[row])

    def _id_at(self, stored: StoredBatch, place: int, due_ms: int) -> str:
        """The id of the message that a row that was sent leaves pending: its own, or that of the
        message that was kept in its place."""
        before = self._before_at(stored, place, due_ms) if stored.prior else None
        if before is not None and before.dropped_id is not None:
            return before.id
        return self._own_id_at(stored, place, due_ms)

    def _own_id_at(self, stored: StoredBatch, place: int, due_ms: int) -> str:
        check = int(stored.checks[place])
        return str(MessageId(self.group, due_ms, stored.base_offset + place, check))

    def _before_at(self, stored: StoredBatch, place: int, due_ms: int) -> Predecessor | None:
        prior = stored.prior.get(place)
        if prior is None:
            return None
        return Predecessor.of(prior, self.group, self._own_id_at(stored, place, due_ms))

    def ids(self, row: int) -> list[str]:
        """All ids of a message: one, or one for each topic of its route. Errors: as of ``id``."""
        first = self.id(row)
        if not self.copies or self.stored is None:
            return [first]
        due_ms = self.due_ms(0)
        return [self._id_at(self.stored, place, due_ms) for place in range(self.stored.count)]

    def befores(self, row: int) -> list[Predecessor | None]:
        """The message before of a row's name, for each of its ``ids``. Errors: as of ``id``."""
        self.id(row)
        if self.stored is None:
            return [None]
        stored, due_ms = self.stored, self.due_ms(row)
        places = range(stored.count) if self.copies else [self._place(row)]
        return [self._before_at(stored, place, due_ms) for place in places]

    def due_ms(self, row: int) -> int:
        """The due time of a row, ms since the epoch. A delay begins by the node's clock, so for one
        it waits until the shipment has ended; of what was not stored it counts from this machine's
        clock then."""
        if delay_of(int(self.due[row])) is not None:
            self.wait(None)
        return int(self.due[row])


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Shipments under one sequence. Only the sender calls what changes it, under its lock."""

    sequence: int
    shipments: Sequence[Shipment]
    tries: Tries = field(default_factory=Tries)
    rows: pa.RecordBatch | None = field(default=None, init=False)
    """The rows as an Arrow batch, made when it is first sent, unless that is by plain rows."""
    records: bytes = field(default=b"", init=False)
    """The rows as plain rows, made when a few single messages are first sent."""
    sent_at: float = field(default=0.0, init=False)
    """The time at which it was sent, monotonic; 0: it has to be sent, perhaps again."""
    last_error: SlotwheelError | None = field(default=None, init=False)
    digest: UInt64s | None = field(default=None, init=False)
    """Digests of ``rows``, if there is a file of receipts; set when it is first sent."""
    sent_ms: int = field(default=0, init=False)
    names: _Names = field(init=False)
    """Those of its shipments."""
    starts: list[int] = field(init=False)
    """The number of each shipment's first row, and one past the last shipment's last row."""

    def __post_init__(self) -> None:
        counts = (shipment.count for shipment in self.shipments)
        self.starts = list(accumulate(counts, initial=0))
        self.names = _NO_NAMES.union(*(shipment.names for shipment in self.shipments))
        for shipment in self.shipments:
            shipment.batch = self

    @property
    def request(self) -> RequestKey | None:
        return self.shipments[0].request

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.starts[-1]

    @property
    def was_made(self) -> bool:
        """True once its rows are joined."""
        return self.rows is not None or bool(self.records)

    def keep(self, rows: pa.RecordBatch) -> None:
        """Keep the joined rows of its shipments, in place of theirs."""
        self.rows = rows
        for shipment in self.shipments:
            shipment.drop_rows()

    def keep_plain(self, records: bytes) -> None:
        """Keep the joined rows as plain rows. The shipments keep theirs, as a refused batch is
        taken apart."""
        self.records = records

    def sent(self, now: float) -> None:
        self.sent_at = now
        self.tries.sent()

    def to_be_sent_again(self) -> None:
        self.sent_at = 0.0

    def refused(self, error: SlotwheelError) -> None:
        self.tries.refused(error)
        if error.retryable:
            self.last_error = error

    def note_content(self, now_ms: int) -> None:
        """Compute the receipts' content digests, before ``rows`` may be dropped."""
        if self.digest is None and self.rows is not None:
            self.digest = digests(*(self.rows.column(name) for name in _CONTENT))
            self.sent_ms = now_ms

    def digest_of(self, rows: pa.RecordBatch, start_ms: int) -> UInt64s:
        """The digests of its ``rows`` as they are stored, with delays that began at ``start_ms``:
        the time at which a message with a delay expires follows from that."""
        assert self.digest is not None
        stored = started(rows, start_ms)
        if stored.column("headers") is rows.column("headers"):
            return self.digest
        return digests(*(stored.column(name) for name in _CONTENT))

    def spans(self) -> Iterator[tuple[Shipment, range]]:
        """Each shipment with the numbers of its rows."""
        for shipment, (start, stop) in zip(self.shipments, pairwise(self.starts), strict=True):
            yield shipment, range(start, stop)

    def by_shipment(self, bad: Errors) -> dict[int, Errors]:
        """Errors of rows, by the shipment's number and the row's number in it."""
        errors: dict[int, Errors] = {}
        for row, error in bad.items():
            number = bisect.bisect_right(self.starts, row) - 1
            errors.setdefault(number, {})[row - self.starts[number]] = error
        return errors


def _names_in(content: Columns | pa.RecordBatch) -> _Names:
    """The names of rows, each with its topic; mostly none."""
    if isinstance(content, tuple):
        if not any(content[5]):
            return _NO_NAMES
        return frozenset(
            topic.encode() + _BEHIND_TOPIC + (value or b"")
            for topic, headers in zip(content[1], content[5], strict=True)
            for name, value in headers
            if name == NAME_HEADER
        )
    given = header_values(content.column("headers"), NAME_HEADER)
    if given is None:
        return _NO_NAMES
    topics = taken(content.column("topic"), given[0]).cast(pa.binary())
    return frozenset(pc.binary_join_element_wise(topics, given[1], _BEHIND_TOPIC).to_pylist())


def nbytes_of(messages: Any) -> int:
    """The bytes of the content of checked messages, or of rows."""
    if isinstance(messages, pa.RecordBatch):
        return int(messages.nbytes)
    return sum([flat.nbytes for flat in messages])


PLAIN_ROWS_MAX, PLAIN_BYTES_MAX = 256, 48 << 10
"""A batch of more rows or bytes is cheaper as an Arrow batch."""


def plain_records(contents: Sequence[Columns | pa.RecordBatch]) -> bytes:
    """The content of several shipments as plain rows; empty where an Arrow batch is better."""
    columns = [content for content in contents if isinstance(content, tuple)]
    count = sum(len(content[0]) for content in columns)
    if len(columns) < len(contents) or count > PLAIN_ROWS_MAX:
        return b""
    try:
        return encode_records(
            (due, topic.encode(), partition, key, value, [(k.encode(), v) for k, v in headers])
            for content in columns
            for due, topic, partition, key, value, headers in zip(*content, strict=True)
        )
    except OverflowError:
        return b""


def gathered(contents: Sequence[Columns | pa.RecordBatch]) -> pa.RecordBatch:
    """Join the content of several shipments, at least one row each, into one batch."""
    columns = [content for content in contents if isinstance(content, tuple)]
    if len(columns) == len(contents):
        # Single messages: joining lists costs a fraction of joining batches.
        joined = (list(chain.from_iterable(parts)) for parts in zip(*columns, strict=True))
        return from_columns(*joined)
    parts = [
        from_columns(*content) if isinstance(content, tuple) else content for content in contents
    ]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
