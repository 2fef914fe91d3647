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
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from slotwheel import Client, Message
from slotwheel.search.fate import find
from slotwheel.search.pending import PendingReader
from support.arrivals import Arrivals, EmbeddedArrivals, KafkaArrivals
from support.broker import Broker
from support.cancelload import CancelLoad
from support.killing import SMALL
from support.nodeprocess import NodeProcess
from support.peers import Peers
from support.ports import free_address
from support.proxy import Link, Proxy
from support.proxylab import Loopback
from support.waiting import PATIENCE_S, eventually, now_ms

NAMES = ("a", "b", "c")
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


def load_of(addresses: str, topics: list[str], asked: int) -> CancelLoad:
    return CancelLoad(addresses, topics, Random(asked), 4000 if asked >= SOAK else 1000)


def all_have_left(load: CancelLoad, arrivals: Arrivals) -> None:
    """What is to arrive has. Else a node that delivers nothing would pass, as a message that waits
    is cancelled when it is asked for again."""
    arrivals.wait_for(load.wanted(), PATIENCE_S)
    missing = load.wanted() - arrivals.numbers
    assert not missing, f"{len(missing)} of {len(load.wanted())} did not arrive"


def slots_are_gone(data: Path, addresses: str, topic: str) -> None:
    """Those of all that was asked for. A message more each time, so that marks move on."""
    begun_s = now_ms() // 1000
    with Client(addresses, timeout_s=30) as client:

        def gone() -> bool:
            client.send(topic, b"%d" % _NOBODYS, delay=0).result(60)
            time.sleep(0.5)
            return not any(int(one.stem) < begun_s for one in (data / "slots").iterdir())

        eventually(gone)


def pause(rng: Random, asked: int) -> None:
    """Between two kills."""
    time.sleep(rng.uniform(0.5, 2.0) if asked < SOAK else rng.uniform(5.0, 20.0))


def share(counts: Counter[str]) -> str:
    return f"{100 * counts['unknown'] / max(1, counts.total()):.2f} %"


def judge(
    load: CancelLoad,
    again: list[Counter[str]],
    arrivals: Arrivals,
    data: Path,
    figure: Figure,
    what: str,
) -> None:
    """``again``: the answers of the second and third time; ``data``: a directory that is read from
    outside."""
    arrived = {(one.number, one.offset) for one in arrivals.look()}
    cancelled = {one for one, answers in load.told.items() if "cancelled" in answers}
    first = ", ".join(f"{count} {answer}" for answer, count in sorted(load.counts.items()))
    figure(
        f"{what}: {load.asked} cancels and moves ({first}), {len(load.ids)} ids asked again twice:"
        f" {len(load.contradictions)} contradict each other; unknown {share(load.counts)}, then"
        f" {share(again[0])}, then {share(again[1])}; {len(cancelled & arrived)} of these arrived"
    )
    assert load.contradictions == []
    assert not cancelled & arrived
    forgotten = [one for one in cancelled if load.told[one][-1] != "cancelled"]
    assert not forgotten, "what was cancelled is known for a horizon"
    chosen = Random(1).sample(sorted(load.ids), min(_FATES, len(load.ids)))
    with PendingReader(data) as reader:
        fates = find(reader, [load.ids[one] for one in chosen])
    for one, fate in zip(chosen, fates, strict=True):
        if one in cancelled:
            assert fate.state == "cancelled", (fate, load.told[one])
        else:
            assert fate.state not in ("cancelled", "pending"), (fate, load.told[one])


def alone(
    load: CancelLoad, node: NodeProcess, topic: str, asked: int, *, wanted: bool
) -> Callable[[Arrivals], list[Counter[str]]]:
    """Kill the node again and again while the load is asked for; then ask again. ``wanted``: what
    is to arrive does."""
    rng = Random(asked)
    while load.asked < asked:
        pause(rng, asked)
        node.kill()
        node.start()
    load.stop()

    def again(arrivals: Arrivals) -> list[Counter[str]]:
        if wanted:
            all_have_left(load, arrivals)
        else:
            time.sleep(6.0)
        first = load.ask_again()
        slots_are_gone(node.data, node.address, topic)
        for _ in range(2):  # what was in the journal is behind the checkpoint then
            node.kill()
            node.start()
            time.sleep(2.0)
        return [first, load.ask_again()]

    return again


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
    node = NodeProcess(
        tmp_path / "data", "--listen", free_address(), "--delivery", semantics, *SMALL
    )
    with node:
        load = load_of(node.address, TOPICS, asked)
        again = alone(load, node, TOPICS[0], asked, wanted=semantics != "at-most-once")
        with EmbeddedArrivals([node.data], TOPICS) as arrivals:
            judge(load, again(arrivals), arrivals, node.data, figure, f"{semantics}, embedded")


@sizes
@pytest.mark.kafka
@always("at-least-once", *SEMANTICS)
def test_kafka(broker: Broker, tmp_path: Path, figure: Figure, semantics: str, asked: int) -> None:
    name = f"again-{semantics}-{asked}"
    topics = [broker.create_topic(f"{name}-{one}", 2) for one in TOPICS]
    letters = broker.create_topic(f"{name}-letters", 1)
    options = ["--listen", free_address(), "--sink", "confluent", "--bootstrap", broker.bootstrap]
    options += ["--delivery", semantics, "--dead-letter-topic", letters, "--group", name, *SMALL]
    with NodeProcess(tmp_path / "data", *options) as node:
        load = load_of(node.address, topics, asked)
        again = alone(load, node, topics[0], asked, wanted=semantics != "at-most-once")
        with KafkaArrivals(broker.bootstrap, topics) as arrivals:
            judge(load, again(arrivals), arrivals, node.data, figure, f"{semantics}, Kafka")


@sizes
@pytest.mark.kafka
@always("exactly-once", *SEMANTICS[:2])
def test_peers(broker: Broker, tmp_path: Path, figure: Figure, semantics: str, asked: int) -> None:
    """The last time another peer answers than the time before."""
    name = f"peers-again-{semantics}-{asked}"
    topics = [broker.create_topic(f"{name}-{one}", 2) for one in TOPICS]
    letters = broker.create_topic(f"{name}-letters", 1)
    options = ["--sink", "confluent", "--bootstrap", broker.bootstrap, "--delivery", semantics]
    options += ["--dead-letter-topic", letters, "--group", name, *SMALL]
    with Peers(tmp_path, *options, names=NAMES, lab=Loopback(NAMES)) as peers:
        peers.wait_until_whole()
        load = load_of(peers.addresses, topics, asked)
        rng = Random(asked)

        def fail_over() -> None:
            master = peers.master()
            peers[master].kill()
            peers.master(other_than=master)
            peers[master].start()
            peers.wait_until_whole()

        while load.asked < asked:
            pause(rng, asked)
            fail_over()
        load.stop()
        with KafkaArrivals(broker.bootstrap, topics) as arrivals:
            all_have_left(load, arrivals)
            again = [load.ask_again()]
            slots_are_gone(peers[peers.master()].data, peers.addresses, topics[0])
            fail_over()
            time.sleep(2.0)
            again.append(load.ask_again())
            data = peers[peers.master()].data
            judge(load, again, arrivals, data, figure, f"{semantics}, Kafka, peers")
