"""Embedded topics on disk: what is read back, what is cut, what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.reading.topicreader import TopicReader, check_exists, ids, topics, walk
from slotwheel.wheel.errors import Damaged, InvalidMessage, UnsupportedVersion
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.topics import topicfile
from slotwheel.wheel.topics.topicfile import HEADER_BYTES, RECORD_BYTES, IndexHeader, IndexRecord
from support.damage import flipped
from support.deliveries import MINT, NOW_MS, Sent, id_of, odd, rows_of
from support.nodeprocess import topic_rows

NAME = "0" * 20


def sink_at(path: Path, **limits: int) -> EmbeddedSink:
    return EmbeddedSink(OsFiles(path), MINT, lambda: NOW_MS + 5, **limits)


def fill(path: Path, blocks: int = 3, rows: int = 4, topic: str = "t", first: int = 0) -> None:
    sink = sink_at(path)
    for block in range(first, first + blocks):
        sent = [Sent(topic, f"{block}-{row}".encode()) for row in range(rows)]
        assert (sink.deliver(rows_of(sent, block * rows)).codes == Answer.ACCEPTED).all()
    sink.close()


def values(path: Path, topic: str = "t") -> list[bytes]:
    return [row["value"] for row in topic_rows(path, topic)]


def test_anyone_can_open_a_segment(tmp_path: Path) -> None:
    sent = odd("orders")
    sink = sink_at(tmp_path)
    sink.deliver(rows_of(sent, 7))
    sink.close()
    path = tmp_path / "topics" / "orders" / f"{NAME}.arrows"
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        table = stream.read_all()
    assert table.schema.metadata[b"slotwheel.group"] == b"test"
    assert table.column("position").to_pylist() == list(range(len(sent)))
    assert table.column("value").to_pylist() == [one.value for one in sent]
    assert table.column("key").to_pylist() == [one.key for one in sent]
    found = [tuple((h["key"], h["value"]) for h in row) for row in table["headers"].to_pylist()]
    assert found == [one.headers for one in sent]
    assert table.column("delivered").cast(pa.int64()).to_pylist() == [NOW_MS + 5] * len(sent)
    (batch,) = table.to_batches()
    assert ids(batch) == [id_of(one, 7 + at) for at, one in enumerate(sent)]


def test_positions_go_on_after_reopening(tmp_path: Path) -> None:
    for round_ in range(3):
        fill(tmp_path, first=round_ * 3)
    assert values(tmp_path) == [f"{b}-{r}".encode() for b in range(9) for r in range(4)]
    reader = TopicReader(OsFiles(tmp_path), "t", 17)
    batch = reader.read()
    assert batch is not None
    assert batch.column("position").to_pylist() == [17, 18, 19]
    assert reader.position == 20
    reader.close()


def test_segments_roll_and_are_read_as_one(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, segment_bytes=4000)
    reader = TopicReader(OsFiles(tmp_path), "t")
    seen: list[int] = []
    for block in range(20):
        sink.deliver(rows_of([Sent("t", b"x" * 500)] * 2, block * 2))
        for batch in reader.batches():
            seen += batch.column("position").to_pylist()
    assert seen == list(range(40))
    assert len(list((tmp_path / "topics" / "t").glob("*.arrows"))) > 5
    reader.close()
    sink.close()
    assert sum(block.rows for _, block in walk(OsFiles(tmp_path), "t")) == 40
    again = sink_at(tmp_path, segment_bytes=4000)
    again.deliver(rows_of([Sent("t", b"last")], 40))
    again.close()
    assert values(tmp_path)[-1] == b"last"
    late = TopicReader(OsFiles(tmp_path), "t", 39)
    assert [n for b in late.batches() for n in b.column("position").to_pylist()] == [39, 40]
    late.close()


def test_many_topics_in_one_chunk_keep_their_order(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, open_files_max=4)
    sent = [Sent(f"t{n % 30}", str(n).encode()) for n in range(600)]
    for _ in range(2):
        assert (sink.deliver(rows_of(sent)).codes == Answer.ACCEPTED).all()
    sink.close()
    assert len(topics(OsFiles(tmp_path))) == 30
    for topic in range(30):
        expected = [str(n).encode() for n in range(topic, 600, 30)]
        assert values(tmp_path, f"t{topic}") == expected * 2


def test_a_reader_sees_only_committed_rows(tmp_path: Path) -> None:
    fill(tmp_path)
    stream = tmp_path / "topics" / "t" / f"{NAME}.arrows"
    index = tmp_path / "topics" / "t" / f"{NAME}.index"
    with stream.open("ab") as file:
        file.write(b"half a block")
    with index.open("ab") as file:
        file.write(IndexRecord(12, 10**6, 4, 1, 1).encode()[:-1])
    reader = TopicReader(OsFiles(tmp_path), "t")
    assert sum(batch.num_rows for batch in reader.batches()) == 12
    fill(tmp_path, blocks=1, first=3)  # cuts what the dead writer left, and writes on
    found = [value for batch in reader.batches() for value in batch.column("value").to_pylist()]
    assert found == [f"3-{r}".encode() for r in range(4)]
    reader.close()


def test_follow_waits_for_more_and_ends_when_told(tmp_path: Path) -> None:
    reader = TopicReader(OsFiles(tmp_path), "t")
    rounds = iter(range(3))

    def wait() -> bool:
        number = next(rounds, None)
        if number is None:
            return False
        fill(tmp_path, blocks=1, first=number)
        return True

    found = [value for batch in reader.follow(wait) for value in batch.column("value").to_pylist()]
    assert found == [f"{b}-{r}".encode() for b in range(3) for r in range(4)]
    reader.close()


def test_a_topic_that_is_not_there_is_named(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(InvalidMessage, match=r"'nope'.*Topics there are: t"):
        check_exists(OsFiles(tmp_path), "nope")
    check_exists(OsFiles(tmp_path), "t")


def test_every_cut_of_the_index_gives_back_whole_blocks(tmp_path: Path) -> None:
    fill(tmp_path)
    index = tmp_path / "topics" / "t" / f"{NAME}.index"
    whole = index.read_bytes()
    for length in range(len(whole), -1, -1):
        index.write_bytes(whole[:length])
        blocks = max(0, length - HEADER_BYTES) // RECORD_BYTES
        sink = sink_at(tmp_path)
        sink.recover_all()
        sink.close()
        assert len(values(tmp_path)) == blocks * 4, length


@pytest.mark.parametrize("suffix", ["index", "arrows"])
def test_a_segment_with_any_flipped_byte_is_set_aside_and_its_topic_goes_on(
    tmp_path: Path, suffix: str
) -> None:
    fill(tmp_path, rows=2)
    folder = tmp_path / "topics" / "t"
    changed = folder / f"{NAME}.{suffix}"
    whole = changed.read_bytes()
    for at in range(0, len(whole), 5 if suffix == "index" else 61):
        changed.write_bytes(flipped(whole, at * 8 + at % 8))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        sink = sink_at(tmp_path)
        sink.recover_all()
        [(path, text)] = sink.damaged().items()
        assert path == f"topics/t/{NAME}.arrows", at
        assert f"{NAME}.{suffix} is damaged at byte" in text, at
        new = rows_of([Sent("t", b"new"), Sent("u"), Sent("t", b"newer")])
        assert (sink.deliver(new).codes == Answer.ACCEPTED).all()
        sink.close()
        assert {name: (folder / name).read_bytes() for name in before} == before, at
        told: list[str] = []
        reader = TopicReader(OsFiles(tmp_path), "t", on_damage=told.append)
        rows = [row for batch in reader.batches() for row in batch.to_pylist()]
        reader.close()
        assert [row["value"] for row in rows[-2:]] == [b"new", b"newer"], at
        for row in rows[:-2]:
            block, number = divmod(row["position"], 2)
            assert row["value"] == f"{block}-{number}".encode(), at
        assert rows[-2]["position"] >= 6
        assert told or len(rows) == 8, at
        assert all("positions" in one and "damaged" in one for one in told)
        again = sink_at(tmp_path)
        again.recover_all()
        assert again.damaged() == {path: text}, "told after each start"
        again.close()
        for made in set(folder.iterdir()) - {folder / name for name in before}:
            made.unlink()


def test_damage_of_a_topic_that_is_not_open_holds_back_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    stream = tmp_path / "topics" / "t" / f"{NAME}.arrows"
    stream.write_bytes(flipped(stream.read_bytes(), (stream.stat().st_size - 3) * 8))
    sink = sink_at(tmp_path)
    answers = sink.deliver(rows_of([Sent("t"), Sent("u"), Sent("t")]))
    assert (answers.codes == Answer.ACCEPTED).all()
    assert list(sink.damaged()) == [f"topics/t/{NAME}.arrows"]
    sink.close()
    blocks = walk(OsFiles(tmp_path), "t")
    assert [next(blocks)[1].position, next(blocks)[1].position] == [0, 4]
    with pytest.raises(Damaged):
        next(blocks)


def test_a_reader_refuses_damage(tmp_path: Path) -> None:
    fill(tmp_path)
    stream = tmp_path / "topics" / "t" / f"{NAME}.arrows"
    stream.write_bytes(flipped(stream.read_bytes(), (stream.stat().st_size - 3) * 8))
    reader = TopicReader(OsFiles(tmp_path), "t")
    assert reader.read() is not None
    assert reader.read() is not None
    with pytest.raises(Damaged, match="CRC"):
        reader.read()
    reader.close()


def test_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path, blocks=0)
    fill(tmp_path, blocks=1)
    index = tmp_path / "topics" / "t" / f"{NAME}.index"
    data = bytearray(index.read_bytes())
    data[8] = topicfile.INDEX_VERSION + 1
    data[12:16] = crc32c(data[16:HEADER_BYTES], crc32c(data[:12])).to_bytes(4, "little")
    for kept in (len(data), HEADER_BYTES):
        index.write_bytes(data[:kept])
        sink = sink_at(tmp_path)
        with pytest.raises(UnsupportedVersion, match=r"got 2; expected 1"):
            sink.recover_all()
        sink.close()


def test_header_and_record_survive_encoding() -> None:
    header = IndexHeader(12, 345, 678)
    assert IndexHeader.decode(header.encode(), "x", 12) == header
    block = IndexRecord(1, 2, 3, 4, 5)
    assert IndexRecord.decode(block.encode()) == block
    with pytest.raises(Damaged, match="first position 13"):
        IndexHeader.decode(header.encode(), "x", 13)
