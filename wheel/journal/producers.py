"""The last five entries of each producer, so that one that is sent again is recognized.

Theory: a producer that got no answer sends the same entry again, with the same sequence. If the
sequence is among the producer's last five, the answer is the one of the first time, and nothing is
stored. A client keeps at most five entries in flight, so five are enough: a sequence that is not
recorded and not older than these is new, even if a later one came first. An older one may have been
stored or not, so it is refused. *Example:* when 9 is the newest, 5 to 8 may still be new; 4 is
refused, unless it is recorded.

Sources of messages use the same table: the producer id is the source's number, the sequence the
last offset of the source in the entry. Those are never evicted: they are the intake's position.
Requests, each a producer of its own, have a table and a bound of their own (``requests.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from ..errors import SequenceTooOld
from ..protocol import IN_FLIGHT_MAX
from ..request import is_request
from ..state import ProducerEntry
from .requests import Requests

SOURCE_PRODUCER = 1 << 63
"""Bit that marks a producer id as a source of messages (or, with the next one, as a request)."""
_ALL = (1 << 64) - 1
_sequence_of = attrgetter("sequence")


class Producers:
    """The last entries of each producer, oldest first; ``requests``: those of requests. Not
    thread-safe: under the owner's lock."""

    def __init__(self, producers_max: int, requests_max: int) -> None:
        self._max = producers_max
        self.requests = Requests(requests_max)
        self._sent: OrderedDict[int, list[ProducerEntry]] = OrderedDict()
        self._changed: set[int] = set()
        self._gone: set[int] = set()

    def load(self, stored: Mapping[int, Sequence[ProducerEntry]]) -> None:
        self.requests.load(
            {producer: sent for producer, sent in stored.items() if is_request(producer)}
        )
        others = ((producer, sent) for producer, sent in stored.items() if not is_request(producer))
        by_use = sorted(others, key=lambda item: item[1][-1].index if item[1] else 0)
        for producer, sent in by_use:
            self._sent[producer] = list(sent)

    def find(self, producer: int, sequence: int) -> ProducerEntry | None:
        """The recorded entry with that sequence, or of that request with any sequence; None if it
        is new. Errors: ``SequenceTooOld``."""
        if is_request(producer):
            return self.requests.find(producer)
        sent = self._sent.get(producer)
        if not sent:
            return None
        newest = -1
        for entry in sent:
            if entry.sequence == sequence:
                return entry
            newest = max(newest, entry.sequence)
        if sequence <= newest - IN_FLIGHT_MAX:
            raise SequenceTooOld(
                "sequence too old to say whether it was stored",
                got=sequence,
                limit=newest - IN_FLIGHT_MAX + 1,
                remedy=f"Keep at most {IN_FLIGHT_MAX} entries in flight; look for the messages"
                " before sending them under a new producer id",
            )
        return None

    def last_sequence(self, producer: int) -> int:
        """The highest sequence of a producer, -1 if it is unknown."""
        sent = self._sent.get(producer)
        return max((entry.sequence for entry in sent), default=-1) if sent else -1

    def record(self, producer: int, entry: ProducerEntry, committed_index: int = _ALL) -> None:
        """Record an entry. ``committed_index``: entries behind it may still be rolled back, and do
        not push older ones out of the record before."""
        if is_request(producer):
            self.requests.record(producer, entry)
            return
        sent = self._sent.setdefault(producer, [])
        for known in sent:
            if known.sequence == entry.sequence:  # at recovery: the checkpoint has it already
                sent.remove(known)
                break
        sent.append(entry)
        if len(sent) > IN_FLIGHT_MAX:
            _trim(sent, committed_index)
        self._sent.move_to_end(producer)
        self._changed.add(producer)
        self._gone.discard(producer)
        if len(self._sent) > self._max:
            self._evict()

    def _evict(self) -> None:
        for producer in self._sent:
            if not producer & SOURCE_PRODUCER:
                del self._sent[producer]
                self._changed.discard(producer)
                self._gone.add(producer)
                return

    def roll_back(self, after_index: int) -> None:
        """Remove entries with a higher index: they were cut from the journal, or never written."""
        self.requests.roll_back(after_index)
        for producer, sent in list(self._sent.items()):
            kept = [entry for entry in sent if entry.index <= after_index]
            if len(kept) != len(sent):
                self._sent[producer] = kept
                self._changed.add(producer)
            if not kept:
                del self._sent[producer]
                self._changed.discard(producer)
                self._gone.add(producer)

    def unsaved(self, upto_index: int) -> tuple[dict[int, Sequence[ProducerEntry]], list[int]]:
        """Producers changed since ``saved``, with entries up to an index, and ids of removed
        ones."""
        changed, gone = self.requests.unsaved(upto_index)
        for producer in self._changed:
            committed = [entry for entry in self._sent[producer] if entry.index <= upto_index]
            _trim(committed, upto_index)
            changed[producer] = committed
        return changed, [*gone, *self._gone]

    def saved(self, changed: Mapping[int, Sequence[ProducerEntry]], gone: Iterable[int]) -> None:
        """Forget those changes, when the result of ``unsaved`` is durable."""
        self.requests.saved(changed, gone)
        for producer in [producer for producer in self._changed if producer in changed]:
            if self._sent[producer] == list(changed[producer]):
                self._changed.discard(producer)
        self._gone.difference_update(gone)

    def __len__(self) -> int:
        return len(self._sent)


def _trim(sent: list[ProducerEntry], committed_index: int) -> None:
    """Of the committed entries keep the five with the highest sequences; keep all others."""
    if len(sent) <= IN_FLIGHT_MAX or sent[IN_FLIGHT_MAX].index > committed_index:
        return  # they are in the order of the log, so five at most are committed
    committed = [entry for entry in sent if entry.index <= committed_index]
    for _ in range(len(committed) - IN_FLIGHT_MAX):
        lowest = min(committed, key=_sequence_of)
        committed.remove(lowest)
        sent.remove(lowest)
