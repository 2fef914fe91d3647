"""A topic written by version 1 of the format is read by every later version.

The files in golden/topic-v1 are never written again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.reading.topicreader import TopicReader, ids, walk
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import LONG_CHECKS, NO_LONG_IDS, IdMint, MessageId
from slotwheel.wheel.topics.topicfile import TOPIC_SCHEMA
from slotwheel.wheel.topics.topiclog import segments
from support.deliveries import MINT, NOW_MS, Sent, odd, rows_of

GOLDEN = Path(__file__).parent / "golden" / "topic-v1"


def test_version_1_is_read_and_written_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "topics" / "golden")
    files = OsFiles(tmp_path)
    reader = TopicReader(files, "golden")
    first, second = list(reader.batches())
    sent = odd("golden")
    assert first.column("key").to_pylist() == [one.key for one in sent]
    assert first.column("value").to_pylist() == [one.value for one in sent]
    found = [tuple((h["key"], h["value"]) for h in row) for row in first["headers"].to_pylist()]
    assert found == [one.headers for one in sent]
    short = IdMint(MINT.group, MINT._key, NO_LONG_IDS)
    given_out = [str(short.one(one.due, 100 + at)) for at, one in enumerate(sent)]
    assert ids(first) == given_out
    assert first.schema.equals(TOPIC_SCHEMA)
    assert second.column("position").to_pylist() == [len(sent)]
    assert second.column("partition").to_pylist() == [2]
    assert [block.delivered_ms for _, block in walk(files, "golden")] == [NOW_MS + 3] * 2
    sink = EmbeddedSink(files, MINT, lambda: NOW_MS)
    sink.deliver(rows_of([Sent("golden", b"more")]))
    sink.close()
    more = reader.read()
    assert more is not None
    assert more.column("position").to_pylist() == [len(sent) + 1]
    assert [MessageId.parse(one).check >= LONG_CHECKS for one in ids(more)] == [True]
    assert segments(files, "golden") == [0, len(sent) + 1], "no block of another version in it"
    old = (tmp_path / "topics" / "golden" / f"{0:020d}.arrows").read_bytes()
    assert old == (GOLDEN / f"{0:020d}.arrows").read_bytes()
    reader.close()


def test_the_same_rows_give_the_same_index_layout(tmp_path: Path) -> None:
    """Whoever changes the layout has to change the version."""
    sink = EmbeddedSink(OsFiles(tmp_path), MINT, lambda: NOW_MS + 3)
    sink.deliver(rows_of(odd("golden"), 100))
    sink.close()
    name = f"{0:020d}.index"
    written = (tmp_path / "topics" / "golden" / name).read_bytes()
    golden = (GOLDEN / name).read_bytes()
    assert len(written) == 32 + 40
    assert written[:12] == golden[:12]
    assert written[16:24] == golden[16:24]
    record, old = written[32:], golden[32:72]
    # Arrow may serialise differently one day; position, rows and delivered may not.
    assert (record[:8], record[16:20], record[24:36]) == (old[:8], old[16:20], old[24:36])
