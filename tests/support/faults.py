"""The faults that the proof is held against, as data: what is planted, the verdict, what is blamed.

Each takes a ``Lab``: a copy of a small run, which it spoils, and says what must be blamed for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, path_of, width_s
from slotwheel.wheel.state import LmdbState, Loss, StateUpdate
from support import replayrun
from support.damage import cut, flip
from support.factrows import KEY, kafka_rows
from support.planting import (
    Lab,
    cancel_rows,
    read_dump,
    write_dump,
    write_receipts,
)
from support.replayrun import DAY, NOW_MS, PeerRun, Run, write_topic

Plant = Callable[[Lab], None]

# How a file is harmed.


def flip_at(position: int) -> Callable[[Path], None]:
    return lambda path: flip(path, position)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_most(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 10])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def exchange(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def harmed(pattern: str, harm: Callable[[Path], object], kind: str = "") -> Plant:
    """One file of that pattern; ``kind``: what it is blamed for, empty: it is not."""

    def plant(lab: Lab) -> None:
        path = lab.one(pattern)
        harm(path)
        if kind:
            lab.blame(kind, path)

    return plant


def newest(pattern: str, harm: Callable[[Path], object], kind: str, blamed: str = "") -> Plant:
    """The last file of that pattern; ``blamed``: what is, if not that file."""

    def plant(lab: Lab) -> None:
        path = lab.every(pattern)[-1]
        harm(path)
        if kind:
            lab.blame(kind, blamed or path)

    return plant


def exchanged(pattern: str) -> Plant:
    """Two files of that pattern; one that is shorter now is seen to be truncated."""

    def plant(lab: Lab) -> None:
        one, other = lab.every(pattern)[1:3]
        is_slot = one.parent.name == "slots"
        is_shorter = (
            other.stat().st_size < one.stat().st_size,
            one.stat().st_size < other.stat().st_size,
        )
        exchange(one, other)
        for path, shorter in zip((one, other), is_shorter, strict=True):
            lab.blame("truncated" if shorter and is_slot else "damaged", path)

    return plant


def in_run(change: Callable[[Run], int], kind: str, **options: Any) -> Plant:
    """A fault of meaning, of one message. ``options``: of the proof."""

    def plant(lab: Lab) -> None:
        lab.blame(kind, change(lab.run))
        lab.options |= options

    return plant


# Faults of the journal.


def from_elsewhere(of: str, change: Callable[[bytes], bytes] = bytes) -> Plant:
    """A segment of one peer's in the place of another's."""

    def plant(lab: Lab) -> None:
        path = lab.one(f"two/archive/{DAY}/journal/*")
        path.write_bytes(change((lab.root / of / path.relative_to(lab.root / "two")).read_bytes()))
        lab.blame("foreign", path)

    return plant


def other_group_segment(lab: Lab) -> None:
    """The same segment, written by a group of another key whose messages differ."""
    run = replayrun.made(2_500, 7)
    run.segment_bytes = lab.run.segment_bytes
    run.store = "another store"
    run.write(lab.root / "else")
    path = lab.one(f"two/archive/{DAY}/journal/*")
    path.write_bytes((lab.root / "else" / path.relative_to(lab.root)).read_bytes())
    shutil.rmtree(lab.root / "else")
    lab.blame("foreign", path)


def cut_row(at: int, *peers: str) -> Plant:
    """A row taken out of an entry; all checksums are right. ``at``: which row of it."""

    def plant(lab: Lab) -> None:
        for peer in named(lab, *peers):
            entry = peer.entries[7]
            peer.entries[7] = np.delete(entry, at)
            lab.blame("gap", f"{peer.name}/archive/{DAY}/journal/*")

    return plant


def named(lab: Lab, *names: str) -> list[PeerRun]:
    return [peer for peer in lab.run.peers if not names or peer.name in names]


def altered(place: str, field: str, value: Any, kind: str, *peers: str) -> Plant:
    """One row says something else there."""

    def plant(lab: Lab) -> None:
        pending = place != "topic"
        offset = lab.run.a_pending() if pending else lab.run.a_delivered()
        holders = named(lab, *peers) if pending else [lab.run.holder(offset)]
        row = lab.run.pick([offset])
        old = row.column(field)
        new = int(old.cast(pa.int64())[0].as_py()) + value if field in ("due", "created") else value
        for peer in holders:
            peer.altered[place, offset] = {field: new}
        lab.blame(kind, f"lab.*.{offset}.*" if field == "due" else offset)

    return plant


# Slot files, and what was kept of them.


def miss_row_everywhere(lab: Lab) -> None:
    """No slot file holds it any more, no mark covers it, and it did not arrive."""
    offset = lab.run.a_pending()
    for peer in lab.run.peers:
        peer.live[int(lab.run.due[offset]) // TICK_MS].remove(offset)
    lab.blame("lost", offset)


def add_row(lab: Lab) -> None:
    """Two peers hold a row that no journal ever took: it ended an entry."""
    run = lab.run
    at = next(n for n, some in enumerate(run.peers[0].entries) if n and some[-1] % 3 == 2)
    offset = int(run.peers[0].entries[at][-1])
    for peer in run.peers:
        peer.entries[at] = peer.entries[at][:-1]
        lab.blame("gap", f"{peer.name}/archive/{DAY}/journal/*")
    for peer in run.peers[2:]:
        peer.live[int(run.due[offset]) // TICK_MS].remove(offset)


def rename_kept(lab: Lab) -> None:
    """Two kept slot files change names, but for what the names say of their content."""
    one, other = lab.every(f"two/archive/{DAY}/slots/*")[1:3]
    (second, rest), (second_other, rest_other) = (p.name.split(".", 1) for p in (one, other))
    now = one.with_name(f"{second_other}.{rest}"), one.with_name(f"{second}.{rest_other}")
    one.rename(now[0])
    other.rename(now[1])
    lab.blame("misplaced", *now)


def rename_hour(lab: Lab) -> None:
    """The kept slot file of an hour gets the name of the hour before."""
    path = lab.one(f"two/archive/{DAY}/slots/*+3600.*")
    first, rest = path.name.split("+")
    target = path.with_name(f"{int(first) - HOUR_S}+{rest}")
    path.rename(target)
    lab.blame("misplaced", target)


def in_wide(width: int, change: Callable[[Lab, int, int], object], kind: str) -> Plant:
    """A fault of a row in a live file of an hour or a day. ``change``: gets its slot and offset."""

    def plant(lab: Lab) -> None:
        live = lab.run.peers[1].live
        slot = max(slot for slot in live if width_s(slot) == width)
        offset = live[slot][len(live[slot]) // 2]
        change(lab, slot, offset)
        lab.blame(kind, offset)

    return plant


def lose_row(lab: Lab, slot: int, offset: int) -> None:
    lab.run.peers[1].live[slot].remove(offset)


def lose_row_everywhere(lab: Lab, slot: int, offset: int) -> None:
    for peer in lab.run.peers:
        peer.live[slot].remove(offset)


def repeat_row(lab: Lab, slot: int, offset: int) -> None:
    lab.run.peers[1].live[slot].append(offset)


def copy_row(lab: Lab, slot: int, offset: int) -> None:
    """To the file of its second, too."""
    lab.run.peers[1].live.setdefault(int(lab.run.due[offset]) // TICK_MS, []).append(offset)


def carry_row(lab: Lab, slot: int, offset: int) -> None:
    """To the file of the next day, or hour."""
    live = lab.run.peers[1].live
    live[slot].remove(offset)
    live.setdefault(slot + width_s(slot), []).append(offset)


def change_row(lab: Lab, slot: int, offset: int) -> None:
    lab.run.peers[1].altered["slot", offset] = {"value": b"x"}


def lose_delivered(lab: Lab) -> None:
    """A message of a day's file has left, by the mark, and is in no topic. The file is there, as
    the day is not over, and holds it."""
    day = min(slot for slot in lab.run.peers[0].live if width_s(slot) == DAY_S)
    for peer in lab.run.peers:
        held = set(peer.live[day])
        for offset, _ in [one for one in peer.delivered if one[0] in held][:1]:
            peer.delivered = [one for one in peer.delivered if one[0] != offset]
            lab.blame("lost", offset)


def stray(folder: str) -> Plant:
    def plant(lab: Lab) -> None:
        path = lab.root / folder / "notes.txt"
        path.write_text("of somebody")
        lab.blame("stray", path)

    return plant


def others_slot(lab: Lab) -> None:
    """A kept slot file of another wheel, under its own name."""
    other = replayrun.made(1_700, 8, ("nine",))
    other.write(lab.root / "elsewhere")
    path = sorted((lab.root / "elsewhere/nine/archive").glob("*/slots/*"))[0]
    target = lab.root / "two/archive" / DAY / "slots" / path.name
    path.rename(target)
    lab.blame("foreign", target)


def begun_topic(lab: Lab) -> None:
    """A node was killed between the folder and its first segment."""
    path = lab.root / "one/topics/begun"
    path.mkdir()
    lab.blame("stray", path)


def not_a_folder(lab: Lab) -> None:
    path = lab.root / "two/archive" / DAY / "slots"
    shutil.rmtree(path)
    path.write_text("of somebody")
    lab.blame("damaged", path)


def no_file(pattern: str, make: Callable[[Path], object]) -> Plant:
    """Something else in the place of a file."""

    def plant(lab: Lab) -> None:
        path = lab.one(pattern)
        path.unlink()
        make(path)
        lab.blame("damaged", path)

    return plant


def copied_before(lab: Lab) -> None:
    """One peer's directory is yesterday's copy: since then it was elected, and delivered."""
    shutil.rmtree(lab.root / "two/topics")
    for name in ("one", "three"):
        state = LmdbState(lab.root / name)
        state.commit(StateUpdate(epoch=2, vote="two"))
        state.close()
    lab.blame("older", "two")


def copied_long_before(lab: Lab) -> None:
    """Likewise, and there was another election since, so that nobody's vote tells of it."""
    copied_before(lab)
    lab.blamed.clear()
    for name in ("one", "three"):
        state = LmdbState(lab.root / name)
        state.commit(StateUpdate(epoch=3, vote="three"))
        state.close()


