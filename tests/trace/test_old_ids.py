"""Trace events and segments of a client that had short ids are read as they were written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from slotwheel.reading.search.fate import MessageState
from slotwheel.trace.batches import decode
from slotwheel.trace.chains.lookup import TraceLookup
from slotwheel.trace.events import EVENT, ID
from slotwheel.trace.store import TraceReader
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from slotwheel.trace.store.segment import StoreSegment
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import MessageId
from support.oldids import FAR, GOLDEN, SOON, STOPPED_MS, TAIL, data_directory
from support.traced import Row, event, stored
from support.wheels import opened

NOW = STOPPED_MS + 1_000


def parts_of(given_out: MessageId) -> Row:
    return {name: getattr(given_out, name) for name in ("group", "due", "offset", "check")}


def test_a_batch_of_version_1() -> None:
    sender, events = decode((GOLDEN / "events.bin").read_bytes())
    assert (sender.name, events.schema) == ("shop", EVENT)
    checks = [row["id"]["check"] for row in events.to_pylist()]
    assert checks == [given_out.check for given_out in (*FAR, *SOON, TAIL[0])]


def test_a_segment_of_version_1_beside_one_of_version_2(tmp_path: Path) -> None:
    """A message that was sent before the update and received after it has one chain; so has its
    retry, which was sent after it and has a long id."""
    data = data_directory(tmp_path)
    root = Path(shutil.copytree(GOLDEN / "trace", tmp_path / "trace"))
    assert StoreSegment(root, SegmentName(1, 1)).read(0).schema.field("id").type == ID
    with opened(data, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        [retry] = node.ids_of(node.send([(NOW + 60_000, "billing-retry", b"x")], NOW))
    assert retry.check >> 32
    of_consumer: Row = {"sender": "billing", "group": "billing", "topic": "orders"}
    rows = [
        event(1, NOW, kind="processed", id=parts_of(SOON[0]), took_us=5, **of_consumer),
        event(2, NOW + 1, kind="retried", id=parts_of(retry), origin=parts_of(SOON[0])),
    ]
    about = SegmentAbout(NOW // 3_600_000, numbers={"billing": [(1, 1)], "s": [(2, 2)]})
    write_segment(root, SegmentName(2, 2), about, stored(rows))
    reader = TraceReader(root)
    for given_out, numbers in ((SOON[0], [3, 1, 2]), (SOON[1], [4]), (retry, [2])):
        assert reader.of_id(given_out).events.column("number").to_pylist() == numbers
        wrong = replace(given_out, check=given_out.check ^ 1)
        assert not reader.of_id(wrong).events.num_rows
    with TraceLookup(root, data) as lookup:
        of_first, of_retry = (lookup.chain(str(one), NOW + 10) for one in (SOON[0], retry))
    states = {message.id: message.state for message in of_first.messages}
    assert states == {
        str(SOON[0]): MessageState.DELIVERED,
        str(retry): MessageState.PENDING,
    }
    assert {step.id for step in of_first.steps} == {str(SOON[0]), str(retry)}
    assert of_first.steps == of_retry.steps
