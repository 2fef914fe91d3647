"""From batches of rows to facts, column by column.

A row of the wheel's own files has everything in its columns, so a fact is a handful of copies and
one digest. A record of a Kafka topic has it in its headers: ``records.py``.

Conventions
- A cancel row's ``digest`` is the offset it cancels: two peers' cancel rows are equal or differ
  like messages. It has no topic.
- ``CANCELLED`` stands at the target's offset, and has no digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...policy.headercolumns import DeadLetterHeaders, HeaderColumn, split_dead_letter
from ...reading.files import File, Layout
from ...wheel.digest import content_digests, topic_crcs
from ...wheel.expiry import NEVER_MS, expires_ms
from ...wheel.ids import NO_LONG_IDS, IdMint
from ...wheel.schema import Int64s, Mask, UInt64s, times
from .fact import (
    CANCEL_ROW,
    EXPIRED,
    FACT,
    FORGED,
    IN_FLIGHT_MS,
    NO_DIGEST,
    TOO_SOON,
    Facts,
    Seen,
)


@dataclass(frozen=True)
class GroupTerms:
    """The group that rows are judged by. ``group`` and ``key`` (hex): of the ids, empty when not
    known. ``partitions``: the number of each topic's partitions in Kafka, where it is known.
    ``long_from``: as of ``IdMint``."""

    group: str = ""
    key: str = ""
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    partitions: Mapping[str, int] = field(default_factory=dict)
    long_from: int = 0

    @classmethod
    def of(cls, layout: Layout, dead_letter_topic: str = "") -> Self:
        """The terms of a layout's group. ``dead_letter_topic``: another one than the layout's."""
        topic = dead_letter_topic or layout.dead_letter_topic
        return cls(layout.group, layout.key, topic, long_from=layout.long_from)

    @property
    def are_whole(self) -> bool:
        """True once a directory tells the key, and from which offset on ids are long. A follower
        that begins before the first node of this version does looks again."""
        return bool(self.key) and self.long_from != NO_LONG_IDS

    @cached_property
    def mint(self) -> IdMint | None:
        key = bytes.fromhex(self.key)
        return IdMint(self.group, key, self.long_from) if key else None

    def forged(self, due: Int64s, offset: Int64s, check: UInt64s) -> Mask:
        """True for ids that this group's key did not make; for none when the key is not known."""
        if self.mint is None:
            return np.zeros(len(due), np.bool_)
        wrong: Mask = self.mint.checks(due, offset) != check
        return wrong

    def id_of(self, due: int, offset: int) -> str:
        """The id of a message for a report; without its check when the key is not known."""
        if self.mint is None:
            return f"{self.group}.{due}.{offset}"
        return str(self.mint.one(due, offset))


@dataclass(slots=True)
class FactBatch:
    """Facts of one batch, and the number of rows that gave none."""

    facts: Facts
    topics: dict[int, str] = field(default_factory=dict)
    read: frozenset[int] = frozenset()
    """CRCs of the topics in which rows were found, also those of other producers."""
    foreign: int = 0
    """Rows of another group, or without an id."""
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    """Position and text of malformed ids that begin with the group's name; the first few."""
    unnamed: int = 0
    """The number of further malformed ids."""


def journal_facts(
    file: File, rows: pa.RecordBatch, index: int | Int64s, epoch: int | Int64s
) -> FactBatch:
    """Facts of journal entries' rows (schema ``ROW``). ``index``, ``epoch``: of all, or one a
    row."""
    facts = _of_rows(file, rows, Seen.ACCEPTED)
    facts["where"] = index
    facts["at"] = epoch
    cancel = facts["flags"] & CANCEL_ROW != 0
    made = _with_targets(file, facts, cancel)
    made["seen"][: len(facts)][cancel] = Seen.CANCEL
    made["flags"][: len(facts)][cancel] = 0
    return FactBatch(made, names_of(rows.column("topic")))


def slot_facts(file: File, rows: pa.RecordBatch) -> FactBatch:
    """Facts of a slot file's rows (schema ``ROW``). Its cancels name their targets, too: a message
    whose journal segment is gone was cancelled all the same."""
    facts = _of_rows(file, rows, Seen.ARCHIVED if file.archived else Seen.SLOT)
    facts["where"] = file.slot
    made = _with_targets(file, facts, facts["flags"] & CANCEL_ROW != 0)
    return FactBatch(made, names_of(rows.column("topic")))


def _with_targets(file: File, facts: Facts, cancel: Mask) -> Facts:
    """The facts, and behind them one at the target of each that is a cancel row."""
    if not cancel.any():
        return facts
    cancels = facts[cancel]
    targets = empty(len(cancels), file, Seen.CANCELLED)
    targets["offset"] = cancels["digest"]
    targets["due"] = cancels["due"]
    targets["created"] = -1
    targets["at"] = cancels["created"]
    targets["where"] = cancels["offset"]
    targets["partition"] = -1
    targets["flags"] = NO_DIGEST
    return np.concatenate([facts, targets])


