"""``slotwheel inspect``: the content of the files of a data directory, decoded.

Everything that could be decoded is printed before the error that stopped it is reported, because
the bytes before a fault often explain it. It changes nothing, and may run beside a node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

import click

from ..reading.directory import ReadOnlyFiles, reading
from ..reading.messagefields import Fields
from ..reading.slots import slot_blocks
from ..reading.state import load_state
from ..reading.topicreader import TopicReader, check_exists, topics
from ..reading.topicreader import walk as walk_topic
from ..reading.verify.slots import committed_bytes, in_time
from ..wheel.checks import check_topic
from ..wheel.errors import Damaged, InvalidConfiguration
from ..wheel.files import SLOT_DIRECTORY
from ..wheel.journal.entry import EntryKind
from ..wheel.journal.payloads import decode_rows
from ..wheel.journal.scan import walk as walk_journal
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import is_segment_name
from ..wheel.named.runs import NameRun, decode_runs
from ..wheel.slots.slot import (
    WIDTHS_S,
    is_wide,
    path_of,
    slot_of_name,
    stem_of,
    wider_slots,
    width_s,
)
from ..wheel.state import SlotInfo
from ..wheel.topics.topicfile import TOPICS_DIRECTORY
from .fields import (
    block_fields,
    entry_fields,
    held_fields,
    marks_fields,
    public,
    row_fields,
    run_fields,
    slot_fields,
    topic_fields,
)
from .printing import Listing, listing
from .shared import combined, data_argument, json_option


@click.group("inspect")
def command() -> None:
    """Print what stands in the files of a data directory, up to the first fault."""


_common = combined(
    data_argument,
    click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=100,
        help="Print at most N records; 0 for all.",
    ),
    json_option,
)


@command.command("slots", short_help="List the slot files, or print the rows of one.")
@_common
@click.argument("path", required=False)
def slots(directory: Path, path: str | None, limit: int, as_json: bool) -> None:
    """List the slot files of DIR, or print the rows of one: PATH, or its slot, such as 1800000060
    or 1800000000+3600."""
    noun = "rows" if path else "slot files"
    with reading(directory) as files, listing(as_json, limit, noun) as listed:
        infos = load_state(directory).slots
        if path is not None:
            _list_rows(files, infos, path, listed)
            return
        for slot, info in in_time(infos).items():
            listed.record(slot_fields(slot, info))


def _list_rows(
    files: ReadOnlyFiles, infos: Mapping[int, SlotInfo], path: str, listed: Listing
) -> None:
    name = path.rsplit("/", 1)[-1]
    slot = slot_of_name(name if name.endswith(".arrows") else f"{name}.arrows")
    if slot is None:
        raise InvalidConfiguration(
            "not a slot file",
            got=path,
            remedy=f"Name a file of {SLOT_DIRECTORY}/, or its slot: 1800000060, 1800000000+3600",
        )
    info = infos.get(slot)
    if info is None:
        wider = [path_of(wide) for wide in wider_slots(slot) if wide in infos]
        others = f". Messages due then may be in {' and '.join(wider)}" if wider else ""
        raise InvalidConfiguration(
            "no such slot in the catalog",
            got=stem_of(slot),
            remedy=f"'slotwheel inspect slots DIR' lists those there are{others}",
        )
    path = path_of(slot)
    listed.line(slot_fields(slot, info))
    data, crc = committed_bytes(files, slot, info)
    for position, batch in slot_blocks(data, path):
        listed.line({"block": position, "rows": batch.num_rows})
        for fields in row_fields(batch):
            listed.record(fields, "  ")
    if data.size < info.length:
        raise Damaged(path, data.size, expected=f"{info.length} bytes", found=f"{data.size} bytes")
    if crc != info.crc:
        raise Damaged(path, 0, expected=f"CRC-32C {info.crc:08x}", found=f"{crc:08x}")


@command.command("journal", short_help="Print the journal's entries.")
@_common
@click.argument("path", required=False)
@click.option("--rows", "with_rows", is_flag=True, help="Print the rows of each entry, too.")
def journal(directory: Path, path: str | None, limit: int, as_json: bool, with_rows: bool) -> None:
    """Print the entries of the journal of DIR, or of one segment of it, PATH.

    In a directory that a node runs on, or that was left by a crash, the last entry may be half
    written: it is reported as damaged here, while 'verify' tells a torn end from damage.
    """
    with reading(directory) as files, listing(as_json, limit, "entries") as listed:
        for segment in _segments(files, path):
            for located in walk_journal(files, segment):
                entry = located.entry
                listed.record(entry_fields(segment, located))
                if with_rows and entry.kind is EntryKind.ROWS:
                    for fields in row_fields(decode_rows(entry, segment), entry.base_offset):
                        listed.line(fields, "  ")


def _segments(files: ReadOnlyFiles, path: str | None) -> list[str]:
    names = [name for name in files.list(JOURNAL_DIRECTORY) if is_segment_name(name)]
    if path is not None:
        names = [name for name in names if name == path.rsplit("/", 1)[-1]]
        if not names:
            raise InvalidConfiguration(
                "no such journal segment", got=path, remedy=f"Name a file of {JOURNAL_DIRECTORY}/"
            )
    return [f"{JOURNAL_DIRECTORY}/{name}" for name in names]


@command.command("names", short_help="List the runs of names, or print one.")
@_common
@click.argument("path", required=False)
def names(directory: Path, path: str | None, limit: int, as_json: bool) -> None:
    """List the runs of names of DIR, or print the names in one: PATH.

    A run has no texts, but a key of each topic and name. After the names come the offsets of
    messages that were cancelled.
    """
    noun = "names" if path else "runs"
    with reading(directory) as files, listing(as_json, limit, noun) as listed:
        infos = decode_runs(load_state(directory).names or b"[]")
        if path is None:
            for info in infos:
                listed.record(run_fields(info))
            return
        wanted = [info for info in infos if info.path.endswith(path.rsplit("/", 1)[-1])]
        if not wanted:
            raise InvalidConfiguration(
                "no such run of names",
                got=path,
                remedy="'slotwheel inspect names DIR' lists those there are",
            )
        for info in wanted:
            listed.line(run_fields(info))
            run = NameRun.open(files, info)
            for fields in held_fields(run.places):
                listed.record(fields, "  ")
            for offset in run.cancelled.tolist():
                listed.record({"cancelled": offset}, "  ")


@command.command("state", short_help="Print the state: epoch, checkpoint, totals.")
@_common
def state(directory: Path, limit: int, as_json: bool) -> None:
    """Print the state of DIR: epoch, vote, checkpoint, and the producers it remembers."""
    with reading(directory), listing(as_json, limit, "producers") as listed:
        stored = load_state(directory)
        checkpoint = stored.checkpoint
        listed.line({"store_id": stored.store_id.hex(), "epoch": stored.epoch, "vote": stored.vote})
        listed.line(
            {
                "checkpoint": checkpoint.index,
                "epoch": checkpoint.epoch,
                "next_offset": checkpoint.next_offset,
                "rows": checkpoint.rows,
                "cancels": checkpoint.cancels,
            }
        )
        listed.line({"mark": "of the checkpoint", **marks_fields(checkpoint.marks)})
        listed.line({"config": public(dict(checkpoint.config))})
        listed.line(_totals(stored.slots.values()))
        if any(map(is_wide, stored.slots)):
            for width in WIDTHS_S:
                of_width = [info for at, info in stored.slots.items() if width_s(at) == width]
                listed.line({"slots_of_seconds": width, **_totals(of_width)})
        for producer, sent in stored.producers.items():
            sequences = [batch.sequence for batch in sent]
            listed.record({"producer": producer, "sequences": sequences})


def _totals(infos: Collection[SlotInfo]) -> Fields:
    return {
        "slot_files": len(infos),
        "rows": sum(info.rows for info in infos),
        "bytes": sum(info.length for info in infos),
    }


@command.command("topic", short_help="List the embedded topics, or print one.")
@_common
@click.argument("topic", required=False)
@click.option("--rows", "with_rows", is_flag=True, help="Print the rows of each block, too.")
def topic(directory: Path, topic: str | None, limit: int, as_json: bool, with_rows: bool) -> None:
    """List the embedded topics of DIR, or print the blocks of one, TOPIC."""
    noun = "blocks" if topic else "topics"
    with reading(directory) as files, listing(as_json, limit, noun) as listed:
        if topic is None:
            for name in topics(files):
                listed.record({"topic": name, **_topic_totals(files, name)})
            return
        topic = topic.removeprefix(f"{TOPICS_DIRECTORY}/").partition("/")[0]
        check_topic(topic)
        check_exists(files, topic)
        with closing(TopicReader(files, topic)) as reader:
            for path, block in walk_topic(files, topic):
                listed.record(block_fields(path, block))
                batch = reader.read() if with_rows else None
                if batch is not None:
                    for fields in topic_fields(batch):
                        listed.line(fields, "  ")


def _topic_totals(files: ReadOnlyFiles, topic: str) -> Fields:
    """Totals up to the first fault, which must not keep the other topics from the list."""
    rows = blocks = 0
    try:
        for _, block in walk_topic(files, topic):
            rows += block.rows
            blocks += 1
    except Damaged as error:
        return {"rows": rows, "blocks": blocks, "error": str(error)}
    return {"rows": rows, "blocks": blocks}
