"""Messages that were accepted with short ids keep them after the first open by a program that gives
out long ones; which form a message has depends on its offset, on every peer and after every crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slotwheel.reading.events import RowsSeen
from slotwheel.reading.files import RECEIPTS, File
from slotwheel.reading.layout import find as find_layout
from slotwheel.reading.problems import Problem
from slotwheel.reading.search.fate import MessageState, find
from slotwheel.reading.search.pending import PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.reading.topicreader import TopicReader, ids
from slotwheel.reading.topics import read_stream
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.ids import LONG_CHECKS, LONG_FROM, NO_LONG_IDS, IdMint, MessageId
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.payloads import decode_config
from slotwheel.wheel.state import LmdbState, StateUpdate
from support.datadirs import SinkNode, assert_sound
from support.handpeer import NOW as PEERS_NOW
from support.handpeer import STORES, Peer
from support.oldids import CANCELLED, FAR, GOLDEN, SOON, STOPPED_MS, TAIL, data_directory
from support.wheels import Node

NOW = STOPPED_MS + 1_000
FIRST_LONG = TAIL[-1].offset + 1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SinkNode]:
    data = data_directory(tmp_path)
    with closing(SinkNode(data, now_ms=NOW)) as node:
        yield node
    assert_sound(data)


def cancel(node: Node, *asked: MessageId) -> list[CancelAnswer]:
    return node.blocking(lambda: node.wheel.cancel(asked, NOW))


def forged(given_out: MessageId) -> MessageId:
    return replace(given_out, check=given_out.check ^ 1)


def other_form(mint: IdMint, given_out: MessageId) -> MessageId:
    """The check that the message would have on the other side of the first long id."""
    long_from = 0 if given_out.check < LONG_CHECKS else NO_LONG_IDS
    return IdMint(mint.group, mint._key, long_from).one(given_out.due, given_out.offset)


def long_from_of(data: Path) -> tuple[int, int]:
    """The offset of the first long id, as a search and as a replay knows it."""
    with PendingReader(data) as reader:
        return reader.view().mint.long_from, GroupTerms.of(find_layout([str(data)])).long_from


def test_messages_with_short_ids_are_cancelled_by_them(node: SinkNode) -> None:
    first, second, third = FAR
    given_out = [first, second, *TAIL]
    mint = node.wheel.mint
    wrong = [forged(one) for one in given_out] + [other_form(mint, one) for one in given_out]
    assert cancel(node, *wrong) == [CancelAnswer.UNKNOWN] * len(wrong)
    assert cancel(node, *given_out, CANCELLED) == [CancelAnswer.CANCELLED] * 5
    answer, moved = node.blocking(lambda: node.wheel.reschedule(third, NOW + 5_000, NOW))
    assert answer is CancelAnswer.CANCELLED
    assert moved is not None
    assert moved.check >= LONG_CHECKS, "the new message is one of those with long ids"
    assert cancel(node, other_form(mint, moved), moved) == [
        CancelAnswer.UNKNOWN,
        CancelAnswer.CANCELLED,
    ]


def test_they_are_delivered_with_the_ids_of_their_receipts(node: SinkNode) -> None:
    [late] = node.ids_of(node.send([(FAR[-1].due + 1, "orders", b"new")], NOW))
    node.deliver(FAR[-1].due + 2)
    with closing(TopicReader(node.files, "orders")) as reader:
        read = iter(reader.read, None)
        texts = [text for rows in read for text in ids(rows)]
    assert texts == [str(one) for one in (*SOON, *TAIL, *FAR, late)]
    assert late.offset >= FIRST_LONG
    assert len(str(late).rpartition(".")[2]) == 16


@pytest.mark.parametrize("stop", ["before anything was written", "written", "spilled"])
def test_the_first_long_id_is_noted_once(tmp_path: Path, stop: str) -> None:
    """A crash before a message has got a long id leaves the directory as it was; later ones change
    nothing."""
    data = data_directory(tmp_path)
    node = Node(data, WheelConfig(disk_reserve_bytes=0), NOW)
    given_out: list[MessageId] = []
    noted = NO_LONG_IDS
    if stop != "before anything was written":
        given_out = node.ids_of(node.send([(NOW + 60_000, "t", b"1")], NOW))
        noted = FIRST_LONG
    if stop == "spilled":
        node.wheel.spill(NOW, everything=True)
    node.crash()
    assert long_from_of(data) == (noted, noted)
    for turn in range(3):
        node.open(NOW)
        given_out += node.ids_of(node.send([(NOW + 60_000, "t", b"%d" % turn)], NOW))
        assert node.wheel.mint.long_from == FIRST_LONG
        assert all(one.check >= LONG_CHECKS and node.wheel.mint.genuine(one) for one in given_out)
        node.crash()
    node.open(NOW)
    with closing(node):
        assert cancel(node, *given_out, FAR[0]) == [CancelAnswer.CANCELLED] * (len(given_out) + 1)
    assert_sound(data)


def test_a_new_group_has_no_short_ids(tmp_path: Path) -> None:
    with closing(SinkNode(tmp_path)) as node:
        [sent] = node.ids_of(node.send([(NOW, "t", b"x")], node.now))
        assert (sent.offset, node.wheel.mint.long_from) == (0, 0)
        assert not node.wheel.mint.genuine(other_form(node.wheel.mint, sent))


def test_a_program_with_short_ids_refuses_the_directory(node: SinkNode) -> None:
    with node.state._env.begin(db=node.state._meta) as transaction:
        assert transaction.get(b"version") == b"3"


def test_search_and_fate_before_and_after_the_first_open(tmp_path: Path) -> None:
    data = data_directory(tmp_path)
    asked = [FAR[0], TAIL[0], forged(FAR[0]), SOON[0]]
    states = [*[MessageState.PENDING] * 2, MessageState.UNKNOWN, MessageState.DELIVERED]

    def seen(*sought: MessageId) -> tuple[list[MessageState], int]:
        texts = [str(one) for one in sought]
        with PendingReader(data) as reader:
            page = reader.page(Query(ids=tuple(texts)))
            return [one.state for one in find(reader, texts)], len(page.ids)

    assert long_from_of(data) == (NO_LONG_IDS, NO_LONG_IDS)
    assert seen(*asked) == (states, 2)
    with closing(SinkNode(data, now_ms=NOW)) as node:
        [new] = node.ids_of(node.send([(NOW + 60_000, "orders", b"x")], NOW))
        sought = [*asked, new, other_form(node.wheel.mint, new)]
        node.crash()  # the configuration is in the journal alone
        after = [*states, MessageState.PENDING, MessageState.UNKNOWN]
        assert (seen(*sought), long_from_of(data)) == ((after, 3), (FIRST_LONG, FIRST_LONG))
        node.open(NOW)
        node.spill()
        node.crash()
        assert (seen(*sought), long_from_of(data)) == ((after, 3), (FIRST_LONG, FIRST_LONG))
        node.open(NOW)


def test_receipts_of_a_client_with_short_ids_are_read() -> None:
    path = GOLDEN / "receipts.arrows"
    events = list(read_stream(File(0, RECEIPTS, str(path), path.name, path.stat().st_size)))
    assert not [event for event in events if isinstance(event, Problem)]
    rows = [
        row for event in events if isinstance(event, RowsSeen) for row in event.rows.to_pylist()
    ]
    given_out = [(one.offset, one.check) for one in (*FAR, *SOON, CANCELLED)]
    assert [(row["offset"], row["check"]) for row in rows] == given_out


def as_if_old(peer: Peer) -> None:
    """Its group has given out short ids for the offsets that there are."""
    peer.wheel.spill(PEERS_NOW, everything=True)
    peer.close()
    with closing(LmdbState(peer.path)) as state:
        checkpoint = state.load().checkpoint
        config = {name: said for name, said in checkpoint.config.items() if name != LONG_FROM}
        state.commit(StateUpdate(checkpoint=replace(checkpoint, config=config)))
    peer.open()


def test_all_peers_go_by_the_entry_of_the_first_master(peers: tuple[Peer, Peer]) -> None:
    """The second one takes over, after one that gave out no long id, and one that did."""
    a, b = peers
    a.lead(1)
    a.send(*((PEERS_NOW + 1_000, "t", b"%d" % row) for row in range(5)))
    a.commit()
    a.ship(b)
    for peer in peers:
        as_if_old(peer)
        assert peer.wheel.mint.long_from == NO_LONG_IDS
    a.lead(2)
    assert a.wheel.mint.long_from == 5
    a.ship(b, commit=0)
    assert b.wheel.mint.long_from == NO_LONG_IDS, "not committed here"
    b.lead(3)
    b.send((PEERS_NOW + 1_000, "t", b"x"))
    b.commit()
    assert b.wheel.mint.long_from == 5
    a.wheel.stand_by("b:1")
    b.ship(a)
    b.wheel.stand_by()
    a.lead(4)
    assert a.wheel.mint.long_from == 5
    for peer in peers:
        peer.wheel.spill(PEERS_NOW, everything=True)
        peer.reopen()
        assert peer.wheel.mint.long_from == 5


def test_an_entry_that_nobody_else_has_settles_nothing(peers: tuple[Peer, Peer]) -> None:
    """The first master had a row more, and failed before anybody had its entry: both are cut off,
    and the next master begins where its own log ends."""
    a, b = peers
    a.lead(1)
    a.send((PEERS_NOW + 1_000, "t", b"0"))
    a.commit()
    a.ship(b)
    a.send((PEERS_NOW + 1_000, "t", b"only here"))
    a.sync()
    for peer in peers:
        as_if_old(peer)
    a.wheel.promise(2, "a", True)
    a.wheel.lead(2, STORES, PEERS_NOW)
    a.sync()
    a.wheel.stand_by("b:1")
    b.lead(3)
    assert (a.wheel.mint.long_from, b.wheel.mint.long_from) == (NO_LONG_IDS, 1)
    assert GroupTerms.of(find_layout([str(peer.path) for peer in peers])).long_from == 1
    a.wheel.cut_after(b.wheel.log_view().placed - 1)
    b.ship(a)
    assert a.wheel.mint.long_from == 1


@pytest.mark.parametrize("wrong", ["1", -1, 1.0, True, None, [1], 1 << 63])
def test_a_first_long_id_that_is_no_offset_is_damage(wrong: object) -> None:
    config = {"group": "g", "key": "00" * 16, "slots": 60, LONG_FROM: wrong}
    entry = Entry(EntryKind.CONFIG, 1, 1, 0, 0, 0, -1, json.dumps(config).encode())
    with pytest.raises(Damaged, match=LONG_FROM):
        decode_config(entry, "journal")
