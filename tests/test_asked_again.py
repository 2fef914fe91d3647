"""Each answer asked for again: the first one, or *unknown*. Real processes, under every semantics.

A client cancels and moves what another one sends, while nodes are killed or masters change. Then
all ids are asked for twice more: when everything has left, and when the slots are gone and the node
was killed once more, or another peer is the master. What the files say of them from outside is held
against the answers, too. The share of *unknown* is printed.

200,000 cancels and moves each: ``python -m pytest -m soak tests/test_asked_again.py``
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from slotwheel import Client, Message
from slotwheel.reading.search.fate import find
from slotwheel.reading.search.pending import PendingReader
from support.broker import Broker
from support.load import NEARLY_ALL
from support.nodeprocess import NodeProcess
from support.peers import PEERS
from support.ports import free_address
from support.proxy import Link, Proxy
from support.scenario import ALONE, SMALL, Scenario
from support.waiting import PATIENCE_S, eventually, now_ms

TOPICS = ["one", "two", "three"]
ASKED, SOAK = 2_000, 200_000
_NOBODYS = 1 << 40
"""A number that no message of a load has."""
_FATES = 5_000
"""Ids whose fate is looked up from outside, at most."""
Figure = Callable[[str], None]
LONG = [pytest.mark.soak, pytest.mark.timeout(7_200)]
sizes = pytest.mark.parametrize("asked", [ASKED, pytest.param(SOAK, marks=LONG)])

SEMANTICS = ("at-least-once", "exactly-once", "at-most-once")


def always(chosen: str, *among: str) -> pytest.MarkDecorator:
    """The parameter ``semantics``: the one that every run tries, and those of the soak."""
    others = [one for one in among if one != chosen]
    soak = [pytest.param(one, marks=pytest.mark.soak) for one in others]
    return pytest.mark.parametrize("semantics", [chosen, *soak])


def slots_are_gone(data: Path, addresses: str, topic: str) -> None:
    """Those of all that was asked for. A message more each time, so that marks move on."""
    begun_s = now_ms() // 1000
    with Client(addresses, timeout_s=30) as client:

        def gone() -> bool:
            client.send(topic, b"%d" % _NOBODYS, delay=0).result(60)
            time.sleep(0.5)
            return not any(int(one.stem) < begun_s for one in (data / "slots").iterdir())

        eventually(gone)


def share(counts: Counter[str]) -> str:
    return f"{100 * counts['unknown'] / max(1, counts.total()):.2f} %"


def judge(scene: Scenario, semantics: str, asked: int, figure: Figure, what: str) -> None:
    """Kill who delivers again and again while cancels and moves are asked for; then ask again, and
    once more when the slots are gone and another process answers. What is to arrive does; else a
    node that delivers nothing would pass, as a message that waits is cancelled when it is asked for
    again."""
    alone = len(scene.peers.names) == 1
    load = scene.send(rate=4000 if asked >= SOAK else 1000, ahead_ms=4_000, cancels=NEARLY_ALL)

    def kill() -> None:
        (scene.faults.kill_alone if alone else scene.faults.fail_over)()
        scene.peers.wait_until_whole()

    scene.until_asked(asked, kill, (0.5, 2.0) if asked < SOAK else (5.0, 20.0))
    scene.stop_sending()
    found = scene.finish(within_s=6.0 if semantics == "at-most-once" else PATIENCE_S)
    allowed = ["lost"] if semantics == "at-most-once" else []
    again = [load.ask_again()]
    slots_are_gone(scene.data, scene.peers.addresses, scene.topics[0])
    for _ in range(2 if alone else 1):  # what was in the journal is behind the checkpoint then
        kill()
        time.sleep(2.0)
    again.append(load.ask_again())

    arrived = {(one.number, one.offset) for one in scene.arrivals.look()}
    cancelled = {one for one, answers in load.told.items() if "cancelled" in answers}
    first = ", ".join(f"{count} {answer}" for answer, count in sorted(load.counts.items()))
    figure(
        f"{what}: {load.asked} cancels and moves ({first}), {len(load.ids)} ids asked again twice:"
        f" {len(load.contradictions)} contradict each other; unknown {share(load.counts)}, then"
        f" {share(again[0])}, then {share(again[1])}; {len(cancelled & arrived)} of these arrived"
    )
    assert found.violations(*allowed) == {}
    assert load.contradictions == []
    assert not cancelled & arrived
    forgotten = [one for one in cancelled if load.told[one][-1] != "cancelled"]
    assert not forgotten, "what was cancelled is known for a horizon"
    chosen = Random(1).sample(sorted(load.ids), min(_FATES, len(load.ids)))
    with PendingReader(scene.data) as reader:
        fates = find(reader, [load.ids[one] for one in chosen])
    for one, fate in zip(chosen, fates, strict=True):
        if one in cancelled:
            assert fate.state == "cancelled", (fate, load.told[one])
        else:
            assert fate.state not in ("cancelled", "pending"), (fate, load.told[one])


class LostAnswers(Proxy):
    """What the node says is lost from ``lost`` on, until ``cut``; what it is asked goes through."""

    def __init__(self, port: int) -> None:
        self.lost = threading.Event()
        super().__init__(port)

    def _links(self, near: socket.socket) -> tuple[Link, Link]:
        return ("client", "node"), ("node", "client")

    def _hold(self, link: Link, nbytes: int) -> None:
        while self.lost.is_set() and link[0] == "node":
            time.sleep(0.01)
        super()._hold(link, nbytes)


def test_a_client_that_repeats_a_cancel_by_itself_has_the_first_times_answer(
    tmp_path: Path,
) -> None:
    """The answer was lost, the node killed twice, the messages' time is over: they are cancelled,
    and the client says so."""
    node = NodeProcess(tmp_path / "data", "--listen", free_address(), *SMALL)
    with node, LostAnswers(int(node.address.rpartition(":")[2])) as proxy:
        with Client(node.address, timeout_s=30) as client:
            due_ms = now_ms() + 3_000
            receipts = client.send_many([Message("one", b"x", due=due_ms)] * 500)
            ids = [receipts[row].id for row in range(500)]
        answers: list[str] = []
        with Client([proxy.address, proxy.address], timeout_s=60) as client:
            client.status()
            asking = threading.Thread(target=lambda: answers.extend(client.cancel(ids)))
            proxy.lost.set()
            asking.start()
            with Client(node.address, timeout_s=30) as direct:
                eventually(lambda: direct.status()["cancelled"] == 500)
            node.kill()
            proxy.cut()
            node.start()
            time.sleep(max(0.0, (due_ms - now_ms()) / 1000) + 3.0)
            node.kill()
            node.start()
            proxy.lost.clear()
            proxy.cut()
            asking.join(60)
        assert Counter(answers) == {"cancelled": 500}
        assert node.delivered("one") == []


@sizes
@always("exactly-once", *SEMANTICS)
def test_embedded(tmp_path: Path, figure: Figure, semantics: str, asked: int) -> None:
    with Scenario(tmp_path, TOPICS, seed=asked, semantics=semantics) as scene:
        judge(scene, semantics, asked, figure, f"{semantics}, embedded")


def with_kafka(
    broker: Broker, path: Path, figure: Figure, names: Sequence[str], semantics: str, asked: int
) -> None:
    name = f"again-{len(names)}-{semantics}-{asked}"
    topics = [broker.create_topic(f"{name}-{one}", 2) for one in TOPICS]
    with Scenario(
        path,
        topics,
        seed=asked,
        names=names,
        broker=broker,
        semantics=semantics,
        dead_topic=broker.create_topic(f"{name}-letters", 1),
    ) as scene:
        judge(scene, semantics, asked, figure, f"{semantics}, Kafka, {len(names)} nodes")


@sizes
@pytest.mark.kafka
@always("at-least-once", *SEMANTICS)
def test_kafka(broker: Broker, tmp_path: Path, figure: Figure, semantics: str, asked: int) -> None:
    with_kafka(broker, tmp_path, figure, ALONE, semantics, asked)


@sizes
@pytest.mark.kafka
@always("exactly-once", *SEMANTICS[:2])
def test_peers(broker: Broker, tmp_path: Path, figure: Figure, semantics: str, asked: int) -> None:
    """The last time another peer answers than the time before."""
    with_kafka(broker, tmp_path, figure, PEERS, semantics, asked)
