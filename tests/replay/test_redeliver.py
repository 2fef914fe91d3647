"""Which messages are sent again, in which order, whichever peers there are to read them from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel import Client, Message
from slotwheel.reading.layout import FileFilter, find
from slotwheel.replay.bits import Bits
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.redeliver import Redelivery, Selection, as_before
from slotwheel.wheel.checks import REDELIVERED_ID_HEADER
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.rows import header_column
from slotwheel.wheel.schema import INPUT, Int64s, times
from support import replayrun
from support.damage import flip
from support.datadirs import SinkNode, messages
from support.nodeprocess import NodeProcess, run_cli
from support.replayrun import LATER_MS, NOW_MS, START_MS, TOPIC, Run

DUE = 77
WHOLE = Selection(TOPIC, START_MS, NOW_MS)


def redelivery(directories: Sequence[str], selection: Selection = WHOLE) -> Redelivery:
    return Redelivery(find(directories, wanted=FileFilter(slots=False, topics=False)), selection)


def again(found: Redelivery, skip: int = 0) -> pa.Table:
    found.tally()
    batches = list(found.batches("again", lambda: DUE, skip))
    return pa.Table.from_batches(batches, INPUT)


def ids(rows: pa.Table) -> list[str]:
    headers = rows.column("headers").to_pylist()
    assert all(one[-1]["key"] == REDELIVERED_ID_HEADER for one in headers)
    return [one[-1]["value"].decode() for one in headers]


def expected(run: Run, selection: Selection = WHOLE, end: int | None = None) -> Int64s:
    """Offsets of the messages that were due then, of those below ``end`` (those spilled)."""
    due, is_message = run.due, np.asarray(run.rows.column("cancels").is_null())
    is_message[run.cancelled] = False
    is_message[run.spilled if end is None else end :] = False
    found: Int64s = np.flatnonzero(
        is_message & (due >= selection.start_ms) & (due < selection.end_ms)
    )
    return found


def ids_of(run: Run, offsets: Int64s) -> list[str]:
    return [run.id_of(offset) for offset in offsets.tolist()]


def test_each_message_once_and_as_it_was(tmp_path: Path) -> None:
    run = replayrun.made()
    found = redelivery(run.write(tmp_path))
    tally = found.tally()
    offsets = expected(run)
    rows = again(found)
    assert ids(rows) == ids_of(run, offsets)
    assert tally.messages == rows.num_rows == len(offsets) > 3_000
    cancelled = int((run.due[run.cancelled] < NOW_MS).sum())
    assert (tally.damaged, tally.in_doubt, tally.cancelled) == (0, 0, cancelled)
    assert cancelled > 0
    due = run.due[offsets]
    assert (tally.first_due_ms, tally.last_due_ms) == (due.min(), due.max())
    first = run.pick(offsets)
    for name in ("partition", "key", "value"):
        assert rows.column(name).combine_chunks().equals(first.column(name))
    own = [one[:-1] for one in rows.column("headers").to_pylist()]
    assert own == as_before(first.column("headers")).to_pylist()
    assert set(rows.column("topic").to_pylist()) == {"again"}
    assert set(rows.column("due").cast(pa.int64()).to_pylist()) == {DUE}
    sizes = [pc.sum(pc.binary_length(first.column(name))).as_py() for name in ("key", "value")]
    before = first.column("headers").to_pylist()
    headers = sum(len(h["key"]) + len(h["value"]) for one in before for h in one)
    assert tally.nbytes == sum(sizes) + headers


def test_the_begin_is_in_and_the_end_is_not(tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    due = np.sort(run.due[expected(run)])
    selection = Selection(TOPIC, int(due[100]), int(due[-100]))
    rows = again(redelivery(directories, selection))
    assert ids(rows) == ids_of(run, expected(run, selection))
    only = Selection(TOPIC, int(due[50]), int(due[50]) + 1)
    assert ids(again(redelivery(directories, only))) == ids_of(run, expected(run, only))
    assert redelivery(directories, Selection(TOPIC, 0, START_MS)).tally().messages == 0


def test_another_topic(tmp_path: Path) -> None:
    tally = redelivery(
        replayrun.made().write(tmp_path), Selection("nope", START_MS, NOW_MS)
    ).tally()
    assert tally.messages == 0
    assert tally.topics == {TOPIC}


@pytest.mark.parametrize("peers", [(0,), (2,), (2, 0), (1, 2, 0)])
def test_the_order_does_not_depend_on_the_peers(tmp_path: Path, peers: tuple[int, ...]) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    found = redelivery([directories[peer] for peer in peers])
    assert ids(again(found)) == ids_of(run, expected(run))


def test_peers_of_which_each_lacks_something_else(tmp_path: Path) -> None:
    """Archives are cut at different ends, and a segment in the middle is gone."""
    run = replayrun.made()
    directories = run.write(tmp_path)
    for number, root in enumerate(map(Path, directories)):
        for segment in sorted((root / "archive").glob("*/journal/*"))[number::3]:
            segment.unlink()
    found = redelivery(directories)
    assert ids(again(found)) == ids_of(run, expected(run))
    assert found.tally().missing == 0
    one = redelivery(directories[:1])
    alone = ids(again(one))
    assert 0 < len(alone) < len(expected(run))
    assert one.tally().missing > 0


def test_how_many_are_gone_is_known(tmp_path: Path) -> None:
    node = SinkNode(tmp_path, segment_bytes=2_000, retain_bytes=1 << 30)
    for number in range(8):
        node.append(messages([1_800_000_000_000 + 1_000 * number + step for step in range(20)]))
        node.spill()
    node.close()
    kept = sorted((tmp_path / "archive").glob("*/journal/*"))
    rows = [sum(one.entry.count for one in walk(OsFiles(tmp_path), str(path))) for path in kept]
    for path in kept[2:4]:
        path.unlink()
    tally = redelivery([str(tmp_path)], Selection("orders", 0, 1 << 60)).tally()
    assert (tally.missing, tally.messages) == (sum(rows[2:4]), 160 - sum(rows[2:4]))
    assert tally.missing > 0
    assert tally.damaged == 0


@pytest.mark.parametrize("skip", [1, 99, 1_000, 3_500])
def test_going_on_behind_the_first(tmp_path: Path, skip: int) -> None:
    run = replayrun.made()
    found = redelivery(run.write(tmp_path))
    whole = ids(again(found))
    assert ids(again(found, skip)) == whole[skip:]
    assert again(found, len(whole)).num_rows == 0
    assert again(found, len(whole) + 1).num_rows == 0


def test_what_may_not_have_been_committed_is_counted_and_not_sent(tmp_path: Path) -> None:
    """Behind the checkpoint, no mark says more: one peer alone may have these entries."""
    run = replayrun.made()
    selection = Selection(TOPIC, LATER_MS, LATER_MS + 1_000_000)
    found = redelivery(run.write(tmp_path), selection)
    tally = found.tally()
    assert ids(again(found)) == ids_of(run, expected(run, selection))
    everything = expected(run, selection, run.rows.num_rows)
    assert tally.messages + tally.in_doubt == len(everything)
    assert tally.in_doubt > 100


def test_a_mark_proves_what_stands_before_it(tmp_path: Path) -> None:
    """One peer was cut off and has entries of its own where the others went on. Their marks say
    that theirs have left."""
    run, other = replayrun.made(), replayrun.made()
    values = other.rows.column("value").to_pylist()
    values = [v if at < run.spilled else b"never committed" for at, v in enumerate(values)]
    at = other.rows.schema.get_field_index("value")
    other.rows = other.rows.set_column(at, other.rows.schema.field(at), pa.array(values))
    replayrun.claim_everything(run)
    mine, theirs = run.write(tmp_path / "a"), other.write(tmp_path / "b")
    selection = Selection(TOPIC, LATER_MS, LATER_MS + 1_000_000)
    for directories in ([theirs[0], *mine[1:]], [mine[1], theirs[0]]):
        found = redelivery(directories, selection)
        rows = again(found)
        assert b"never committed" not in rows.column("value").to_pylist()
        assert ids(rows) == ids_of(run, expected(run, selection, run.rows.num_rows))
        assert found.tally().in_doubt == 0


def test_a_node_without_peers_has_nothing_in_doubt(tmp_path: Path) -> None:
    from support.datadirs import SinkNode, messages

    node = SinkNode(tmp_path)
    ids_ = node.append(messages([node.now + 1] * 500))
    node.deliver(node.now + 2)
    node.close()
    tally = (found := redelivery([str(node.path)], Selection("orders", 0, node.now + 1))).tally()
    assert (tally.messages, tally.in_doubt, tally.damaged) == (500, 0, 0)
    assert ids(again(found)) == ids_


def test_damage_is_told_and_other_peers_fill_it(tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    segments = sorted((tmp_path / "two/archive").glob("*/journal/*"))
    flip(segments[1])
    found = redelivery(directories)
    tally = found.tally()
    assert tally.damaged == 1
    assert "two/archive" in tally.damage[0]
    assert ids(again(found)) == ids_of(run, expected(run))
    alone = redelivery(directories[1:2])
    assert alone.tally().damaged == 1
    rest = ids(again(alone))
    assert len(expected(run)) - replayrun.ENTRY <= len(rest) < len(expected(run))
    assert rest == [one for one in ids_of(run, expected(run)) if one in set(rest)]


def test_an_empty_directory_is_told(tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    (tmp_path / "four").mkdir()
    tally = redelivery([*directories, str(tmp_path / "four")]).tally()
    assert tally.messages == len(expected(run))
    assert "four" in tally.damage[0]


def test_an_offset_that_stands_twice_is_sent_once(tmp_path: Path) -> None:
    run = replayrun.made()
    replayrun.accept_twice(run)
    shutil.copytree(run.write(tmp_path)[0], tmp_path / "copy")
    found = redelivery([str(tmp_path / "one"), str(tmp_path / "copy")])
    assert ids(again(found)) == ids_of(run, expected(run))


def test_what_was_sent_again_is_proven_like_the_rest(spark: Any, tmp_path: Path) -> None:
    """Through a real node, into the wheel it came from: twice as many, all delivered, none late."""
    data, count = tmp_path / "data", 2_000
    with NodeProcess(data) as node:
        with Client(node.address) as client:
            client.send_many(
                Message("spoilt", b"%d" % n, None, [("n", b"%d" % n)][: n % 2], delay=0.3)
                for n in range(count)
            ).result(60)
        node.wait_for("spoilt", count)
        end = datetime.now(UTC)
        time_range = ("--from", (end - timedelta(hours=1)).isoformat(), "--to", end.isoformat())
        where = ("--topic", "spoilt", "--to-topic", "again", "--node", node.address, "--yes")
        done = run_cli("replay", data, "--redeliver", *time_range, *where)
        assert (done.returncode, done.stdout) == (0, f"sent {count:,} messages to again\n")
        node.wait_for("again", count)
        node.signal()
    verdict = prove(spark, find([str(data)]), Options(exactly_once=True))
    assert verdict.proven, (verdict.reasons, verdict.problems)
    assert (verdict.counts["accepted"], verdict.counts["delivered"]) == (2 * count, 2 * count)


def test_headers_of_an_earlier_delivery_say_that_they_are() -> None:
    own = ("a", b"1")
    dead: list[tuple[str, bytes | None]] = [own, ("slotwheel-dead-reason", b"why"), ("b", None)]
    again: list[tuple[str, bytes | None]] = [("slotwheel-redelivered-id", b"x"), own]
    column = header_column([[own], dead, [], again])
    wanted = [dead[0], ("slotwheel-redelivered-dead-reason", b"why"), dead[2]]
    assert as_before(column).equals(header_column([[own], wanted, [], again]))
    assert as_before(column.slice(1, 2)).equals(header_column([wanted, []]))
    assert as_before(column.slice(2)).equals(header_column([[], again]))
    short = header_column([[own], [own, ("slotwheel-expires-ms", b"9")]])
    lasting = header_column([[own], [own, ("slotwheel-redelivered-expires-ms", b"9")]])
    assert as_before(short).equals(lasting)


@given(
    st.lists(st.lists(st.integers(0, 5 << 18), max_size=30), max_size=5),
    st.lists(st.integers(0, 5 << 18), max_size=50),
)
def test_bits_are_a_set(parts: list[list[int]], asked: list[int]) -> None:
    bits, model = Bits(), set[int]()
    for part in parts:
        bits.add(np.array(part, np.int64))
        model.update(part)
        assert bits.count == len(model)
    both = np.array(sorted({*asked, *model}), np.int64)
    assert bits.has(both).tolist() == [one in model for one in both.tolist()]


def test_times_are_those_of_the_run(tmp_path: Path) -> None:
    """The selection above is worth something: there are messages on both sides of it."""
    run = replayrun.made()
    due = times(run.rows, "due")
    assert (due < NOW_MS).sum() > 3_000
    assert (due >= LATER_MS).sum() > 1_000
