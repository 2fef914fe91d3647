"""The table of faults that the proof is held against; docs/replay.md has what comes of them."""

from __future__ import annotations

import os
from pathlib import Path

from slotwheel.replay.judging.names import NAME_TWICE
from slotwheel.replay.report.verdict import Outcome
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S
from support import faults as f
from support import replayrun
from support.damage import cut, flip
from support.planting import ALONE_RUN, FAR_RUN, KAFKA_RUN, OTHER_KEY, Fault, Meant
from support.replayrun import DAY
from support.schedulefaults import SCHEDULES

PROVEN, IN_PART, NOT_PROVEN = Outcome.PROVEN, Outcome.IN_PART, Outcome.NOT_PROVEN
ALONE, KAFKA = (NOT_PROVEN, ALONE_RUN), (NOT_PROVEN, KAFKA_RUN)
KEPT, KEPT_SLOTS = f"two/archive/{DAY}/journal/*", f"two/archive/{DAY}/slots/*"
OWN_KEPT, OWN_NEWEST, OWN_SLOTS = f"one/archive/{DAY}/journal/*", "one/journal/*", "one/slots/*"
NEWEST, SLOTS = "two/journal/*", "two/slots/*"
DAYS, HOURS = "two/slots/*+86400.arrows", "two/slots/*+3600.arrows"
KEPT_HOURS = f"two/archive/{DAY}/slots/*+3600.*"
FAR = (NOT_PROVEN, FAR_RUN)
ORDERS = "one/topics/orders/*.arrows"