def topic_facts(
    file: File, topic: str, group: str, rows: pa.RecordBatch, terms: GroupTerms
) -> FactBatch:
    """Facts of an embedded topic's rows. ``group``: as its schema names it."""
    count, crc = rows.num_rows, crc32c(topic.encode())
    if terms.group and group != terms.group:
        return FactBatch(empty(0, file, Seen.DELIVERED), foreign=count)
    facts = empty(count, file, Seen.DELIVERED)
    for name in ("offset", "due", "created"):
        facts[name] = times(rows, name)
    facts["at"] = times(rows, "delivered")
    facts["where"] = times(rows, "position")
    facts["partition"] = partitions_of(rows.column("partition"))
    facts["topic"] = crc
    check = np.asarray(rows.column("check"), dtype=np.uint64)
    facts["flags"][terms.forged(times(rows, "due"), times(rows, "offset"), check)] = FORGED
    topics = {crc: topic}
    headers = rows.column("headers")
    if topic == terms.dead_letter_topic:
        taken = HeaderColumn(headers)
        topics |= bury(facts, split_dead_letter(taken, np.arange(count)))
        headers = taken.left()
    judge_expiry(facts, expires_ms(rows.column("headers")))
    facts["digest"] = content_digests(
        facts["topic"], rows.column("key"), rows.column("value"), headers
    )
    return FactBatch(facts, topics, frozenset([crc]))


def bury(facts: Facts, dead: DeadLetterHeaders) -> dict[int, str]:
    """Turn the facts of dead letters, among facts of a dead-letter topic, into those of the topics
    they were for. Returns the names of these topics, by CRC."""
    facts["seen"][dead.rows] = Seen.DEAD
    facts["topic"][dead.rows] = topic_crcs(dead.topic)
    facts["partition"][dead.rows] = dead.partition
    facts["flags"][dead.rows[dead.expired]] |= EXPIRED
    return names_of(dead.topic)


def judge_expiry(facts: Facts, until: Int64s | None) -> None:
    """Flag what got to its topic long after it had expired, and dead letters that say they have
    expired and had not. ``until``: when each expires, ms, shape of ``facts``; None: none does."""
    if until is None:
        until = np.full(len(facts), NEVER_MS, np.int64)
    letters = facts["seen"] == Seen.DEAD
    over = ~letters & (facts["at"] - IN_FLIGHT_MS >= until)
    facts["flags"][over] |= EXPIRED
    soon = letters & (facts["flags"] & EXPIRED != 0) & (facts["at"] < until)
    facts["flags"][soon] |= TOO_SOON


def receipt_facts(file: File, first: int, rows: pa.RecordBatch, terms: GroupTerms) -> FactBatch:
    """Facts of a producer's receipts. ``first``: the number in its file of the batch's first
    row."""
    numbers = np.arange(first, first + rows.num_rows)
    group = rows.column("group")
    if pa.types.is_dictionary(group.type):
        group = group.dictionary_decode()
    foreign = 0
    if terms.group:
        ours = np.asarray(pc.fill_null(pc.equal(group, terms.group), False))
        foreign = int((~ours).sum())
        if foreign:
            rows, numbers = rows.filter(pa.array(ours)), numbers[ours]
    facts = empty(rows.num_rows, file, Seen.RECEIPT)
    for name, column in (("offset", "offset"), ("due", "due"), ("at", "received")):
        facts[name] = times(rows, column)
    facts["created"] = -1
    facts["digest"] = np.asarray(rows.column("digest"), dtype=np.uint64)
    facts["where"] = numbers
    facts["partition"] = -1
    facts["topic"] = topic_crcs(rows.column("topic"))
    check = np.asarray(rows.column("check"), dtype=np.uint64)
    facts["flags"][terms.forged(times(rows, "due"), times(rows, "offset"), check)] = FORGED
    return FactBatch(facts, names_of(rows.column("topic")), foreign=foreign)


def empty(count: int, file: File, seen: Seen) -> Facts:
    facts = np.zeros(count, FACT)
    facts["file"] = file.number
    facts["peer"] = file.peer
    facts["seen"] = seen
    return facts


def _of_rows(file: File, rows: pa.RecordBatch, seen: Seen) -> Facts:
    facts = empty(rows.num_rows, file, seen)
    for name in ("offset", "due", "created"):
        facts[name] = times(rows, name)
    facts["partition"] = partitions_of(rows.column("partition"))
    topics = topic_crcs(rows.column("topic"))
    facts["topic"] = topics
    facts["digest"] = content_digests(
        topics, rows.column("key"), rows.column("value"), rows.column("headers")
    )
    cancels = rows.column("cancels")
    if cancels.null_count < len(cancels):
        cancel = np.asarray(cancels.is_valid())
        facts["digest"][cancel] = np.asarray(pc.drop_null(cancels))
        facts["flags"][cancel] = CANCEL_ROW
    return facts


def partitions_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Partitions as numbers; -1 for a null."""
    if column.null_count == len(column):
        return np.full(len(column), -1, np.int32)
    return np.asarray(pc.fill_null(column, -1), dtype=np.int32)


def names_of(topic: pa.Array) -> dict[int, str]:
    """The topics of a column by their CRCs, without the empty name of cancel rows."""
    names = topic.dictionary if pa.types.is_dictionary(topic.type) else topic.unique()
    return {crc32c(name.encode()): name for name in names.to_pylist() if name}
