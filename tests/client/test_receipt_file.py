"""``Client(receipts=…)``: a row for each message that was stored, and for no other."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel import Client, InvalidConfiguration, InvalidMessage, Message, Overloaded
from slotwheel.client.receiptfile import RECEIPTS, ReceiptFile
from slotwheel.reading.files import RECEIPTS as KIND
from slotwheel.reading.files import File
from slotwheel.reading.read import Ended, RowsSeen, read
from slotwheel.wheel.digest import digests
from slotwheel.wheel.ids import MessageId
from support.fakewheel import FakeWheel
from support.stopwatch import Stopwatch
from support.waiting import eventually, now_ms

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipts.arrows"


def content(path: Path) -> pa.Table:
    """A file that was closed: the whole stream, as any Arrow library reads it."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def rows_so_far(path: Path) -> list[dict[str, Any]]:
    """What the proof reads of a file, whatever its end is like."""
    events = list(read(File(0, KIND, str(path), path.name, path.stat().st_size)))
    assert isinstance(events[-1], Ended), events
    assert not events[-1].damaged
    return [row for one in events if isinstance(one, RowsSeen) for row in one.rows.to_pylist()]


def ids_of(rows: pa.Table) -> list[str]:
    names = ("group", "due", "offset", "check")
    columns = (rows.column(n) if n != "due" else rows.column(n).cast(pa.int64()) for n in names)
    return [str(MessageId(*one)) for one in zip(*(c.to_pylist() for c in columns), strict=True)]


def stored_digests(wheel: FakeWheel) -> list[int]:
    """Of all rows the wheel has, in the order of their offsets."""
    rows = pa.Table.from_batches(wheel.batches).combine_chunks().to_batches()[0]
    names = ("topic", "key", "value", "headers")
    found: list[int] = digests(*(rows.column(name) for name in names)).tolist()
    return found


def test_each_way_of_sending_leaves_a_row_a_message(
    address: str, wheel: FakeWheel, path: Path
) -> None:
    before = now_ms()
    with Client(address, receipts=path) as client:
        one = client.send("a", b"v", key=b"k", headers=[("h", None)], delay=30)
        one.result(60)
        many = client.send_many(Message("b" * (n % 3 + 1), b"%d" % n, delay=60) for n in range(999))
        many.wait(60)
        due = [now_ms() + n for n in range(500)]
        table = pa.table(
            {"due": due, "topic": ["t"] * 500, "value": [b"x" * n for n in range(500)]}
        )
        last = client.send_table(table.slice(100))
        last.wait(60)
    found = content(path)
    assert found.schema.equals(RECEIPTS, check_metadata=True)
    assert ids_of(found) == [one.id, *many.result(), *last.result()]
    assert found.column("digest").to_pylist() == stored_digests(wheel)
    assert found.column("topic").to_pylist() == [row["topic"] for row in wheel.rows]
    sent, received = (found.column(n).cast(pa.int64()).to_numpy() for n in ("sent", "received"))
    assert (before <= sent).all()
    assert (sent <= received).all()
    assert (received <= now_ms()).all()


def test_what_was_not_stored_has_none(address: str, wheel: FakeWheel, path: Path) -> None:
    """Whether it is refused here or by the node; what stays of its batch keeps its own digests."""

    def refuse(rows: pa.RecordBatch) -> None:
        for row, value in enumerate(rows.column("value").to_pylist()):
            if value.startswith(b"bad"):
                raise InvalidMessage("the node does not like it", got=value, row=row)

    wheel.before_append = refuse
    messages = [Message("t", b"bad" if n % 40 == 7 else b"%d" % n, delay=60) for n in range(200)]
    messages[50] = Message("no/topic", b"", delay=60)
    with Client(address, receipts=path) as client:
        receipts = client.send_many(messages)
        assert len(receipts.errors(60)) == 6
    found = content(path)
    good = [receipt.id for receipt in receipts if receipt.error() is None]
    assert ids_of(found) == good
    assert len(good) == 194
    assert found.column("digest").to_pylist() == stored_digests(wheel)