def remove_kept_row(lab: Lab) -> None:
    """A kept slot file of one peer lacks a row that the journals say was there."""
    peer = lab.run.peers[1]
    peer.archived[sorted(peer.archived)[1]].pop(5)


# The state store.


def older_state(lab: Lab) -> None:
    """The state store of some time before: its journal was dropped up to much later."""
    run, peer = lab.run, lab.run.peers[1]
    root = lab.root / peer.name
    stored = LmdbState(root, readonly=True)
    was = stored.load()
    stored.close()
    shutil.rmtree(root / "state")
    replayrun.write_state(run, peer, 1, root, index=3, spilled=200, slots={})
    assert was.checkpoint.index > 3
    lab.blame("older", f"{peer.name}/state")


def state_of(name: str) -> Plant:
    """The state store of another peer in the place of one's own."""

    def plant(lab: Lab) -> None:
        shutil.rmtree(lab.root / "two/state")
        shutil.copytree(lab.root / name / "state", lab.root / "two/state")
        lab.blame("foreign", "two/state")

    return plant


def drop_state(lab: Lab) -> None:
    shutil.rmtree(lab.root / lab.run.peers[-1].name / "state")
    lab.blame("missing", f"{lab.run.peers[-1].name}/state")


def damaged_record(lab: Lab) -> None:
    """The checkpoint's own checksum does not fit any more."""
    state = LmdbState(lab.root / "two")
    with state._env.begin(write=True) as transaction:
        record = transaction.get(b"checkpoint", db=state._meta)
        assert record is not None
        transaction.put(b"checkpoint", record[:-1] + b"\xff", db=state._meta)
    state.close()
    lab.blame("damaged", "two/state")


