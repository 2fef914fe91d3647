"""What producers were promised is proven, too: the wheel's own files are not the only witness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel import Client, Message
from slotwheel.client.receiptfile import BatchReceipts, ReceiptFile
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import Verdict
from slotwheel.wheel.digest import digests
from slotwheel.wheel.schema import times
from support import replayrun
from support.nodeprocess import NodeProcess, run_cli
from support.plainproof import prove_here
from support.replayrun import GROUP, TERMS, Run
from support.waiting import eventually


def write_receipts(run: Run, path: Path, offsets: Sequence[int], **changes: Any) -> str:
    """As a producer would have kept them of these messages; ``changes``: columns that differ."""
    assert TERMS.mint is not None
    file = ReceiptFile(path)
    file.start(lambda _: None)
    for offset in offsets:
        row = run.pick([offset])
        due = times(row, "due")
        fields: dict[str, Any] = {
            "base_offset": offset,
            "due": due,
            "check": TERMS.mint.checks(due, np.array([offset])),
            "topic": row.column("topic"),
            "digest": digests(*(row.column(n) for n in ("topic", "key", "value", "headers"))),
        }
        file.put(BatchReceipts(group=GROUP, sent_ms=1, received_ms=2, **(fields | changes)))
    file.close()
    return str(path)


def proof_of(directories: list[str], *receipts: str) -> Verdict:
    return prove_here(find(directories, receipts=receipts), Options())


def a_message(run: Run) -> int:
    """One that was delivered, and lies where a journal was read."""
    return run.a_delivered()


def test_receipts_of_what_was_delivered_change_nothing(tmp_path: Path) -> None:
    run = replayrun.made()
    delivered = [offset for peer in run.peers for offset, _ in peer.delivered][:500]
    receipts = write_receipts(run, tmp_path / "receipts", [*delivered, run.a_pending()])
    verdict = proof_of(run.write(tmp_path), receipts)
    assert verdict.proven, verdict.reasons
    assert verdict.counts["accepted"] == 5995
    assert verdict.problems == []
    assert {one.kind: one.rows for one in verdict.inputs}["receipts"] == 501


def test_a_promise_that_was_taken_out_of_all_journals_is_not_decided(tmp_path: Path) -> None:
    """The wheel acknowledged a message and has nothing of it: no entry, no slot, no record. The gap
    is blamed: a cancel of it may have stood there as well."""
    run = replayrun.made()
    offset = a_message(run)
    receipts = write_receipts(run, tmp_path / "receipts", [offset, run.a_pending()])
    replayrun.remove_delivered(run)
    for peer in run.peers:
        # An entry's own offsets are dense: it becomes two, around the one that is missing.
        parts = [part for one in peer.entries for part in (one[one < offset], one[one > offset])]
        peer.entries = [part for part in parts if len(part)]
        for slots in (peer.live, peer.archived):
            for second, offsets in slots.items():
                slots[second] = [one for one in offsets if one != offset]
    directories = run.write(tmp_path)
    verdict = proof_of(directories, receipts)
    assert verdict.reasons == ["gap: 3"]
    assert verdict.counts["undecided"] == 1
    # Without the receipt only the hole in each journal tells of it, and not which message it was.
    verdict = proof_of(directories)
    assert verdict.reasons == ["gap: 3"]
    assert verdict.counts["undecided"] == 0


def test_a_promise_of_other_content_is_altered(tmp_path: Path) -> None:
    run = replayrun.made()
    offset = a_message(run)
    receipts = write_receipts(run, tmp_path / "receipts", [offset], digest=np.array([1], np.uint64))
    verdict = proof_of(run.write(tmp_path), receipts)
    assert verdict.reasons == ["altered: 1"]
    assert verdict.problems[0].id == run.id_of(offset)


def test_a_file_whose_producer_was_killed(tmp_path: Path) -> None:
    run = replayrun.made()
    delivered = [offset for offset, _ in run.peers[0].delivered][:2000]
    path = tmp_path / "receipts"
    receipts = write_receipts(run, path, delivered)
    path.write_bytes(path.read_bytes()[:-200])
    assert proof_of(run.write(tmp_path), receipts).proven


def test_a_file_that_holds_no_receipts(tmp_path: Path) -> None:
    """Taken for a torn one, it would pass: nothing was promised. One torn at its begin may be."""
    path = tmp_path / "receipts"
    path.write_text("2026-11-21T08:56:30.130Z info recovered", "utf-8")
    directories = replayrun.made().write(tmp_path)
    verdict = proof_of(directories, str(path))
    assert verdict.reasons == ["damaged: 1"]
    assert "a receipts file" in verdict.problems[0].text
    path.write_bytes(b"\xff\xff")
    assert proof_of(directories, str(path)).proven


def test_a_node_and_its_producer(spark: Any, tmp_path: Path) -> None:
    """Every kind of content, through a real node: client and proof agree on each digest."""
    odd: list[bytes | None] = [None, b"", b"k" * 127, b"k" * 130, b"\0\0", "ä".encode()]
    receipts = tmp_path / "receipts"
    (tmp_path / "policies").write_text("[[routes.both]]\nto = ['left', 'right']")
    policies = ("--policies", str(tmp_path / "policies"))
    with NodeProcess(tmp_path / "data", *policies) as node:
        with Client(node.address, receipts=receipts) as client:
            eventually(lambda: client.policies()["version"] == 1)
            client.send_many(
                Message("odd", value, key, [("h", value), ("h", key)][: n % 3], delay=0.2)
                for n, (key, value) in enumerate((k, v) for k in odd for v in odd)
            ).result(60)
            due = pa.array([0] * 1000)
            table = {"due": due, "topic": ["t"] * 1000, "value": [b"%d" % n for n in range(1000)]}
            client.send_table(pa.table(table)).result(60)
        node.wait_for("odd", 36)
        node.wait_for("t", 1000)
        done = run_cli(
            *("send", "cli", "a", "b", "--delay", "1h", "--node", node.address),
            *("--receipts", tmp_path / "of-the-cli"),
        )
        assert done.returncode == 0, done.stderr
        done = run_cli(
            *("send", "cli", "a", "--delay", "1h", "--node", node.address),
            *("--receipts", tmp_path / "of-the-cli"),
        )
        assert done.returncode == 1
        assert "there already" in done.stderr
        done = run_cli(
            *("send", "a", "b", "--route", "both", "--delay", "1ms", "--node", node.address),
            *("--receipts", tmp_path / "routed"),
        )
        assert done.returncode == 0, done.stderr
        node.wait_for("right", 2)
        node.wait_for("left", 2)
        node.signal()
    paths = [str(receipts), str(tmp_path / "of-the-cli"), str(tmp_path / "routed")]
    verdict = prove(spark, find([str(tmp_path / "data")], receipts=paths), Options())
    assert verdict.proven, (verdict.reasons, verdict.problems)
    assert (verdict.counts["accepted"], verdict.counts["pending"]) == (1042, 2)
    assert {one.kind: one.rows for one in verdict.inputs}["receipts"] == 1042