def test_what_was_sent_twice_has_one(address: str, wheel: FakeWheel, path: Path) -> None:
    times = iter(range(10_000))

    def refuse(rows: pa.RecordBatch) -> None:
        if next(times) % 3 == 0:
            raise Overloaded("not now")

    wheel.before_append = refuse
    with Client(address, receipts=path, batch_rows=10, timeout_s=60) as client:
        ids = client.send_many(Message("t", b"%d" % n, delay=60) for n in range(200)).result(60)
    found = content(path)
    assert sorted(ids_of(found)) == sorted(ids)
    by_offset = np.argsort(found.column("offset").to_numpy())
    assert found.column("digest").to_numpy()[by_offset].tolist() == stored_digests(wheel)


def test_many_threads(address: str, wheel: FakeWheel, path: Path) -> None:
    with Client(address, receipts=path, linger_ms=1) as client:
        ids: list[str] = []

        def work(number: int) -> None:
            made = [client.send("t", b"%d" % number, delay=60) for _ in range(500)]
            ids.extend([receipt.result(60) for receipt in made])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(ids_of(content(path))) == sorted(ids)
    assert len(set(ids)) == 2000


def test_rows_are_there_soon_and_after_a_flush_at_once(address: str, path: Path) -> None:
    with Client(address, receipts=path) as client:
        assert rows_so_far(path) == []
        client.send("t", b"1", delay=60).result(60)
        eventually(lambda: len(rows_so_far(path)) == 1)
        for number in range(2, 50):
            client.send("t", b"%d" % number, delay=60)
            client.flush(60)
            assert len(rows_so_far(path)) == number


def test_a_file_that_is_there_is_left_alone(address: str, path: Path) -> None:
    path.write_bytes(b"mine")
    with pytest.raises(InvalidConfiguration, match="there already"):
        Client(address, receipts=path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError):
        Client(address, receipts=path.parent / "nowhere" / "receipts")


def test_without_answers_there_are_no_receipts(address: str, path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="acks"):
        Client(address, receipts=path, acks="0")
    assert not path.exists()
    with Client(address, receipts=path, acks="1") as client:
        client.send("t", b"", delay=60)
    assert content(path).num_rows == 1


def test_a_full_disk_costs_receipts_and_no_messages(
    address: str,
    wheel: FakeWheel,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = ReceiptFile._write

    def fail(file: ReceiptFile, data: bytes) -> None:
        if path.stat().st_size > 4000:
            raise OSError(28, "No space left on device")
        write(file, data)

    monkeypatch.setattr(ReceiptFile, "_write", fail)
    client = Client(address, receipts=path, buffer_bytes=50_000)

    def send_until_it_fails() -> None:
        for _ in range(30):
            client.send_many(Message("t", b"x" * 10, delay=60) for _ in range(100)).wait(60)
            client.flush(60)

    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="No space left") as caught:
        send_until_it_fails()
    assert caught.value.filename == str(path)
    stored = len(wheel.rows)
    client.send_many(Message("t", b"x" * 10, delay=60) for _ in range(1000)).result(60)
    assert len(wheel.rows) == stored + 1000
    with pytest.raises(OSError, match="receipts are missing"):
        client.close()
    assert len([one for one in caplog.records if "receipts" in one.message]) == 1
    assert 0 < len(rows_so_far(path)) < stored