def repaired(lab: Lab) -> None:
    """What `slotwheel repair` leaves on record when nobody has some of the rows any more."""
    state = LmdbState(lab.root / "two")
    state.commit(StateUpdate(losses=[Loss(1_800_000_000, 7, 0)]))
    state.close()
    lab.blame("repaired", f"two/{path_of(1_800_000_000)}")


def halved_state(lab: Lab) -> None:
    halve(lab.root / "two/state/data.mdb")
    lab.blame("damaged", "two/state")


# What was delivered to embedded topics.


def reorder_delivered(lab: Lab) -> None:
    """A row stands where one that is due seconds later should."""
    peer = lab.run.peers[0]
    at = len(peer.delivered) // 4
    moved = peer.delivered.pop(at)
    peer.delivered.insert(at + 200, moved)
    lab.blame("out of order", moved[0])


def deliver_cancel_row(lab: Lab) -> None:
    """A record with the id of a cancel row: nobody sent such a message."""
    run = lab.run
    offset = next(o for o in cancel_rows(run) if run.due[o] < NOW_MS)
    peer = run.peers[0]
    peer.delivered.append((offset, peer.delivered[-1][1]))
    peer.altered["topic", offset] = {"topic": replayrun.TOPIC, "value": b"made up"}
    lab.blame("unknown", offset)


