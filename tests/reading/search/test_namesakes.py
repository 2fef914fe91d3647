"""A message is shown with the others of its name, by the notes in the journal alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from slotwheel.reading.search.fate import FateBefore, MessageFate
from slotwheel.reading.search.worker import SearchProcess
from slotwheel.wheel.answers import Before
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import StateUpdate
from support.datadirs import START_MS, SinkNode, messages

from .conftest import Searching

SOON, FAR = START_MS + 1_000, START_MS + 60_000


def named(due: int, name: str = "order-17", mode: IfExists = IfExists.REPLACE) -> pa.RecordBatch:
    headers = [(NAME_HEADER, name.encode()), (IF_EXISTS_HEADER, mode.encode())]
    return from_columns([due], ["orders"], [None], [None], [b"x"], [headers])


def fate_of(search: SearchProcess, message_id: str) -> MessageFate:
    [fate] = search.find([message_id]).result()
    return fate


def test_a_message_says_what_it_replaced_and_by_what_it_was_replaced(
    tmp_path: Path, searching: Searching
) -> None:
    node = SinkNode(tmp_path)
    [first], [second], [dropped], [third] = (
        node.append(named(FAR)),
        node.append(named(FAR + 1)),
        node.append(named(FAR + 2, mode=IfExists.KEEP)),
        node.append(named(FAR + 90_000)),
    )
    search = searching(tmp_path)
    fates = search.find([first, second, dropped, third]).result()
    assert [fate.state for fate in fates] == ["cancelled", "cancelled", "cancelled", "pending"]
    assert [fate.replaced_by for fate in fates] == [second, third, None, None]
    assert [fate.before for fate in fates] == [
        None,
        FateBefore(Before.REPLACED, first),
        FateBefore(Before.KEPT, second),
        FateBefore(Before.REPLACED, second),
    ]
    assert [fate.why for fate in fates] == [
        f"replaced by {second}, a later message of its name",
        f"replaced by {third}, a later message of its name; it replaced {first}",
        f"kept out: {second} of the same name was there already",
        f"not due yet; it replaced {second}",
    ]
    node.close()


def test_one_batch_has_a_name_twice_and_others(tmp_path: Path, searching: Searching) -> None:
    node = SinkNode(tmp_path)
    rows = [messages([FAR]), named(FAR, "a"), named(FAR, "b"), named(FAR, "a"), messages([FAR])]
    plain, first, other, second, last = node.append(pa.concat_batches(rows))
    node.blocking(lambda: node.wheel.cancel([other, last], node.now))
    search = searching(tmp_path)
    fates = search.find([plain, first, other, second, last]).result()
    assert [fate.replaced_by for fate in fates] == [None, second, None, None, None]
    assert [fate.why for fate in fates] == [
        "not due yet",
        f"replaced by {second}, a later message of its name",
        "a cancel names it",
        f"not due yet; it replaced {first}",
        "a cancel names it",
    ]
    node.close()


def test_what_had_left_before_is_named(tmp_path: Path, searching: Searching) -> None:
    node = SinkNode(tmp_path)
    [gone] = node.append(named(SOON))
    node.deliver(SOON + 1)
    [after] = node.append(named(FAR))
    fate = fate_of(searching(tmp_path), after)
    assert fate.before == FateBefore(Before.DELIVERED, gone)
    assert fate.why == f"not due yet; {gone} had its name before, and had left already"
    node.close()


def test_a_journal_of_many_segments_is_searched_and_one_that_was_dropped_is_said(
    tmp_path: Path, searching: Searching
) -> None:
    node = SinkNode(tmp_path, segment_bytes=2_000)
    ids = [node.append(named(FAR + step))[0] for step in range(40)]
    for _ in range(5):
        node.append(messages([FAR] * 3))
    search = searching(tmp_path)
    fates = search.find(ids).result()
    assert [fate.replaced_by for fate in fates] == [*ids[1:], None]
    node.spill()
    node.wheel.clean(node.now)
    first, last = search.find([ids[0], ids[-1]]).result()
    assert (first.state, first.replaced_by, last.before) == ("cancelled", None, None)
    assert "what it was cancelled by is not in the journal any more" in first.why
    assert last.why == "not due yet; what it replaced, if anything, is not in the journal any more"
    node.close()


def test_the_archive_and_a_record_of_cancels_are_enough(
    tmp_path: Path, searching: Searching
) -> None:
    """The rows have left their slot files, and the journal's segments are in the archive."""
    node = SinkNode(tmp_path, segment_bytes=2_000, retain_bytes=1 << 30)
    ids = [node.append(named(SOON + step))[0] for step in range(9)]
    for _ in range(9):
        node.append(messages([FAR] * 3))
    node.deliver(SOON + 2_000)
    node.spill()
    node.wheel.clean(node.now)
    search = searching(tmp_path)
    fates = search.find(ids).result()
    assert [fate.replaced_by for fate in fates] == [*ids[1:], None]
    assert (fates[-1].state, fates[-1].before) == (
        "delivered",
        FateBefore(Before.REPLACED, ids[-2]),
    )
    node.state.commit(StateUpdate(cancelled_floor=SOON + 2_000))
    assert fate_of(search, ids[3]).replaced_by == ids[4]
    node.close()
