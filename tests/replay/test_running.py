"""Nodes that run while it is proven: what is read at different moments fits together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.files import SLOT
from slotwheel.reading.layout import find
from slotwheel.replay.facts.fact import Seen
from slotwheel.replay.judging.context import Options, make_context
from slotwheel.replay.proof import prove
from slotwheel.wheel.topics.topicfile import HEADER_BYTES, RECORD_BYTES
from support import replayrun
from support.told import scan


def test_what_a_mark_in_the_journal_covers_is_looked_for_in_topics_of_later(
    spark: Any, tmp_path: Path
) -> None:
    """It was delivered after the topics were listed, and before the journal was read: to the end of
    one topic, and to another one that is new."""
    directories = replayrun.made().write(tmp_path)
    (index,) = (tmp_path / "one/topics/orders").glob("*.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: HEADER_BYTES + 3 * RECORD_BYTES])
    shutil.move(tmp_path / "two/topics", tmp_path / "later")
    layout = find(directories)
    did = []

    def goes_on(doing: str) -> None:
        did.append(doing)
        if doing == "reading what was delivered":
            index.write_bytes(whole)
            shutil.move(tmp_path / "later", tmp_path / "two/topics")

    verdict = prove(spark, layout, Options(), progress=goes_on)
    assert did[:2] == ["reading the files", "reading what was delivered"]
    assert verdict.proven, (verdict.reasons, verdict.open_points)


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "kept"])
def test_a_slot_file_that_a_node_is_done_with_meanwhile(tmp_path: Path, kept: bool) -> None:
    """A mark covers it that was written after the journal was read. No peer is blamed for it."""
    directories = replayrun.made().write(tmp_path)
    layout = find(directories[:1])
    file = next(one for one in layout.of(SLOT) if not one.archived)
    path = Path(file.path)
    if kept:
        name = f"{file.slot}.{file.length}.{file.crc:08x}.arrows"
        path.rename(tmp_path / "one/archive" / replayrun.DAY / "slots" / name)
    else:
        path.unlink()
    told = scan([file], replayrun.TERMS)
    assert set(told.facts["seen"].tolist()) - {Seen.CANCELLED} == (
        {Seen.ARCHIVED} if kept else set()
    )
    (summary,) = told.files
    assert summary.gone
    damaged = []
    for gone in (True, False):
        summaries = [replace(summary, gone=gone)]
        summaries += [replace(summary, number=one.number, gone=False) for one in layout.of(SLOT)]
        made = make_context(layout, reversed(summaries), replayrun.TERMS, Options())
        damaged.append(made.peers[0].damaged.T.tolist())
    assert damaged == [[[*file.due_ms]], []]
