"""A target for sums that keeps them, ids, and what an audit's report says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from slotwheel.account.limits import AccountLimits
from slotwheel.account.vocabulary import AuditVerdict, Tier
from slotwheel.audit.ledger import AuditLedger
from slotwheel.audit.sums import IdSum, SumBatch, SumKey, SummedRange, Sums, add_sum, decode_sums
from slotwheel.trace.events import EventSender
from slotwheel.wheel.digest import id_hashes
from slotwheel.wheel.mark import Mark, Marks


class KeptSums:
    """``away``: sending fails."""

    def __init__(self) -> None:
        self.batches: list[SumBatch] = []
        self.away = False

    def send(self, value: bytes) -> None:
        if self.away:
            raise ConnectionError("the audit topic is away")
        self.batches.append(decode_sums(value))

    def close(self) -> None: ...

    @property
    def sums(self) -> Sums:
        found: Sums = {}
        for batch in self.batches:
            for key, one in batch.sums.items():
                add_sum(found, key, one)
        return found


def hash_of(wheel: str, offset: int) -> int:
    return int(id_hashes(pa.array([wheel]), np.array([offset], np.int64))[0])


def plain_sums(
    rows: Iterable[tuple[str, int, int]], about: tuple[str, str, str], interval_ms: int
) -> dict[SumKey, tuple[int, int]]:
    """Count and sum of messages (topic, due, offset), one after the other."""
    tier, wheel, group = about
    counts: Counter[SumKey] = Counter()
    hashes: Counter[SumKey] = Counter()
    for topic, due, offset in rows:
        key = SumKey(tier, wheel, topic, group, due // interval_ms * interval_ms)
        counts[key] += 1
        hashes[key] += hash_of(wheel, offset)
    return {key: (counts[key], hashes[key] % (1 << 64)) for key in counts}


def pairs(sums: Sums) -> dict[SumKey, tuple[int, int]]:
    return {key: (one.count, one.hash) for key, one in sums.items()}


def id_sum(offsets: Iterable[int], wheel: str = "default") -> IdSum:
    listed = list(offsets)
    return IdSum(len(listed), sum(hash_of(wheel, one) for one in listed) % (1 << 64))


LIMITS = AccountLimits(1_000, 500, 2_000)
ALL_MARK = Mark(1 << 40, 1 << 40, 1 << 40)


def ledger() -> AuditLedger:
    return AuditLedger("default", LIMITS, 0, ahead_ms=1 << 40)


def see(
    found: AuditLedger,
    tier: Tier,
    offsets: list[int],
    at_ms: int = 100,
    created_ms: int | None = None,
) -> None:
    count = len(offsets)
    created = None if created_ms is None else np.full(count, created_ms, np.int64)
    due, offset = np.full(count, at_ms, np.int64), np.array(offsets, np.int64)
    position = np.arange(count) if tier is Tier.DELIVERED else None
    topic = pa.array(["orders"] * count, pa.utf8())
    found.see(tier, topic, due, offset, 0, None, position, created=created)


def batch_of(
    name: str, number: int, tier: Tier, one: IdSum, end: int = 0, missing: int = 0
) -> SumBatch:
    group = "" if tier is Tier.PRODUCED else "billing"
    sums = {SumKey(tier, "default", "orders", group, 0): one}
    ranges = [SummedRange("billing", "orders", 0, 0, end)] if group else []
    return SumBatch(EventSender(name, name), number, 1_000, sums, ranges, missing, last=True)


def verdicts(found: AuditLedger, now_ms: int = 100_000) -> dict[str, tuple[AuditVerdict, int]]:
    found.pass_marks(Marks(main=ALL_MARK), 0)
    found.report(0)
    (cell,) = found.report(now_ms)
    return {one.boundary: (one.verdict, one.count) for one in cell.comparisons}
