"""Facts of the wheel's own files: journals, slot files, embedded topics, receipts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.policy.deadletters import letter_headers
from slotwheel.reading.files import File
from slotwheel.replay.facts.fact import CANCEL_ROW, FORGED, NO_DIGEST, Seen
from slotwheel.replay.facts.making import (
    FactBatch,
    GroupTerms,
    journal_facts,
    receipt_facts,
    slot_facts,
    topic_facts,
)
from slotwheel.wheel.digest import digests
from slotwheel.wheel.ids import NO_LONG_IDS, IdMint
from slotwheel.wheel.rows import from_numpy
from slotwheel.wheel.schema import TIME, times
from support.factrows import EPOCH_MS, MINT, TERMS, Keeps, rows, topic_rows

FILE = File(7, "journal", "/a", "a", 0, peer=2, slot=EPOCH_MS // 1000)
SOME = rows(
    {"offset": 10, "headers": [("a", b"1")], "key": b"k", "partition": 3},
    {"offset": 11, "cancels": 4, "topic": "", "value": None},
    {"offset": 12, "topic": "bills", "value": None},
)


def digest_of(batch: pa.RecordBatch) -> list[int]:
    names = ("topic", "key", "value", "headers")
    found: list[int] = digests(*(batch.column(name) for name in names)).tolist()
    return found


def fields(made: FactBatch, *names: str) -> list[tuple[int, ...]]:
    return [tuple(int(fact[name]) for name in names) for fact in made.facts]


def test_rows_of_a_journal() -> None:
    made = journal_facts(FILE, SOME, np.array([5, 5, 6]), np.array([1, 1, 2]))
    assert fields(made, "seen", "offset", "where", "at", "partition", "flags") == [
        (Seen.ACCEPTED, 10, 5, 1, 3, 0),
        (Seen.CANCEL, 11, 5, 1, -1, 0),
        (Seen.ACCEPTED, 12, 6, 2, -1, 0),
        (Seen.CANCELLED, 4, 11, EPOCH_MS - 60_000, -1, NO_DIGEST),
    ]
    digest = digest_of(SOME)
    assert fields(made, "digest", "topic") == [
        (digest[0], crc32c(b"orders")),
        (4, 0),
        (digest[2], crc32c(b"bills")),
        (0, 0),
    ]
    assert fields(made, "due", "created") == [
        (EPOCH_MS + 10, EPOCH_MS - 60_000),
        (EPOCH_MS + 11, EPOCH_MS - 60_000),
        (EPOCH_MS + 12, EPOCH_MS - 60_000),
        (EPOCH_MS + 11, -1),
    ]
    assert {(int(fact["file"]), int(fact["peer"])) for fact in made.facts} == {(7, 2)}
    assert made.topics == {crc32c(b"orders"): "orders", crc32c(b"bills"): "bills"}


def test_rows_of_a_slot_file_are_those_of_the_journal() -> None:
    for archived, seen in ((False, Seen.SLOT), (True, Seen.ARCHIVED)):
        made = slot_facts(dataclasses.replace(FILE, archived=archived), SOME)
        assert fields(made, "seen", "where", "flags") == [
            (seen, FILE.slot, 0),
            (seen, FILE.slot, CANCEL_ROW),
            (seen, FILE.slot, 0),
            (Seen.CANCELLED, 11, NO_DIGEST),
        ]
        accepted = journal_facts(FILE, SOME, 1, 1).facts
        assert made.facts[3:].tolist() == accepted[3:].tolist()
        made, accepted = dataclasses.replace(made, facts=made.facts[:3]), accepted[:3]
        for name in ("offset", "due", "created", "digest", "topic", "partition"):
            assert made.facts[name].tolist() == accepted[name].tolist()


def test_a_slice_gives_what_the_whole_gives() -> None:
    whole = journal_facts(FILE, SOME, 1, 1).facts
    assert journal_facts(FILE, SOME.slice(1, 1), 1, 1).facts.tolist() == whole[[1, 3]].tolist()
    assert journal_facts(FILE, SOME.slice(2), 1, 1).facts.tolist() == whole[[2]].tolist()
    assert len(journal_facts(FILE, SOME.slice(0, 0), 1, 1).facts) == 0


def test_an_embedded_topic() -> None:
    sent = rows({"offset": 5, "headers": [("a", None)], "partition": 1}, {"offset": 9})
    made = topic_facts(FILE, "orders", "lab", topic_rows(sent, first=40), TERMS)
    accepted = journal_facts(FILE, sent, 1, 1).facts
    for name in ("offset", "due", "created", "digest", "topic", "partition"):
        assert made.facts[name].tolist() == accepted[name].tolist()
    assert fields(made, "seen", "where", "at", "flags") == [
        (Seen.DELIVERED, 40, EPOCH_MS + 8, 0),
        (Seen.DELIVERED, 41, EPOCH_MS + 12, 0),
    ]


def test_an_id_that_the_group_did_not_make_is_forged() -> None:
    sent = rows(*({"offset": offset} for offset in range(20)))
    batch = topic_rows(sent)
    checks = np.asarray(batch.column("check")).copy()
    # With the short ids that these messages do not have.
    short = IdMint(MINT.group, MINT._key, NO_LONG_IDS)
    checks[5:9] = short.checks(times(sent, "due"), times(sent, "offset"))[5:9]
    checks[3] ^= 1
    forged = batch.set_column(2, batch.schema.field(2), pa.array(checks))
    made = topic_facts(FILE, "orders", "lab", forged, TERMS)
    assert np.flatnonzero(made.facts["flags"] == FORGED).tolist() == [3, 5, 6, 7, 8]
    # Without the key nobody can tell.
    made = topic_facts(FILE, "orders", "lab", forged, GroupTerms("lab"))
    assert not made.facts["flags"].any()


def test_a_topic_of_another_group_is_left_out() -> None:
    sent = topic_rows(rows({"offset": 1}), group="other")
    made = topic_facts(FILE, "orders", "other", sent, TERMS)
    assert (len(made.facts), made.foreign) == (0, 1)


def test_dead_letters_are_described_as_they_were() -> None:
    sent = rows(
        {"offset": 1, "headers": [("a", b"1")], "partition": 6},
        {"offset": 2, "topic": "bills"},
        # Its own headers look like the added ones.
        {"offset": 3, "headers": [("slotwheel-dead-topic", b"x"), ("slotwheel-id", b"y")]},
        # It was a dead letter of a consumer before.
        {"offset": 5, "headers": letter_headers("consumer", "buried", "by hand", b"bills")},
    )
    sink = Keeps()
    DeadLetters(sink, None).bury(sent, ["too large", "no such topic", "why", "no room"], [])
    direct = rows({"offset": 4, "topic": TERMS.dead_letter_topic})
    letters = pa.concat_batches([*sink.rows, direct])
    made = topic_facts(
        FILE, TERMS.dead_letter_topic, "lab", topic_rows(letters, TERMS.dead_letter_topic), TERMS
    )
    assert made.facts["seen"].tolist() == [Seen.DEAD] * 4 + [Seen.DELIVERED]
    accepted = journal_facts(FILE, pa.concat_batches([sent, direct]), 1, 1).facts
    for name in ("offset", "due", "created", "digest", "topic", "partition"):
        assert made.facts[name].tolist() == accepted[name].tolist()
    assert set(made.topics.values()) == {TERMS.dead_letter_topic, "orders", "bills"}


def receipts(batch: pa.RecordBatch, groups: list[str]) -> pa.RecordBatch:
    due = np.asarray(batch.column("due").cast(pa.int64()))
    columns = {
        "offset": batch.column("offset"),
        "due": batch.column("due"),
        "check": pa.array(MINT.checks(due, np.asarray(batch.column("offset"))), pa.uint64()),
        "topic": batch.column("topic"),
        "digest": pa.array(digest_of(batch), pa.uint64()),
        "sent": batch.column("created"),
        "received": from_numpy(due - 1, TIME),
        "group": pa.array(groups).dictionary_encode(),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_receipts() -> None:
    sent = rows({"offset": 1}, {"offset": 2}, {"offset": 3})
    made = receipt_facts(FILE, 100, receipts(sent, ["lab", "other", "lab"]), TERMS)
    assert made.foreign == 1
    assert fields(made, "seen", "offset", "where", "created", "partition", "flags", "at") == [
        (Seen.RECEIPT, 1, 100, -1, -1, 0, EPOCH_MS),
        (Seen.RECEIPT, 3, 102, -1, -1, 0, EPOCH_MS + 2),
    ]
    assert made.facts["digest"].tolist() == [digest_of(sent)[0], digest_of(sent)[2]]
