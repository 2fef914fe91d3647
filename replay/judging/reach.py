"""The topics that were read: only there can a message that did not arrive be called lost.

Theory: that a message did not arrive is known only when every place was read where it may be: its
topic, and that of the dead letters; embedded topics of all peers, as each has what it delivered as
the master. If one of these was not given, a missing message is undecided, and the input that was
forgotten is named, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ...reading.files import DUMP, TOPIC, Layout
from ...wheel.schema import Mask
from ..facts.summary import FileSummary


@dataclass(frozen=True)
class TopicCoverage:
    """CRCs of topics. ``read``: those of which every existing record was read; ``in_part``:
    embedded ones, where the directories of some peers were not given. ``dead_letters``: whether all
    dead letters were read. By default nothing is left out."""

    read: frozenset[int] | None = None
    """None: all topics."""
    in_part: frozenset[int] = frozenset()
    dead_letters: bool = True

    def lacks_topic(self, topic: npt.NDArray[np.uint32]) -> Mask:
        """True for messages whose topic was not read at all; shape of ``topic``."""
        if self.read is None:
            return np.zeros(len(topic), np.bool_)
        return ~np.isin(topic, _array(self.read | self.in_part))

    def lacks_peers(self, topic: npt.NDArray[np.uint32]) -> Mask:
        """True for messages whose topic was read on some peers only; shape of ``topic``."""
        return np.isin(topic, _array(self.in_part))


def _array(topics: frozenset[int]) -> npt.NDArray[np.uint32]:
    return np.array(sorted(topics), np.uint32)


def group_size(layout: Layout, summaries: Iterable[FileSummary]) -> int:
    """The number of peers of the group, by its state stores and configurations; 0: not known."""
    return max(layout.group_size, *(summary.peers for summary in summaries), 0)


def reach(
    layout: Layout, summaries: Mapping[int, FileSummary], kafka: Collection[str] | None
) -> TopicCoverage:
    """The topics that were read. ``kafka``: those in Kafka; None: no Kafka was given."""
    embedded = {crc32c(file.topic.encode()) for file in layout.of(TOPIC)}
    dumps = [summaries[file.number] for file in layout.of(DUMP) if file.number in summaries]
    read = {crc for summary in dumps for crc in summary.read}
    read |= {crc32c(topic.encode()) for topic in kafka or ()}
    is_whole = len(layout.peers) >= group_size(layout, summaries.values())
    in_part = frozenset() if is_whole else frozenset(embedded - read)
    dead = crc32c(layout.dead_letter_topic.encode())
    # Kafka has dead letters where it has the other topics. A dump without a record may be of any
    # topic.
    is_dumped = kafka is None and not read <= embedded
    dead_letters = not is_dumped or dead in read or not all(dump.rows for dump in dumps)
    return TopicCoverage(frozenset(read | embedded) - in_part, in_part, dead_letters)
