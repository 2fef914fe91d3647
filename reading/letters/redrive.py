"""Sends dead letters to the topics they were addressed to, each of them once.

Theory: each batch has a note of its letters (``notes.py``), stored with them or not at all. So a
redrive must know all notes that were stored before it, and that none will be stored beside its own.
It takes its *turn*:

1. It sends a note of its own, without letters, as the successor of all turns before it
   (``client/succession.py``). Once that is stored, the wheel refuses every batch of an earlier
   turn: one of a killed process that is still under way, and one of a redrive that still goes on.
2. It waits until the mark of the main line covers its note, with the notes' topic not held back.
   Notes are due at 0, so they leave in the order in which they were stored, whatever the clocks of
   their senders said: all notes before its own were delivered then.
3. It waits until it can read its own note in the notes' topic: those before it, in the same
   partition, can be read, too. Then it reads them all, and leaves the letters out that they name.

A node that repeats after a crash may deliver a note twice, which does no harm.

Another wheel knows nothing of these turns. So letters of a topic are redriven through the wheel
group of its first note alone, and another group is refused: both would send the same letters.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...client.addresses import Nodes
from ...client.columns import pieces, without
from ...client.message import clock_ms
from ...client.receipts import Receipts
from ...client.resending import WAITING_MAX, Resending
from ...client.succession import SEQUENCES, Successor
from ...policy.deadletters import notes_topic
from ...wheel.delay import as_due
from ...wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    NodeUnreachable,
    SequenceTooOld,
    SlotwheelError,
)
from ...wheel.rows import take_rows, without_slack
from ...wheel.schema import Int64s
from .again import to_input
from .notes import LETTERS_MAX, Places, Redriven, note_row, places_of
from .source import LetterSource, Topic

_LOOK_AGAIN_S = 0.05
_TRIES = 5
_AHEAD_MS = 366 * 86_400_000
"""A turn whose clock was further ahead of ours, ms, is believed only if the wheel knows it, too."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of a redrive. ``number``: its first sequence. ``redriven``: the letters of all turns
    before it."""

    client: Successor
    number: int
    notes: str
    group: str
    redriven: Redriven

    def note(self, letters: Places) -> pa.RecordBatch:
        return note_row(self.notes, self.group, self.number, letters)


def read_notes(source: LetterSource, topic: str, *, whole: bool = True) -> Redriven:
    """Read the topic of the notes; without such an embedded topic no letter is redriven. ``whole``:
    as of ``LetterSource.opened``. Errors: ``InvalidMessage``: Kafka has no such topic;
    ``NodeUnreachable``; ``SlotwheelError``: an embedded one is damaged."""
    redriven, source = Redriven(), source.notes
    if not source.is_kafka and not source.exists(topic):
        return redriven
    with source.opened(topic, whole=whole) as opened:
        redriven.some_deleted = opened.some_deleted
        for batch in opened.batches():
            for value in batch.column("value").to_pylist():
                redriven.add(value)
    return redriven


def redriven_before(
    source: LetterSource, topic: str, opened: Topic, *, whole: bool = False
) -> Redriven:
    """The redriven letters of ``topic``, which is ``opened``; none without a topic of notes.
    ``whole``, errors: as of ``read_notes``."""
    notes = notes_topic(topic)
    return read_notes(source, notes, whole=whole) if notes in opened.topics else Redriven()


def begin(
    source: LetterSource, topic: str, address: str | Nodes, timeout_s: float, known: Redriven
) -> Turn:
    """Take the turn: from then on no earlier redrive sends. ``known``: the notes as they were read
    before. Errors: those of the node and of Kafka; ``InvalidConfiguration``: the node is of another
    group than the notes."""
    notes = notes_topic(topic)
    now_ms = clock_ms()
    before = (turn // SEQUENCES for turn in known.turns)
    start = max(now_ms, *(began_ms + 1 for began_ms in before if began_ms < now_ms + _AHEAD_MS), 1)
    for _ in range(_TRIES):
        # Two turns that begin in the same millisecond must differ.
        number = start * SEQUENCES + secrets.randbelow(SEQUENCES // 2)
        client = Successor(
            address,
            timeout_s=timeout_s,
            producer=producer_of(topic),
            first_sequence=number,
        )
        try:
            group = str(client.status_of_master()["group"])
            _check_group(group, known)
            receipts = client.send_whole(note_row(notes, group, number))
            receipts.result()
            _wait_until_delivered(client, int(receipts.offsets()[0]), notes, timeout_s)
            redriven = _wait_for_note(source, notes, number, timeout_s)
            _check_group(group, redriven)
            return Turn(client, number, notes, group, redriven)
        except SequenceTooOld as error:  # the clock of an earlier turn was ahead of ours
            client.close(0.0)
            start = int(error.limit or 0) // SEQUENCES + 1
        except BaseException:
            client.close(0.0)
            raise
    raise superseded()


def _check_group(group: str, redriven: Redriven) -> None:
    if redriven.group not in (None, group):
        raise InvalidConfiguration(
            "the letters of this topic are redriven through another wheel group",
            got=group,
            limit=redriven.group,
            remedy="Redrive through a node of that one; let each have its own dead-letter topic",
        )


def superseded() -> SlotwheelError:
    return SlotwheelError(
        "another redrive of this topic has begun, and this one ends",
        remedy="Let that one end, and run this again: what was sent is noted",
    )


def producer_of(topic: str) -> int:
    """A topic's producer for all redrives; not 0, and bit 63 is for the node's own."""
    digest = hashlib.sha256(f"slotwheel redrive {topic}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1 | 1


def _wait_until_delivered(client: Successor, offset: int, topic: str, timeout_s: float) -> None:
    """Wait until the sink has answered for every row due at 0 up to ``offset``. Errors:
    ``NodeUnreachable`` if no row is delivered for ``timeout_s``."""
    reached, moved = -1, time.monotonic()
    while True:
        status = client.status_of_master()
        mark = int(status["mark_offset"])
        held = topic in status["held_topics"]
        if mark >= offset and status["mark_c"] > 0 and not held:
            return
        if mark > reached:
            reached, moved = mark, time.monotonic()
        if time.monotonic() - moved > timeout_s:
            raise NodeUnreachable(
                f"the node does not deliver its messages for {topic}, so nobody knows what was"
                " redriven before",
                got="the topic is held back" if held else f"delivered up to offset {mark}",
                limit=f"offset {offset} within {timeout_s} s",
                remedy="'slotwheel status' shows what it waits for; nothing was sent",
            )
        time.sleep(_LOOK_AGAIN_S)


def _wait_for_note(source: LetterSource, topic: str, number: int, timeout_s: float) -> Redriven:
    end = time.monotonic() + timeout_s
    while True:
        redriven = read_notes(source, topic)
        if number in redriven.turns:
            return redriven
        if time.monotonic() > end:
            raise InvalidMessage(
                f"a note that was delivered does not appear in {topic}",
                limit=f"within {timeout_s} s",
                remedy="Redrive through a node that delivers to where the notes are read. For the"
                " embedded topic that a node before a Kafka falls back to, give --data and"
                " --bootstrap",
            )
        time.sleep(_LOOK_AGAIN_S)


@dataclass(slots=True)
class Sending:
    """Sends letters (schema ``AGAIN``) in batches with notes. ``rate``: the number that is due in a
    second (None: all at once). ``meanwhile``: the number of letters that were redriven since they
    were counted."""

    turn: Turn
    resending: Resending
    rate: float | None
    meanwhile: int = 0
    places: list[Places] = field(default_factory=list)
    """The places of the letters of each batch."""
    _waiting: deque[_Part] = field(default_factory=deque)
    """The letters of the receipts that wait."""
    _sent: int = 0
    _start_ms: int | None = None
    """The due time of the first letter, ms."""

    def send(self, letters: pa.RecordBatch) -> int:
        """Send letters, except those that were redriven. Returns the number of letters that are
        done since. Errors: that of a batch before; ``superseded``."""
        done = self.resending.done
        gone = self.turn.redriven.has(letters)
        self.meanwhile += int(gone.sum())
        left = take_rows(letters, np.flatnonzero(~gone)) if gone.any() else letters
        rows_max, bytes_max = self.turn.client.batch_max
        # Half of a batch for the letters: the note needs far less than the other half.
        rows_max = min(rows_max - 1, LETTERS_MAX)
        for rows in pieces(pa.Table.from_batches([left]), rows_max, bytes_max // 2):
            part = _Part(to_input(rows, self._due(rows.num_rows)), places_of(rows))
            self.places.append(part.places)
            self._waiting.append(part)
            self.resending.waiting.append(self._ship(part))
            while len(self._waiting) > WAITING_MAX:
                self._settle()
        return self.resending.done - done + int(gone.sum())

    def finish(self) -> Iterator[int]:
        """Wait for letters under way; yields how many are done since. Errors: as of ``send``."""
        while self.resending.waiting:
            done = self.resending.done
            self._settle()
            yield self.resending.done - done

    def place(self, number: int) -> tuple[int, int]:
        """The partition and position of the letter that was sent as that number."""
        for places in self.places:
            if number < len(places):
                partition, position, _ = places[number].tolist()
                return partition, position
            number -= len(places)
        raise AssertionError("no such letter was sent")

    def _ship(self, part: _Part) -> tuple[Receipts, int]:
        """Send a part, its note last. Returns receipts and the index of the note's."""
        bad = self.turn.client.limits.bad_rows(part.rows, clock_ms())
        kept, good = without(part.rows, list(bad))
        note = self.turn.note(part.places[kept])
        batch = note if good is None else pa.concat_batches([good, note])
        return self.turn.client.send_whole(batch, dict(bad)), part.rows.num_rows

    def _settle(self) -> None:
        """Wait for the oldest receipts. If the node refuses a batch as a whole, its halves are sent
        in its place: in the end only the letters at fault are refused."""
        receipts, count = self.resending.waiting[0]
        with _superseded():
            note_error = receipts.errors().get(count)
            part = self._waiting.popleft()
            if count == 1 or not isinstance(note_error, InvalidMessage | InvalidBatch):
                self.resending.settle()
                return
            halves = part.halves()
            self._waiting.extendleft(reversed(halves))
            self.resending.send_in_parts(lambda: [self._ship(half) for half in halves])

    def _due(self, count: int) -> Int64s:
        """The due times of the next letters by the node's clock, ms, shape (count,): as soon as it
        takes them, or spread by the rate from now on."""
        first, self._sent = self._sent, self._sent + count
        if self.rate is None:
            return np.full(count, as_due(0), np.int64)
        if self._start_ms is None:
            self._start_ms = clock_ms() + self.turn.client.limits.clock_ahead_ms
        return self._start_ms + ((first + np.arange(count)) * 1000 / self.rate).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Part:
    """Letters of one batch: rows of the schema ``INPUT``, and their places."""

    rows: pa.RecordBatch
    places: Places

    def halves(self) -> list[_Part]:
        half = len(self.places) // 2
        rows = self.rows.slice(0, half), self.rows.slice(half)
        places = self.places[:half], self.places[half:]
        return [_Part(without_slack(half), at) for half, at in zip(rows, places, strict=True)]


@contextmanager
def _superseded() -> Iterator[None]:
    """Translate the wheel's error for a turn that another one has followed."""
    try:
        yield
    except SequenceTooOld:
        raise superseded() from None
