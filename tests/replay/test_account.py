"""The account of all boundaries: what is planted at each is named, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.reading.layout import find
from slotwheel.replay.judging.boundaries import CLASSES, COUNTS_TABLE, IDS_TABLE
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from support import replayrun
from support.factrows import MINT
from support.readtables import readings
from support.replayrun import GROUP, NOW_MS, TOPIC
from support.tracestore import event, table_of, write_segment

INTERVAL_MS = 5_000
CLIENT, WHEEL, CONSUMER = "client to wheel", "wheel to topic", "topic to consumer"


class Planted:
    """A run of one node whose messages were all sent and consumed with a tracer, but for one of
    each fault at each boundary. ``faults``: boundary, group, kind, offset, amount."""

    def __init__(self) -> None:
        self.run = run = replayrun.made(3_000, names=("one",))
        self.faults: set[tuple[str, str, str, int, int | None]] = set()
        peer = run.peers[0]
        quiet = [offset for offset, _ in peer.delivered[200:700]]
        self._twins(quiet)
        lost, again, late = quiet[10], quiet[20], quiet[30]
        peer.delivered = [one for one in peer.delivered if one[0] != lost]
        peer.delivered.append((again, peer.delivered[-1][1]))
        replayrun.deliver_at(run, 5_000, late)
        self.faults |= {
            (WHEEL, "", "lost", lost, None),
            (WHEEL, "", "repeated", again, 2),
            (WHEEL, "", "late", late, 5_000),
        }
        self.position = {offset: at for at, (offset, _) in enumerate(peer.delivered)}
        self.rows: list[dict[str, Any]] = []
        self._sent(quiet[40])
        self._consumed(quiet)

    def _twins(self, quiet: list[int]) -> None:
        """Two messages of one due time get the same content; no client knows the second."""
        due = self.run.due
        one, two = next(
            (a, b) for a in quiet for b in quiet if a < b and due[a] == due[b] and b % 50 != 1
            if a % 50 != 1
        )  # fmt: skip
        same = {"key": b"k", "value": b"the same"}
        for offset in (one, two):
            self.run.rows = replayrun.with_changes(self.run.rows, offset, same)
        self.twin = two
        self.faults.add((CLIENT, "", "repeated", two, 2))

    def add(self, kind: str, at_ms: int, message: int, **more: Any) -> None:
        due = int(self.run.due[message]) if message < 3_000 else NOW_MS
        check = int(MINT.checks(np.array([due]), np.array([message]))[0])
        parts = {"group": GROUP, "due": due, "offset": message, "check": check}
        self.rows.append(event(len(self.rows), kind, at_ms, id=parts, topic=TOPIC, **more))

    def _sent(self, late: int) -> None:
        cancels = self.run.rows.column("cancels").is_valid().to_pylist()
        created = self.run.rows.column("created").cast(pa.int64()).to_pylist()
        for offset in range(3_000):
            if not cancels[offset] and offset != self.twin:
                behind = 5_000 if offset == late else 3
                self.add("produced", created[offset] - behind, offset, took_us=900)
        self.add("produced", NOW_MS - 9_000, 3_005, took_us=900)
        self.add("produced", NOW_MS - 9_000, 3_006, error="no node")
        self.faults |= {
            (CLIENT, "", "late", late, 5_000),
            (CLIENT, "", "lost", 3_005, None),
        }

    def _consumed(self, quiet: list[int]) -> None:
        lost, again, late = quiet[50], quiet[60], quiet[70]
        delivered = self.run.peers[0].delivered
        half = len(delivered) // 2
        for group in ("billing", "slow"):
            for at, (offset, at_ms) in enumerate(delivered):
                place = {"group": group, "partition": 0, "offset": at}
                if group == "slow" and at >= half:
                    break
                if group == "billing" and offset == lost:
                    continue
                behind = 5_000 if (group, offset) == ("billing", late) else 8
                for _ in range(2 if (group, offset) == ("billing", again) else 1):
                    self.add("processed", at_ms + behind, offset, **place)
            end = len(delivered) if group == "billing" else half
            moved = {"group": group, "topic": TOPIC, "partition": 0, "offset": end}
            self.rows.append(event(len(self.rows), "committed", NOW_MS, **moved))
        self.faults |= {
            (CONSUMER, "billing", "lost", lost, None),
            (CONSUMER, "billing", "repeated", again, 2),
            (CONSUMER, "billing", "late", late, 5_000),
        }


def test_each_planted_fault_is_named_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    planted = Planted()
    run = planted.run
    (directory,) = run.write(tmp_path / "data")
    store, tables = tmp_path / "traces", tmp_path / "tables"
    events = table_of(planted.rows)
    # Another group's, and one that nobody's key made.
    strange = [dict(row) for row in planted.rows[:2]]
    strange[0]["id"] = strange[0]["id"] | {"group": "other", "offset": 4_000}
    strange[1]["id"] = strange[1]["id"] | {"offset": 4_001}
    others = [row | {"sender": "forger"} for row in strange]
    write_segment(store, 1, 1, events.slice(0, 3_000))
    write_segment(store, 2, 4, pa.concat_tables([events.slice(3_000), table_of(others)]))
    layout = dataclasses.replace(find([directory]), made_ms=NOW_MS + 60_000)
    options = Options(interval_ms=INTERVAL_MS)
    verdict = prove(spark, layout, options, tables=tables.as_uri(), traces=str(store))

    columns = ["boundary", "group", "kind", "offset", "amount", "id", "topic", "day"]
    by_spark, by_duckdb, by_pandas = readings(spark, tables / IDS_TABLE, columns)
    assert {row[:5] for row in by_spark} == planted.faults
    assert len(by_spark) == len(planted.faults)
    assert {row[5] for row in by_spark} == {
        str(MINT.one(int(run.due[offset]) if offset < 3_000 else NOW_MS, offset))
        for _, _, _, offset, _ in planted.faults
    }
    assert [row[:6] for row in by_spark] == [row[:6] for row in by_duckdb]
    assert [row[:6] for row in by_spark] == [row[:6] for row in by_pandas]
    assert {row[6] for row in by_spark} == {TOPIC}

    columns = ["boundary", "group", *CLASSES]
    by_spark, by_duckdb, by_pandas = readings(spark, tables / COUNTS_TABLE, columns)
    assert by_spark == by_duckdb == by_pandas
    sums: dict[tuple[str, str], list[int]] = {}
    for boundary, group, *numbers in by_spark:
        before = sums.get((boundary, group), [0] * len(CLASSES))
        sums[boundary, group] = [a + b for a, b in zip(before, numbers, strict=True)]
    found = {key: dict(zip(CLASSES, numbers, strict=True)) for key, numbers in sums.items()}
    delivered = len(planted.position)
    accepted = 3_000 - run.rows.column("cancels").is_valid().to_pylist().count(True)
    assert found[CLIENT, ""]["sent"] == accepted
    assert found[CLIENT, ""]["arrived"] == accepted - 1
    assert found[CLIENT, ""]["untraced"] == 1, "the twin"
    wheel = found[WHEEL, ""]
    assert (wheel["sent"], wheel["arrived"], wheel["undecided"]) == (accepted, delivered, 0)
    assert (
        wheel["excused"]
        == verdict.counts["dead"] + verdict.counts["expired"] + (verdict.counts["cancelled"])
    )
    assert wheel["waiting"] == verdict.counts["pending"]
    assert found[CONSUMER, "billing"]["waiting"] == 0
    slow = found[CONSUMER, "slow"]
    assert (slow["sent"], slow["lost"]) == (delivered, 0)
    assert slow["arrived"] + slow["waiting"] == delivered
    assert slow["waiting"] > 400
    for counts in found.values():
        names = ("arrived", "excused", "waiting", "undecided", "lost")
        assert counts["sent"] == sum(counts[name] for name in names)
    assert verdict.reasons == [
        "lost: 1",
        "lost, client to wheel: 1",
        "lost, topic to consumer, billing: 1",
    ]
    assert any(note.startswith(f"client to wheel: {accepted:,} sent") for note in verdict.notes)