def test_the_block_s_own_error_comes_first(
    address: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: ReceiptFile, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    def leave_with(error: Exception | None, path: Path) -> None:
        with Client(address, receipts=path) as client, monkeypatch.context() as patched:
            patched.setattr(ReceiptFile, "_write", fail)
            client.send("t", b"", delay=60).result(60)
            eventually(lambda: not client._receipts or client._receipts._error)
            if error is not None:
                raise error

    with pytest.raises(KeyError, match="mine"):
        leave_with(KeyError("mine"), path)
    with pytest.raises(OSError, match="Input/output"):
        leave_with(None, path.with_name("two"))


def test_receipts_that_wait_are_bounded_by_the_buffer(
    address: str, wheel: FakeWheel, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs slows the sender; nothing piles up."""
    go_on = threading.Event()
    write = ReceiptFile._write

    def hang(file: ReceiptFile, data: bytes) -> None:
        assert go_on.wait(60)
        write(file, data)

    with Client(address, receipts=path, buffer_bytes=100_000, timeout_s=3.0) as client:
        monkeypatch.setattr(ReceiptFile, "_write", hang)
        batches = [[Message("t", b"x", delay=60)] * 100] * 100
        with pytest.raises(Overloaded):
            list(map(client.send_many, batches))
        assert 500 < len(wheel.rows) < 6_000
        go_on.set()
        client.send("t", b"last", delay=60).result(60)
    # Some may have been given up while nothing could be handed over.
    assert 500 < content(path).num_rows <= len(wheel.rows)


def test_close_does_not_wait_for_ever(
    address: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    client = Client(address, receipts=path)
    monkeypatch.setattr(ReceiptFile, "_write", lambda *_: go_on.wait(60))
    client.send("t", b"", delay=60).result(60)
    started = Stopwatch()
    client.close(0.5)
    assert started.seconds < 3
    assert "not written yet" in caplog.text
    go_on.set()


SENDER = """
import sys
from slotwheel import Client, Message
client = Client(sys.argv[1], receipts=sys.argv[2])
number = 0
while True:
    client.send_many(Message("t", b"%d" % number, delay=60) for _ in range(100)).wait()
    number += 1
    if number == 50:
        print("go", flush=True)
"""


def test_a_killed_producer_leaves_a_readable_file(
    address: str, wheel: FakeWheel, path: Path
) -> None:
    command = [sys.executable, "-c", SENDER, address, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        time.sleep(0.3)
        process.kill()
    rows = rows_so_far(path)
    assert 5000 <= len(rows) <= len(wheel.rows)
    assert [row["offset"] for row in rows] == list(range(len(rows)))


def test_a_real_limit_of_the_system(address: str, wheel: FakeWheel, path: Path) -> None:
    """A write that goes half through: the batch is torn, and the error is told at the end."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5_001, 5_001))\n"
    script = limit + SENDER.replace("while True:", "while number < 50:") + "client.close()\n"
    command = [sys.executable, "-c", script, address, str(path)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"File too large" in done.stderr.splitlines()[-1]
    assert path.stat().st_size == 5_001
    assert len(wheel.rows) == 5000
    assert len(rows_so_far(path)) < 100


# The digest, a second time, by the words of docs/formats.md.

STEP = 0x9E3779B97F4A7C15
END = 1 << 64


def mix(x: int) -> int:
    x = (x + STEP) % END
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % END
    x = (x ^ x >> 27) * 0x94D049BB133111EB % END
    return x ^ x >> 31


def word(data: bytes | None) -> int:
    if data is None:
        return END - 1
    if len(data) > 128:
        return (len(data) << 32) + int(crc32c(data))
    pieces = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return (len(data) + sum(mix(p ^ i * STEP % END) for i, p in enumerate(pieces))) % END


def digest(
    topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> int:
    d = mix(crc32c(topic.encode()))
    d = mix(d ^ word(key))
    d = mix(d ^ word(value))
    if headers:
        pairs = [
            mix(mix(j * STEP % END ^ word(name.encode())) ^ word(content))
            for j, (name, content) in enumerate(headers)
        ]
        d = mix(d ^ sum(pairs) % END)
    return d


CASES: list[tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    ("orders", None, None, []),
    ("orders", b"k", b"hello, later", []),
    ("orders", b"", b"x" * 200, [("a", b"1"), ("b", None)]),
]


def test_the_digest_is_as_documented(address: str, path: Path) -> None:
    """Another language's producer, or reader, has nothing but that page."""
    section = (ROOT / "docs/formats.md").read_text("utf-8").partition("### Digest")[2]
    assert [int(one, 16) for one in re.findall(r"\| `([0-9a-f]{16})` \|", section)] == [
        digest(*case) for case in CASES
    ]
    random = np.random.default_rng(4)
    sizes = [0, 1, 7, 8, 9, 64, 127, 128, 129, 300]
    cases = [
        *CASES,
        *(
            ("ta"[: n % 2 + 1], random.bytes(n % 17), random.bytes(size), [])
            for n, size in enumerate(sizes)
        ),
    ]
    with Client(address, receipts=path) as client:
        for topic, key, value, headers in cases:
            client.send(topic, value, key=key, headers=headers, delay=60).result(60)
    assert content(path).column("digest").to_pylist() == [digest(*case) for case in cases]
