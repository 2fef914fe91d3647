"""The last requests, so that one that is sent again is recognized (``wheel/request.py``).

Theory: each is one entry of a producer of its own, and never changes. They stand in the order in
which they were appended: eviction takes the first, a roll back the last. So a key is remembered
until ``requests_max`` later requests were appended; they push out no client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from ..state import ProducerEntry


class Requests:
    """The entry of each request, oldest first. Not thread-safe: under the owner's lock."""

    def __init__(self, requests_max: int) -> None:
        self._max = requests_max
        self._sent: OrderedDict[int, ProducerEntry] = OrderedDict()
        self._unsaved: dict[int, tuple[ProducerEntry]] = {}
        self._gone: set[int] = set()

    def load(self, stored: Mapping[int, Sequence[ProducerEntry]]) -> None:
        entries = [(producer, sent[-1]) for producer, sent in stored.items() if sent]
        self._sent = OrderedDict(sorted(entries, key=lambda item: item[1].index))
        self._evict()

    def find(self, producer: int) -> ProducerEntry | None:
        return self._sent.get(producer)

    def record(self, producer: int, entry: ProducerEntry) -> None:
        # At recovery the checkpoint may have recorded this very entry already.
        self._sent.pop(producer, None)
        self._unsaved.pop(producer, None)
        self._sent[producer] = entry
        self._unsaved[producer] = (entry,)
        self._gone.discard(producer)
        self._evict()

    def _evict(self) -> None:
        while len(self._sent) > self._max:
            self._forget(next(iter(self._sent)))

    def _forget(self, producer: int) -> None:
        del self._sent[producer]
        self._unsaved.pop(producer, None)
        self._gone.add(producer)

    def roll_back(self, after_index: int) -> None:
        """Remove entries with a higher index, which are the last ones."""
        while self._sent and self._sent[last := next(reversed(self._sent))].index > after_index:
            self._forget(last)

    def unsaved(self, upto_index: int) -> tuple[dict[int, Sequence[ProducerEntry]], list[int]]:
        """As ``Producers.unsaved``."""
        # Under the lock there may be very many: they are copied, and only the last looked at.
        changed: dict[int, Sequence[ProducerEntry]] = {**self._unsaved}
        while changed and changed[last := next(reversed(changed))][0].index > upto_index:
            del changed[last]
        return changed, list(self._gone)

    def saved(self, changed: Mapping[int, Sequence[ProducerEntry]], gone: Iterable[int]) -> None:
        """Forget those changes, when the result of ``unsaved`` is durable."""
        for producer, sent in changed.items():
            if self._unsaved.get(producer) is sent:
                del self._unsaved[producer]
        self._gone.difference_update(gone)

    def __len__(self) -> int:
        return len(self._sent)
