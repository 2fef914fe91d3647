"""``slotwheel dead redrive``: each letter once, whatever ends it and whichever two of them meet."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import Client, Message
from slotwheel.client.columns import Errors, Limits
from slotwheel.client.resending import Resending
from slotwheel.client.succession import SEQUENCES, Successor
from slotwheel.policy.deadletters import BURIED, RETRIES_USED_UP, notes_topic
from slotwheel.reading.letters.again import as_messages
from slotwheel.reading.letters.letters import letters_of
from slotwheel.reading.letters.notes import Redriven, note_row
from slotwheel.reading.letters.redrive import Sending, Turn, begin, producer_of
from slotwheel.reading.letters.source import LetterSource
from slotwheel.wheel.errors import InvalidBatch, InvalidConfiguration, SlotwheelError
from slotwheel.wheel.files import OsFiles
from support.broker import Cluster, TopicFactory
from support.deadlab import EmbeddedLab, KafkaLab, dump_of, letter, numbers
from support.nodeprocess import run_cli
from support.waiting import eventually

WIDE = 2_000
"""Bytes of a value, so that a few hundred letters are a batch."""


@pytest.fixture(params=["embedded", "kafka"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedLab]:
    """One of each, with topics ``a`` and ``b`` as targets (``target``)."""
    if request.param == "embedded":
        with EmbeddedLab(tmp_path) as made:
            yield made
    else:
        broker, topic = (request.getfixturevalue(name) for name in ("broker", "topic"))
        exactly_once = ("--sink", "confluent", "--delivery", "exactly-once")
        with KafkaLab(tmp_path, broker, topic, *exactly_once) as made:
            made.names = {name: topic(name, 3) for name in "ab"}
            yield made


IN_KAFKA_TOO = pytest.mark.parametrize(
    "lab", ["embedded", pytest.param("kafka", marks=pytest.mark.soak)], indirect=True
)
"""Of which the Kafka is soak."""


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedLab]:
    with EmbeddedLab(tmp_path) as made:
        yield made


def once(*ranges: range) -> Counter[int]:
    return Counter(number for one in ranges for number in one)


def test_killed_at_any_moment_each_letter_is_sent_once(lab: EmbeddedLab) -> None:
    """Letters come in meanwhile, and overlapping parts are asked for."""
    chance = random.Random(7)
    a, b = lab.target("a"), lab.target("b")
    size, count = 1_500, 0
    filters = [["--for-topic", a], ["--reason", BURIED], []]
    for wanted in filters[: 2 if isinstance(lab, KafkaLab) else 3]:
        both = range(count, count + size)
        reasons = (BURIED, RETRIES_USED_UP)
        lab.bury([letter((a, b)[n % 2], n, reasons[n // 2 % 2], value_bytes=WIDE) for n in both])
        count += size
        lab.killed(chance.choice([0, 1, size // 2, size]), "redrive", "--yes", *wanted)
    done = lab.dead("redrive", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["complete"]
    assert told["redriven_before"] + told["redriven_meanwhile"] + told["sent"] == count
    assert numbers(lab.arrived(a, count // 2)) == once(range(0, count, 2))
    assert numbers(lab.arrived(b, count // 2)) == once(range(1, count, 2))
    assert json.loads(lab.dead("redrive", "--yes", "--json").stdout)["letters"] == 0


@IN_KAFKA_TOO
def test_a_new_life(lab: EmbeddedLab) -> None:
    """What arrives is the original: its headers, its partition, a new due time, the id it had."""
    a = lab.target("a")
    one = letter(a, 1, partition=2)
    old = [("slotwheel-retry-attempt", b"4"), ("slotwheel-origin-topic", b"x")]
    before = ("slotwheel-redelivered-id", b"first")  # of an earlier redrive: it is replaced
    kept = [("own", None), ("", b"\xff")]
    lab.bury([one._replace(key=None, value=None, headers=[before, *old, *one.headers, *kept])])
    start_ms = time.time_ns() // 1_000_000
    assert lab.dead("redrive", "--yes").stdout == "redrove 1 letter\n"
    (found,) = lab.arrived(a, 1)
    assert (found.key, found.value, found.partition) == (None, None, 2)
    assert start_ms <= found.due_ms <= found.appended_ms
    ids = [("slotwheel-redelivered-id", found.headers[-1][1])] if lab.gives_ids else [before]
    assert found.headers == [("own", b"1"), *kept, *ids]


@IN_KAFKA_TOO
def test_a_rate_is_held(lab: EmbeddedLab) -> None:
    a, count, rate = lab.target("a"), 600, 400
    lab.bury([letter(a, n) for n in range(count)])
    assert lab.dead("redrive", "--yes", "--rate", str(rate)).returncode == 0
    found = sorted(one.due_ms for one in lab.arrived(a, count))
    seconds = (found[-1] - found[0]) / 1000
    assert (count - 1) / seconds == pytest.approx(rate, rel=0.05)
    assert max(np.diff(found)) <= 1000 / rate + 1
    arrived = sorted(one.appended_ms for one in lab.arrived(a, count))
    assert all(when >= due for when, due in zip(arrived, found, strict=True)), "one was early"


def test_only_what_is_asked_for(embedded: EmbeddedLab) -> None:
    lab, a, b = embedded, "a", "b"
    lab.bury([letter(a, n, group="g") for n in range(40)] + [letter(b, 100 + n) for n in range(40)])
    assert lab.dead("redrive", "--yes", "--for-topic", a, "--key", "k3").returncode == 0
    assert numbers(lab.arrived(a, 4)) == once(range(3, 40, 10))
    assert lab.dead("redrive", "--yes", "--group", "g", "--to-topic", b).returncode == 0
    assert numbers(lab.arrived(b, 36)) == once(range(40)) - once(range(3, 40, 10))
    listed = lab.dead("list", "--json").stdout.splitlines()
    assert [json.loads(one)["redriven"] for one in listed] == [40, 0]


def test_stopped_it_says_what_it_did_and_goes_on(embedded: EmbeddedLab) -> None:
    lab, a, count = embedded, "a", 6_000
    lab.bury([letter(a, n, value_bytes=WIDE) for n in range(count)])
    process = lab.started("redrive", "--yes")
    eventually(lambda: lab.notes() > 1 or process.poll() is not None)
    node = lab.node.running
    os.kill(node.pid, signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=30)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert process.returncode in (0, 130), error
    assert out.startswith("redrove ")
    # The machine may have let it finish before it was stopped.
    assert "not complete: run it again to go on" in out or out == f"redrove {count:,} letters\n"
    assert lab.dead("redrive", "--yes").returncode == 0
    assert numbers(lab.arrived(a, count)) == once(range(count))


def test_an_expired_letter_is_delivered_and_expires_no_more(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab, Client(lab.node.address) as client:
        headers = [("own", b"1")]
        first = client.send(Message("a", b"late", b"k", headers, 1, delay=-5, ttl=0.001)).result(60)
        lab.node.wait_for(lab.topic, 1)
        (listed,) = lab.dead("list", "--json").stdout.splitlines()
        assert json.loads(listed) == {
            "reason": "expired",
            "topic": "a",
            "letters": 1,
            "redriven": 0,
        }
        assert lab.dead("redrive", "--yes", "--id", first).returncode == 0
        (found,) = lab.arrived("a", 1)
        names = [name for name, _ in found.headers]
        assert names == ["own", "slotwheel-redelivered-expires-ms", "slotwheel-redelivered-id"]
        assert (found.value, found.partition) == (b"late", 1)
        assert found.headers[-1][1] == first.encode()


def test_the_topic_of_the_notes_has_to_exist(
    broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    with KafkaLab(tmp_path, broker, topic) as lab:
        a = topic("a")
        lab.bury([letter(a, 1), letter(f"{a}-no", 2)])
        broker.delete_topic(lab.notes_topic)
        eventually(lambda: "no such topic" in lab.dead("redrive", "--yes").stderr)
        assert "--create-topics" in lab.dead("redrive", "--yes").stderr
        assert lab.dead("redrive", "--dry-run").returncode == 0
        missing = lab.dead("redrive", "--yes", "--create-topics", "--for-topic", f"{a}-no")
        assert "no such topic in Kafka" in missing.stderr
        assert "to another topic" in missing.stderr
        done = lab.dead("redrive", "--yes", "--create-topics", "--for-topic", a)
        assert (done.returncode, done.stdout) == (0, "redrove 1 letter\n"), done.stderr
        assert numbers(lab.arrived(a, 1)) == once(range(1, 2))
        broker.delete_records(lab.notes_topic)
        refused = lab.dead("redrive", "--yes", "--for-topic", a)
        assert refused.returncode == 1
        assert "--despite-deleted-notes" in refused.stderr
        dry = json.loads(lab.dead("redrive", "--dry-run", "--json", "--for-topic", a).stdout)
        assert (dry["letters"], dry["notes_deleted"], dry["sent"]) == (1, True, 0)
        sent = lab.dead("redrive", "--yes", "--despite-deleted-notes", "--for-topic", a)
        assert sent.returncode == 0, sent.stderr
        assert numbers(lab.arrived(a, 2)) == Counter({1: 2})


def test_one_that_is_too_large_stays_and_the_others_go(
    broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    with KafkaLab(tmp_path, broker, topic, partitions=1) as lab:
        a = topic("a")
        large = letter(a, 3)._replace(value=b"x" * 1_000_300)
        lab.bury([*(letter(a, n) for n in range(3)), large, letter(a, 4)])
        done = lab.dead("redrive", "--yes")
        assert (done.returncode, done.stdout) == (1, "redrove 4 letters, 1 refused\n")
        assert "error: letter 0/3: message too large" in done.stderr
        assert numbers(lab.arrived(a, 4)) == once(range(3), range(4, 5))
        told = json.loads(lab.dead("redrive", "--yes", "--json").stdout)
        assert (told["letters"], told["sent"], told["refused"]) == (1, 0, 1)
        assert not told["complete"]


def test_the_one_that_began_last_goes_on(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab, closing(OsFiles(lab.node.data)) as files:
        lab.bury([letter("a", n) for n in range(10)])
        source = LetterSource(files, "", {}, print)
        first = begin(source, lab.topic, lab.node.address, 20, Redriven())
        assert first.redriven.turns == {first.number}
        assert first.number % SEQUENCES, "known by more than its millisecond"
        with source.opened(lab.topic) as opened:
            (letters,) = (as_messages(letters_of(one), None) for one in opened.batches())
        assert lab.dead("redrive", "--yes").stdout == "redrove 10 letters\n"
        late = Sending(first, Resending(0, lambda *_: None), None)
        with first.client:
            late.send(letters)
            with pytest.raises(SlotwheelError, match="another redrive of this topic"):
                list(late.finish())
        assert numbers(lab.arrived("a", 10)) == once(range(10))


def test_one_group_redrives_the_letters_of_a_topic(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab, closing(OsFiles(lab.node.data)) as files:
        theirs = Redriven()
        theirs.group = "another"
        with pytest.raises(InvalidConfiguration, match="expected another"):
            begin(LetterSource(files, "", {}, print), lab.topic, lab.node.address, 20, theirs)
        assert lab.notes() == 0


def test_a_clock_that_was_ahead_bars_nobody(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab:
        lab.bury([letter("a", 1)])
        ahead = (time.time_ns() // 1_000_000 + 86_400_000) * SEQUENCES
        sender = Successor(
            lab.node.address, timeout_s=10, producer=producer_of(lab.topic), first_sequence=ahead
        )
        with sender as client:
            notes, group = notes_topic(lab.topic), client.status_of_master()["group"]
            client.send_whole(note_row(notes, group, (1 << 63) - 1)).result(60)
        done = lab.dead("redrive", "--yes")
        assert (done.returncode, done.stdout) == (0, "redrove 1 letter\n"), done.stderr


class RefusingClient:
    """Refuses a batch in which a value is ``bad``, as a whole."""

    limits = Limits()
    batch_max = (100, 1 << 20)

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def send_whole(self, rows: pa.RecordBatch, left_out: Errors) -> Any:
        values = rows.column("value").to_pylist()
        errors: dict[int, SlotwheelError] = {}
        if b"bad" in values:
            errors = {row: InvalidBatch("no") for row in range(len(values))}
        else:
            self.stored += values
        return SimpleNamespace(errors=lambda: errors)


def test_of_a_batch_that_is_refused_only_the_bad_letters_stay() -> None:
    values = [b"bad" if n in (3, 17) else b"%d" % n for n in range(20)]
    rows = letters_of(dump_of([[]] * 20, values))
    client, refused = RefusingClient(), list[int]()
    turn = Turn(client, 1, "notes", "g", Redriven())  # type: ignore[arg-type]
    resending = Resending(0, lambda number, _: refused.append(number))
    sending = Sending(turn, resending, None)
    sending.send(as_messages(rows, "a"))
    assert sum(sending.finish()) == 20
    assert (resending.sent, resending.refused, resending.under_way) == (18, 2, 0)
    assert [sending.place(one) for one in refused] == [(0, 3), (0, 17)]
    notes = [json.loads(one) for one in client.stored if one.startswith(b"{")]
    named = sorted(place for one in notes for _, place, _ in one["letters"])
    sent = sorted(int(one) for one in client.stored if not one.startswith(b"{"))
    assert named == sent == [n for n in range(20) if n not in (3, 17)]


def test_a_node_that_delivers_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with EmbeddedLab(tmp_path) as lab, EmbeddedLab(tmp_path / "other") as other:
        lab.bury([letter("a", 1)])
        command = [*lab.command("redrive", "--yes", "--timeout", "1s")]
        command[command.index("--node") + 1] = other.node.address
        done = run_cli(*command)
        assert done.returncode == 1
        assert "does not appear in" in done.stderr
        assert "falls back to" in done.stderr
        assert not (other.node.data / "topics" / "a").exists()


def test_a_batch_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab:
        sender = Successor(lab.node.address, timeout_s=10, producer=5, first_sequence=9)
        good, bad = (note_row(topic, "g", 1) for topic in ("notes", "not a topic"))
        with sender as client:
            receipts = client.send_whole(pa.concat_batches([good, bad]))
            errors = receipts.errors(60)
            assert sorted(errors) == [0, 1]
            assert all(isinstance(one, SlotwheelError) for one in errors.values())
            assert client.send_whole(good).errors(60) == {}
        assert len(lab.node.wait_for("notes", 1)) == 1


def test_a_rate_beyond_the_horizon_is_refused(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab:
        lab.bury([letter("a", n) for n in range(10)])
        done = lab.dead("redrive", "--yes", "--rate", "0.0000001")
        assert done.returncode == 1
        assert "beyond the horizon" in done.stderr
        assert not (lab.node.data / "topics" / notes_topic(lab.topic)).exists()