def wrong_topic(lab: Lab) -> None:
    """It was for another topic."""
    offset = lab.run.a_delivered()
    peer = lab.run.holder(offset)
    at = dict(peer.delivered)[offset]
    peer.delivered = [one for one in peer.delivered if one[0] != offset]
    peer.elsewhere["audit"] = [(offset, at)]
    lab.blame("altered", offset)


def other_group_topic(lab: Lab) -> None:
    """A topic of that name, of another group's node."""
    path = lab.root / "one/topics/orders"
    shutil.rmtree(path)
    rows = [(lab.run.pick([offset]), at) for offset, at in lab.run.peers[0].delivered]
    write_topic(lab.root / "one", "orders", rows, "another")
    lab.blame("foreign", "one/topics/orders/*")


# Receipts.


def other_receipts(key: bytes, group: str) -> Plant:
    """Of another run: its group has another key, or another name."""

    def plant(lab: Lab) -> None:
        offsets = range(1_200)
        path = Path(lab.receipts[0])
        write_receipts(lab.run, path, offsets, IdMint(group, key))
        lab.blame("foreign", path.name)

    return plant


def forged_receipt(lab: Lab) -> None:
    offset = lab.run.a_delivered()
    path = lab.root / "forged.arrow"
    some = [offset - 3, offset, offset + 3]
    checks = IdMint("lab", KEY).checks(lab.run.due[some], np.array(some))
    checks[1] ^= 1
    lab.receipts.append(write_receipts(lab.run, path, some, check=checks))
    lab.blame("forged", offset)


def altered_receipt(lab: Lab) -> None:
    offset = lab.run.a_delivered()
    digest = np.array([1], np.uint64)
    lab.receipts.append(write_receipts(lab.run, lab.root / "other", [offset], digest=digest))
    lab.blame("altered", offset)


def torn_receipts(lab: Lab) -> None:
    """Of a producer that was killed."""
    cut(Path(lab.receipts[0]), 200)


def doubled_receipts(lab: Lab) -> None:
    copy = lab.root / "copy.arrow"
    shutil.copy(lab.receipts[0], copy)
    lab.receipts.append(str(copy))


def not_receipts(lab: Lab) -> None:
    path = lab.root / "node.log"
    path.write_text("2026-11-21T08:56:30.130Z info recovered")
    lab.receipts.append(str(path))
    lab.blame("damaged", path)


def dump_as_receipts(lab: Lab) -> None:
    lab.receipts.append(str(lab.root / "orders.dump"))
    lab.blame("damaged", "orders.dump")


def promise_unknown(lab: Lab) -> None:
    """The producer has receipts of messages behind the end of all journals."""
    run = lab.run
    offset = run.rows.num_rows + 7
    due = int(run.due[100])
    lab.receipts.append(
        write_receipts(
            run,
            lab.root / "more.arrow",
            [100],
            offset=[offset],
            check=IdMint("lab", KEY).checks(np.array([due]), np.array([offset])),
        )
    )
    lab.blame("lost", f"lab.{due}.{offset}.*")


# Dumps.


def forgotten(*names: str, subject: str) -> Plant:
    def plant(lab: Lab) -> None:
        lab.dumps = [path for path in lab.dumps if Path(path).name not in names]
        lab.leave_open(subject)

    return plant


def doubled_dump(lab: Lab) -> None:
    lab.dumps.append(shutil.copy(lab.dumps[0], str(lab.root / "copy.dump")))


def other_topic_dump(lab: Lab) -> None:
    """Of a topic that has records of somebody else."""
    path = lab.root / "audit.dump"
    rows = [row | {"topic": "audit", "headers": []} for row in read_dump(Path(lab.dumps[0]))]
    write_dump(path, pa.Table.from_pylist(rows, kafka_rows(lab.run.pick([1])).schema))
    lab.dumps[0] = str(path)
    lab.leave_open("topic orders")


def in_dump(
    change: Callable[[list[dict[str, Any]], int], None], kind: str, **options: Any
) -> Plant:
    """Change the records of the dump; ``change`` is given the number of one."""

    def plant(lab: Lab) -> None:
        lab.options |= options
        path = Path(lab.dumps[0])
        rows = read_dump(path)
        at = 300
        name = id_of(rows[at])
        change(rows, at)
        write_dump(path, pa.Table.from_pylist(rows, kafka_rows(lab.run.pick([1])).schema))
        if kind:
            lab.blame(kind, name)

    return plant


def another_due(lab: Lab) -> None:
    in_dump(set_header("slotwheel-due-ms", b"%d" % (replayrun.START_MS + 62_000)), "")(lab)
    lab.blame("altered", f"lab.{replayrun.START_MS + 62_000}.*")


