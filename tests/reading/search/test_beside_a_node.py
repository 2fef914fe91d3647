"""A real node that stores, spills, delivers and cleans, searched all the while."""

from __future__ import annotations

import threading
from pathlib import Path

from slotwheel import Client, Message
from slotwheel.reading.search.pending import PendingPage, PendingReader
from slotwheel.reading.search.query import Query
from support.nodeprocess import NodeProcess
from support.ports import free_address
from support.waiting import eventually, now_ms

FAR, NEAR, LOOKS_MIN = 3_000, 6_000, 10
SPILLING = ("--tail-age", "200ms", "--tail-keep", "1ms")


def all_pages(reader: PendingReader, query: Query) -> list[PendingPage]:
    pages = [reader.page(query, limit=1_000)]
    while pages[-1].next is not None:
        pages.append(reader.page(query, pages[-1].next, limit=1_000))
    return pages


def ids_in(pages: list[PendingPage]) -> list[str]:
    assert not [problem for page in pages for problem in page.problems]
    return [one for page in pages for one in page.ids]


def test_nothing_is_missed_or_doubled_while_the_node_works(tmp_path: Path) -> None:
    address = ("--listen", free_address())  # it stays the same when the node is started again
    with (
        NodeProcess(tmp_path / "data", *SPILLING, *address) as node,
        Client(node.address) as client,
    ):
        start = now_ms()
        far = client.send_many(
            Message("far", b"%d" % n, due=start + 3_000_000 + n * 37) for n in range(FAR)
        ).result(60)
        sent: list[str] = []

        def send() -> None:
            """Messages that are due within two seconds, some of them late already."""
            for begin in range(0, NEAR, 200):
                now = now_ms()
                batch = [Message("near", b"x", due=now - 300 + n * 12) for n in range(200)]
                sent.extend(client.send_many(batch).result(60))
                if begin == NEAR // 2:
                    node.kill()
                    node.start()

        with PendingReader(node.data) as reader:
            assert ids_in(all_pages(reader, Query(topics=("far",)))) == far
            sender = threading.Thread(target=send)
            sender.start()
            try:
                looks = 0
                while sender.is_alive() or looks < LOOKS_MIN:
                    looks += 1
                    known = list(sent)
                    assert ids_in(all_pages(reader, Query(topics=("far",)))) == far
                    near = ids_in(all_pages(reader, Query(topics=("near",))))
                    assert len(near) == len(set(near)), "a row was found twice"
                    delivered = {row["offset"] for row in node.delivered("near")}
                    gone = set(known) - set(near)
                    missing = {int(one.split(".")[2]) for one in gone} - delivered
                    assert not missing, "acknowledged, and neither pending nor delivered"
            finally:
                sender.join()
            eventually(lambda: not ids_in([reader.page(Query(topics=("near",)))]))
            assert reader.count(by_topic=True).by_topic == {"far": FAR}
            assert reader.count().total == FAR