JOURNALS = [
    Fault("a kept segment is missing at one of three peers", f.harmed(KEPT, Path.unlink), PROVEN),
    Fault("a kept segment is missing, and there are no receipts", f.drop_kept, PROVEN, ALONE_RUN),
    Fault(
        "a kept segment and all kept slot files are missing, and there are no receipts",
        f.with_slots(f.drop_kept),
        IN_PART,
        ALONE_RUN,
    ),
    Fault("the newest is missing", f.newest(NEWEST, Path.unlink, "missing", "two/journal")),
    Fault(
        "the newest is missing",
        f.newest(OWN_NEWEST, Path.unlink, "missing", "one/journal"),
        *ALONE,
    ),
    Fault("the newest is empty", f.newest(NEWEST, f.empty, "truncated")),
    Fault("the newest is empty", f.newest(OWN_NEWEST, f.empty, "truncated"), *ALONE),
    Fault("the newest is cut in half", f.newest(OWN_NEWEST, f.cut_most, "truncated"), *ALONE),
    Fault("the newest lacks its last byte: a torn end", f.harmed(NEWEST, cut), PROVEN),
    Fault("all are missing", f.drop_all),
    Fault("all are missing", f.drop_all, *ALONE),
    Fault("a kept segment is cut in half", f.harmed(KEPT, f.halve, "damaged")),
    Fault("a kept segment is empty", f.harmed(KEPT, f.empty, "damaged")),
    Fault("a byte of an entry is flipped", f.harmed(KEPT, flip, "damaged")),
    Fault("a byte of an entry is flipped", f.harmed(OWN_KEPT, flip, "damaged"), *ALONE),
    Fault("a byte of a header is flipped", f.harmed(KEPT, f.flip_at(20), "damaged")),
    Fault("a byte of a frame is flipped", f.harmed(KEPT, f.flip_at(66), "damaged")),
    Fault("a byte of an entry's header is flipped", f.harmed(KEPT, f.flip_at(100), "damaged")),
    Fault("two kept segments have each other's name", f.exchanged(KEPT)),
    Fault("a segment is another peer's", f.from_elsewhere("three")),
    Fault("a segment is another group's", f.other_group_segment),
    Meant("a row is cut from the middle of an entry", f.cut_row(50, "two")),
    Meant("a row is cut from the middle of an entry", f.cut_row(50), *ALONE),
    Meant("the last row of an entry is cut off", f.cut_row(-1), *ALONE),
    Meant(
        "at all peers the last row of an entry is cut off, and slot files of two still have it",
        f.add_row,
    ),
    Meant("an entry stands there twice", f.in_run(replayrun.accept_twice, "offset twice")),
    Meant("a row has another value", f.altered("journal", "value", b"x", "differs", "two")),
    Meant("a row has another due time", f.altered("journal", "due", 1, "differs", "two")),
]
SLOT_FILES = [
    Fault("a byte is flipped", f.harmed(SLOTS, flip, "damaged")),
    Fault("the last byte is cut off", f.harmed(SLOTS, cut, "truncated")),
    Fault("one is empty", f.harmed(SLOTS, f.empty, "truncated")),
    Fault("one is missing", f.harmed(SLOTS, Path.unlink, "missing")),
    Fault("one is missing", f.harmed(OWN_SLOTS, Path.unlink, "missing"), *ALONE),
    Fault("two are exchanged", f.exchanged(SLOTS)),
    Meant("a row lies in the next second's", f.in_run(replayrun.move_row, "misplaced")),
    Meant("a row is missing", f.in_run(replayrun.miss_row, "missing row")),
    Meant("a row is missing at all peers", f.miss_row_everywhere),
    Meant("a row has another value", f.altered("slot", "value", b"x", "differs", "two")),
    Meant("a row has another key", f.altered("slot", "key", b"x", "differs", "two")),
]
ARCHIVE = [
    Fault("a byte of a kept slot file is flipped", f.harmed(KEPT_SLOTS, flip, "damaged")),
    Fault("a kept slot file is cut", f.harmed(KEPT_SLOTS, cut, "truncated")),
    Fault("two kept slot files are exchanged", f.exchanged(KEPT_SLOTS)),
    Fault("two have each other's second as name", f.rename_kept),
    Meant("a kept slot file lacks a row: a limit", f.remove_kept_row, PROVEN),
    Fault("a stray file", f.stray(f"two/archive/{DAY}/slots"), PROVEN),
    Fault("a slot file of another wheel", f.others_slot),
    Fault("a file in the place of a folder", f.not_a_folder),
    Fault("a kept slot file was deleted, by right", f.harmed(KEPT_SLOTS, Path.unlink), PROVEN),
    Fault("the oldest segments were deleted, and no receipts", f.expired, PROVEN),
    Fault(
        "the oldest segments and all slot files were deleted, and no receipts",
        f.with_slots(f.expired),
        IN_PART,
    ),
]
WIDE = [
    Fault("a byte of a day's is flipped", f.harmed(DAYS, flip, "damaged"), *FAR),
    Fault("the last byte of an hour's is cut off", f.harmed(HOURS, cut, "truncated"), *FAR),
    Fault("a day's is missing", f.harmed(DAYS, Path.unlink, "missing"), *FAR),
    Fault("a byte of a kept hour's is flipped", f.harmed(KEPT_HOURS, flip, "damaged"), *FAR),
    Fault("a kept hour's has another hour's name", f.rename_hour, *FAR),
    Meant("a row of a day's is missing", f.in_wide(DAY_S, f.lose_row, "missing row"), *FAR),
    Meant(
        "a row of an hour's is missing at all peers",
        f.in_wide(HOUR_S, f.lose_row_everywhere, "lost"),
        *FAR,
    ),
    Meant("a row stands twice in a day's", f.in_wide(DAY_S, f.repeat_row, "offset twice"), *FAR),
    Meant(
        "a row of an hour's stands in its second's, too",
        f.in_wide(HOUR_S, f.copy_row, "offset twice"),
        *FAR,
    ),
    Meant(
        "a row lies in the file of the next day", f.in_wide(DAY_S, f.carry_row, "misplaced"), *FAR
    ),
    Meant("a row of a day's has another value", f.in_wide(DAY_S, f.change_row, "differs"), *FAR),
    Meant(
        "a record is missing of a message that the file of today still holds",
        f.lose_delivered,
        *FAR,
    ),
    Meant(
        "a message of a day's is there that a row in its second's cancels",
        f.in_run(replayrun.deliver_cancelled, "cancelled but delivered"),
        *FAR,
    ),
]
STATE_STORES = [
    Fault("it is missing", f.drop_state),
    Fault("it is missing", f.drop_state, *ALONE),
    Fault("it is of some time before", f.older_state),
    Fault("it is another peer's", f.state_of("three")),
    Fault("a record is damaged", f.damaged_record),
    Fault("it is cut in half", f.halved_state),
    Fault("a repair lost rows of a slot", f.repaired),
]
TOPICS = [
    Fault("a segment is missing", f.harmed(ORDERS, Path.unlink, "missing")),
    Fault("an index is missing", f.drop_index),
    Fault("an index is empty", f.empty_index),
    Fault("the first segment is missing, and its index", f.topic_segment),
    Fault("one in the middle is missing, and its index", f.drop_middle),
    Fault("the topic's directory is missing", f.drop_topic, IN_PART, ALONE_RUN),
    Fault("a segment is cut", f.harmed(ORDERS, cut, "truncated")),
    Fault("a byte is flipped", f.harmed(ORDERS, flip, "damaged")),
    Fault("a byte of an index is flipped", f.index_flipped),
    Fault("a segment was set aside by its node", f.harmed(ORDERS, f.set_aside, "damaged")),
    Fault("it is another group's", f.other_group_topic),
    Fault("a stray file", f.stray("one/topics"), PROVEN),
    Fault("a stray file in a topic's folder", f.stray("one/topics/orders"), PROVEN),
    Fault("an empty folder: a topic that was begun", f.begun_topic, PROVEN),
    Fault("a pipe in the place of a segment", f.no_file(ORDERS, os.mkfifo)),
    Meant("a record is missing", f.in_run(replayrun.remove_delivered, "lost")),
    Meant(
        "a record twice, with `--exactly-once`",
        f.in_run(replayrun.repeat_delivered, "repeated", exactly_once=True),
    ),
    Meant(
        "a dead letter twice, with `--exactly-once`",
        f.in_run(replayrun.repeat_dead, "repeated", exactly_once=True),
    ),
    Meant("a record is 1 ms early", f.in_run(replayrun.deliver_early, "early")),
    Meant(
        "a record is late, with `--late-ms`", f.in_run(replayrun.deliver_late, "late", late_ms=999)
    ),
    Meant("a record stands behind later ones", f.reorder_delivered),
    Meant(
        "a cancelled message is there",
        f.in_run(replayrun.deliver_cancelled, "cancelled but delivered"),
    ),
    Meant("a dead letter is there", f.in_run(replayrun.deliver_dead, "dead and delivered")),
    Meant(
        "an expired message is there",
        f.in_run(replayrun.deliver_expired, "expired but delivered"),
    ),
    Meant(
        "a message is a dead letter 1 ms before it expires",
        f.in_run(replayrun.bury_too_soon, "dead too soon"),
    ),
    Meant(
        "a delivered message is an expired dead letter, too, with `--exactly-once`",
        f.in_run(replayrun.repeat_as_expired, "repeated", exactly_once=True),
    ),
    Meant(
        "the dead letter of an expired message is missing",
        f.in_run(replayrun.forget_expired, "lost"),
    ),
    Meant("a record has a cancel row's id", f.deliver_cancel_row),
    Meant("a record is another topic's", f.wrong_topic),
    Meant("a record has another value", f.altered("topic", "value", b"x", "altered")),
    Meant("another key", f.altered("topic", "key", b"x", "altered")),
    Meant("another header", f.altered("topic", "headers", [("n", b"x")], "altered")),
    Meant("another due time", f.altered("topic", "due", -1, "altered")),
    Meant("another time of acceptance", f.altered("topic", "created", 1, "altered")),
]
NAMES: list[Fault] = [
    Meant("two pending messages have the same", f.in_run(replayrun.name_twice, NAME_TWICE)),
    Meant("two pending messages have the same", f.in_run(replayrun.name_twice, NAME_TWICE), *ALONE),
    Meant(
        "the row that cancels a replaced message is missing",
        f.in_run(replayrun.lose_replacing, NAME_TWICE),
    ),
    Meant(
        "a message that was kept out is cancelled by a later entry alone",
        f.in_run(replayrun.keep_too_late, NAME_TWICE),
    ),
    Meant(
        "a replaced message is there all the same",
        f.in_run(replayrun.deliver_cancelled, "cancelled but delivered"),
        *KAFKA,
    ),
]
RECEIPTS = [
    Fault("of another run, of a group of that name", f.other_receipts(OTHER_KEY, "lab")),
    Fault("of another group", f.other_receipts(OTHER_KEY, "another")),
    Fault("cut off: the producer was killed", f.torn_receipts, PROVEN),
    Fault("given twice", f.doubled_receipts, PROVEN),
    Fault("one has an id that was not given out", f.forged_receipt),
    Fault("one is of other content", f.altered_receipt),
    Fault("one is behind the end of all journals", f.promise_unknown),
    Fault("a log file in their place", f.not_receipts),
    Fault("a dump in their place", f.dump_as_receipts, *KAFKA),
]
DUMPS = [
    Fault(
        "all forgotten",
        f.forgotten("orders.dump", "dead.dump", subject="topic orders"),
        IN_PART,
        KAFKA_RUN,
    ),
    Fault(
        "that of the dead letters forgotten",
        f.forgotten("dead.dump", subject="topic *dead*"),
        IN_PART,
        KAFKA_RUN,
    ),
    Fault("one of another topic", f.other_topic_dump, IN_PART, KAFKA_RUN),
    Fault("given twice", f.doubled_dump, PROVEN, KAFKA_RUN),
    Fault("cut", f.harmed("orders.dump", f.cut_most, "truncated"), *KAFKA),
    Fault("a record is missing", f.in_dump(f.remove_record, "lost"), *KAFKA),
    Fault("a record twice", f.in_dump(f.add_copy, "repeated"), PROVEN, KAFKA_RUN),
    Fault(
        "a record twice, with `--exactly-once`",
        f.in_dump(f.add_copy, "repeated", exactly_once=True),
        *KAFKA,
    ),
    Fault("another value", f.in_dump(f.set_field("value", b"x"), "altered"), *KAFKA),
    Fault("another key", f.in_dump(f.set_field("key", b"x"), "altered"), *KAFKA),
    Fault("another due time in the header", f.another_due, *KAFKA),
    Fault("an id that is none", f.unreadable_id, *KAFKA),
]
DIRECTORIES = [
    Fault("one peer's is not given", f.leave_out, IN_PART),
    Fault("an empty one, too", f.empty_directory),
    Fault("another group's, too", f.other_group),
    Fault("one peer's is a copy of another's", f.copied_peer),
    Fault("one peer's is a copy from before it was elected", f.copied_before),
    Fault(
        "one peer's is a copy from before it was elected, and others were since",
        f.copied_long_before,
        IN_PART,
    ),
    Meant("one peer's is an older copy, by right", f.older_copy, PROVEN),
]
FAULTS = {
    "journal segments": JOURNALS,
    "slot files": SLOT_FILES,
    "slot files of an hour or a day": WIDE,
    "archive": ARCHIVE,
    "state store": STATE_STORES,
    "embedded topics": TOPICS,
    "names": NAMES,
    "schedules": SCHEDULES,
    "receipts": RECEIPTS,
    "dumps of Kafka's topics": DUMPS,
    "directories": DIRECTORIES,
}


def one(faults: list[Fault], text: str) -> Fault:
    return next(fault for fault in faults if fault.text == text)


TOGETHER = [
    one(JOURNALS, "a byte of an entry is flipped"),
    one(JOURNALS, "a row has another value"),
    one(SLOT_FILES, "a byte is flipped"),
    one(SLOT_FILES, "a row lies in the next second's"),
    one(ARCHIVE, "two have each other's second as name"),
    one(TOPICS, "a record is missing"),
    one(TOPICS, "a cancelled message is there"),
    one(TOPICS, "a dead letter is there"),
    one(RECEIPTS, "of another run, of a group of that name"),
    one(DIRECTORIES, "an empty one, too"),
]
"""Ten that are planted two at a time, too."""
BY_SPARK = [
    TOGETHER[0],
    TOGETHER[5],
    one(TOPICS, "an expired message is there"),
    one(TOPICS, "a record twice, with `--exactly-once`"),
    TOGETHER[8],
    one(WIDE, "a record is missing of a message that the file of today still holds"),
    one(DUMPS, "all forgotten"),
    one(DUMPS, "that of the dead letters forgotten"),
    NAMES[2],
    NAMES[0],
    SCHEDULES[6],
    SCHEDULES[12],
    SCHEDULES[0],
]