def id_of(record: dict[str, Any]) -> str:
    value: bytes = next(one["value"] for one in record["headers"] if one["key"] == "slotwheel-id")
    return value.decode()


def set_header(name: str, value: bytes) -> Callable[[list[dict[str, Any]], int], None]:
    def change(rows: list[dict[str, Any]], at: int) -> None:
        rows[at]["headers"] = [
            one | {"value": value} if one["key"] == name else one for one in rows[at]["headers"]
        ]

    return change


def set_field(name: str, value: Any) -> Callable[[list[dict[str, Any]], int], None]:
    def change(rows: list[dict[str, Any]], at: int) -> None:
        rows[at] = rows[at] | {name: value}

    return change


def add_copy(rows: list[dict[str, Any]], at: int) -> None:
    rows.append(rows[at] | {"position": 10_000})


def remove_record(rows: list[dict[str, Any]], at: int) -> None:
    del rows[at]


def unreadable_id(lab: Lab) -> None:
    in_dump(set_header("slotwheel-id", b"lab.nonsense"), "lost")(lab)
    lab.blame("forged", "orders.dump")


# Directories.


def leave_out(lab: Lab) -> None:
    del lab.directories[1]
    lab.leave_open("1 of the group's 3 directories")


def empty_directory(lab: Lab) -> None:
    (lab.root / "four").mkdir()
    lab.directories.append(str(lab.root / "four"))
    lab.blame("empty", "four")


def other_group(lab: Lab) -> None:
    run = replayrun.made(200, 2, ("nine",))
    run.group = "another"
    run.write(lab.root)
    lab.directories.append(str(lab.root / "nine"))
    lab.blame("foreign", "nine")


def copied_peer(lab: Lab) -> None:
    """One peer's directory, copied, in the place of another's."""
    shutil.rmtree(lab.root / "three")
    shutil.copytree(lab.root / "two", lab.root / "three")
    lab.blame("foreign", "three")
    lab.leave_open("1 of the group's 3 directories")


def older_copy(lab: Lab) -> None:
    """A whole copy of a peer's directory of some time before: it lags behind, by right."""
    peer = lab.run.peers[2]
    peer.entries = peer.entries[:-1]


def expired(lab: Lab) -> None:
    """The oldest segments have left the archives of all peers."""
    for path in lab.every("*/archive/*/journal/*0001.journal"):
        path.unlink()
    lab.receipts = []


def drop_kept(lab: Lab) -> None:
    lab.one(f"one/archive/{DAY}/journal/*").unlink()
    lab.receipts = []


def with_slots(plant: Plant) -> Plant:
    """Kept slot files are gone, too."""

    def plant_both(lab: Lab) -> None:
        plant(lab)
        for path in lab.every("*/archive/*/slots/*"):
            path.unlink()
        lab.leave_open("* messages or cancels of offsets *")

    return plant_both


def drop_all(lab: Lab) -> None:
    """No segment is left, kept or not."""
    name = lab.run.peers[-1].name
    for path in lab.every(f"{name}/**/*.journal"):
        path.unlink()
    lab.blame("missing", f"{name}/journal")


def drop_index(lab: Lab) -> None:
    path = lab.one("one/topics/orders/*.index")
    path.unlink()
    lab.blame("missing", path.with_suffix(".arrows"))


def empty_index(lab: Lab) -> None:
    path = lab.one("one/topics/orders/*.index")
    empty(path)
    lab.blame("missing", path.with_suffix(".arrows"))


def drop_middle(lab: Lab) -> None:
    """A segment of a topic, between two others."""
    path = lab.one("one/topics/orders/*.arrows")
    path.unlink()
    path.with_suffix(".index").unlink()
    lab.blame("missing", path)


def topic_segment(lab: Lab) -> None:
    """The first segment of a topic, of which others follow."""
    path = lab.every("one/topics/orders/*.arrows")[0]
    path.unlink()
    path.with_suffix(".index").unlink()
    lab.blame("missing", path)


def drop_topic(lab: Lab) -> None:
    shutil.rmtree(lab.root / "one/topics/orders")
    lab.leave_open("topic orders")


def set_aside(path: Path) -> None:
    """As a node does it that finds the damage when it starts."""
    flip(path)
    path.with_suffix(".damaged").write_text("damaged")


def index_flipped(lab: Lab) -> None:
    path = lab.one("one/topics/orders/*.index")
    flip(path, 20)
    lab.blame("damaged", path.with_suffix(".arrows"))
