"""A time of trouble from start to end: a node alone or a group of peers, its sink, a semantics, a
load, faults, and in the end one account of what was promised and what arrived.

    with Scenario(tmp_path, ["one", "two"], "--retain", "1h", seed=4) as scene:
        scene.send(ahead_ms=3_000)
        scene.kill_alone(4)
        assert scene.finish().violations() == {}

Theory: how a message got in, which sink it left by, and what happened meanwhile do not change what
a promise is. So all of them meet in `support.promises`, and a test names only what is its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Self

from support.arrivals import Arrivals, EmbeddedArrivals, KafkaArrivals
from support.broker import Cluster
from support.chaosfaults import Faults
from support.load import Asks, Load, soon, steady
from support.namespaces import Lab
from support.nodeprocess import NodeProcess
from support.peers import Peers, lab_of
from support.promises import Account, Promised, account
from support.waiting import PATIENCE_S, now_ms
from support.wallclock import WallClock

ALONE = ("node",)
SMALL = ("--segment-bytes", "1M", "--tail-age", "1500ms", "--tail-keep", "500ms")
"""With these, spilling, cleaning and dropping segments happen all the time: a fault then meets each
of them, and not only appends."""


class Scenario:
    """Started when the ``with`` block is entered.

    ``options``: of every node. ``broker``: where the topics are, and ``bootstrap`` its address for
    the nodes if that is another one; without it they are embedded. ``dead_topic``: where a topic's
    refused messages are to be found; it is followed as well. ``links``: those of the peers may be
    cut (`lab_of`). ``clocks``: of the nodes that have another than this machine's, by their names.
    ``seed``: of the load and the faults.
    """

    def __init__(
        self,
        path: Path,
        topics: Sequence[str],
        *options: str,
        seed: int,
        names: Sequence[str] = ALONE,
        broker: Cluster | None = None,
        bootstrap: str = "",
        sink: str = "confluent",
        semantics: str = "at-least-once",
        dead_topic: str = "",
        links: bool = False,
        lab: Lab | None = None,
        small_disk: tuple[str, int] | None = None,
        clocks: Mapping[str, WallClock] | None = None,
        own: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.topics, self.dead_topic = topics, dead_topic
        self.rng = Random(seed)
        self.load: Load | None = None
        self._promised: Promised | None = None
        self._broker = broker
        kafka = ("--sink", sink, "--bootstrap", bootstrap or broker.bootstrap) if broker else ()
        dead = ("--group", path.name, "--dead-letter-topic", dead_topic) if dead_topic else ()
        self.peers = Peers(
            path,
            *(*SMALL, *kafka, *dead, "--delivery", semantics, *options),
            names=names,
            lab=lab or (lab_of(names) if links else None),
            small_disk=small_disk,
            variables={name: clock.variables for name, clock in (clocks or {}).items()},
            own=own,
        )

    @property
    def node(self) -> NodeProcess:
        """The one without peers."""
        [node] = self.peers.nodes.values()
        return node

    @property
    def counts(self) -> Counter[str]:
        """How often each answer to a cancel or reschedule was given."""
        assert self.load is not None
        return self.load.counts

    @property
    def data(self) -> Path:
        """The directory of the node alone, or of the master."""
        return self.peers[self.peers.master()].data

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            closing.enter_context(self.peers)
            self.peers.wait_until_whole()
            topics = [*self.topics, *filter(None, [self.dead_topic])]
            directories = [node.data for node in self.peers.nodes.values()]
            self.arrivals: Arrivals = closing.enter_context(
                KafkaArrivals(self._broker.bootstrap, topics)
                if self._broker
                else EmbeddedArrivals(directories, topics)
            )
            exact = self._broker is None
            self.faults = Faults(self.peers, self.rng, self.arrivals, exact=exact)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def send(
        self,
        kind: type[Load] = Load,
        *,
        rate: float = 4_000,
        rows: int = 200,
        ahead_ms: int = 3_000,
        late_share: float = 0.0,
        receipts: Path | None = None,
        cancels: int = 0,
        moves: int = 2,
    ) -> Load:
        """Begin to send ``rate`` messages a second, in batches of ``rows``, due within ``ahead_ms``
        (`soon`). ``cancels`` and ``moves``: of each batch."""
        within_s = 1.5 * ahead_ms / 1000
        asks = Asks(self.rng, cancels, moves, within_s, ahead_ms) if cancels else None
        self.load = kind(
            self.peers.addresses,
            self.topics,
            soon(self.rng, ahead_ms, late_share),
            rows=rows,
            every_s=rows / rate,
            receipts=receipts,
            asks=asks,
        )
        return self.load

    def send_steadily(self) -> Load:
        """Begin to send so that something is due all the time (`steady`)."""
        self.load = steady(self.peers.addresses, self.topics)
        return self.load

    def kill_alone(self, times: int, pause_s: tuple[float, float] = (0.05, 1.2)) -> None:
        self.repeat(times, self.faults.kill_alone, pause_s)
        time.sleep(0.3)

    def repeat(self, times: int, step: Callable[[], None], pause_s: tuple[float, float]) -> None:
        for _ in range(times):
            time.sleep(self.rng.uniform(*pause_s))
            step()

    def until_asked(
        self, count: int, step: Callable[[], None], pause_s: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        """Do ``step`` again and again until so many cancels and moves have an answer."""
        assert self.load is not None
        while self.load.asked < count:
            self.repeat(1, step, pause_s)

    def wait_for_arrivals(self, count: int) -> None:
        self.peers.wait("delivering", lambda: len(self.arrivals.look()) > count)

    def stop_sending(self) -> Promised:
        assert self.load is not None
        self._promised = self.load.stop()
        return self._promised

    def finish(self, promised: Promised | None = None, *, within_s: float = PATIENCE_S) -> Account:
        """End the load, wait until all that must come has come, and a moment more for what must
        not; what became of the promises. ``promised``: those of another load."""
        promised = promised or self._promised or self.stop_sending()
        promised = replace(promised, dead_topic=self.dead_topic)
        last_s = max(0.0, (int(promised.due.max(initial=0)) - now_ms()) / 1000)
        self.arrivals.wait_for(promised.wanted(), last_s + within_s)
        time.sleep(1.0)
        return account(promised, self.arrivals.look(), self.faults.done, self.peers.turns())

    def check_agreement(self) -> None:
        """End it: each directory is sound, and all peers hold the same."""
        self.peers.wait_until_whole()
        self.peers.stop()
        assert self.peers.disagreements() == []
