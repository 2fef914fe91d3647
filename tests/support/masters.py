"""Masters of one group that overlap, over one modelled Kafka, by a seed.

Theory: a master that was deposed may not know it. It may have been stopped in any step of a
transaction, and goes on with that step much later. Nothing but Kafka stands between it and a second
delivery; so here nothing else does: there is no lease, and whoever wakes may deliver.

Each master is a real hand on a real wheel. It runs in a thread of its own, but only while the story
says so, up to its next request to the broker. A new master has what was durable at the old one, as
a peer has; what the old one writes after that is never committed. The story also loses requests and
answers, lets requests arrive late, withdraws topics, and cancels messages. In the end all is well
again, old masters included, and each message has been delivered once or was cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from slotwheel.delivery import hand as hand_module
from slotwheel.delivery import held as held_module
from slotwheel.delivery.hand import Hand
from slotwheel.delivery.kafka import exactly_once
from slotwheel.delivery.kafka.exactly_once import KafkaExactlyOnce
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.answers import AppendReceipt, CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.wheel import Wheel
from support.crashfs import CrashFiles
from support.fakekafka import POISON, FakeBroker, FakeKafkaSink, Lost, Net, Record
from support.handrig import Recorder
from support.memstate import MemoryState
from support.wheels import batch, master_of

T = TypeVar("T")
Key = tuple[int, int]
START_MS = 1_900_000_000_000
CONFIG = WheelConfig(chunk_rows_max=3, window_bytes_max=4_000, mark_interval_ms=20)
TOPICS = "xyz"
PICKS = 90
"""Steps of a story before all is healed."""
HEALED_WITHIN = 6_000
WEIGHTS = {"topics": 0.2, "commit": 5.0, "produce": 2.0}
"""Requests that meet with more faults than others, or with fewer."""


class Stopped(BaseException):
    """The story is over for this master."""


class Actor:
    """A thread that runs only while somebody waits for it, from one ``pause`` to the next."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._stop = False
        self.error: BaseException | None = None
        self.over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it run up to its next pause. Raises what it raised."""
        if self.over:
            return
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def pause(self) -> None:
        """Called by the body."""
        self._back.release()
        self._go.acquire()
        if self._stop:
            raise Stopped

    def stop(self) -> None:
        if not self.over:
            self._stop = True
            self._go.release()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._stop:
                self._body()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self._back.release()


class Later:
    """Time in which each pause is over when it is asked for. Stands for the module ``time``."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 10.0
        return self._now

    def thread_time(self) -> float:
        return 0.0


class _Never(threading.Event):
    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


class AtOnce:
    """A pool without threads."""

    @staticmethod
    def submit(call: Callable[..., T], *arguments: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(call(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


class StoryHand(Hand):
    """Never sleeps."""

    def turn(self) -> None:
        self._turn(_Never())

    def _sleep(self, stop: threading.Event) -> None: ...

    @property
    def knows(self) -> bool:
        return self._begun


class StoryNet(Net):
    """Each request is a pause before it and one behind it."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.broker)
        self._story = story
        self.actor: Actor | None = None
        self.asks = ""
        """The request before which its master stands."""

    def call(self, name: str, request: Callable[[], T]) -> T:
        assert self.actor is not None
        self.asks = name
        self.actor.pause()
        self.asks = ""
        fate = self._story.fate(name)
        if fate == "lost":
            raise Lost(f"{name}: lost")
        if fate == "late":
            self._story.late.append(request)
            raise Lost(f"{name}: late")
        answer = request()
        self.actor.pause()
        if fate == "answer lost":
            raise Lost(f"{name}: no answer")
        return answer

    def wait(self) -> None:
        assert self.actor is not None
        self.actor.pause()
        if self._story.rng.random() < 0.5:
            self.broker.progress()


class Master:
    """One master's wheel and hand. ``deposed``: what it writes is not committed any more."""

    def __init__(self, story: Story, files: CrashFiles, state: MemoryState) -> None:
        self.files, self.state = files, state
        self.deposed = False
        self.asleep_until = 0
        self.wheel = Wheel.open(files, state, CONFIG, story.now_ms)
        self.events = Recorder()
        self.net = net = StoryNet(story)
        sink = FakeKafkaSink(self.wheel.mint, net)
        semantics = KafkaExactlyOnce(sink, DEAD_LETTER_TOPIC, self.events)
        self.hand = StoryHand(
            master_of(self.wheel), semantics, lambda: story.now_ms, events=self.events
        )
        held: Any = self.hand._held
        held._pool = AtOnce()
        self.actor = net.actor = Actor(self._live)

    def _live(self) -> None:
        while True:
            self.hand.turn()
            for name, reason in self.events.notes:
                assert not name.endswith("error"), f"{name}: {reason}"
            self.events.notes.clear()
            self.actor.pause()

    def until(self, request: str, times: int = 1) -> None:
        """Go on up to the next request of that name, which is not sent yet."""
        for _ in range(500):
            self.actor.step()
            self.commit()
            times -= self.net.asks == request
            if not times:
                return
        raise RuntimeError(f"never asks: {request}")

    def commit(self) -> None:
        if not self.deposed:
            while self.wheel.write_pending(0):
                pass

    @property
    def in_flight(self) -> bool:
        lines = master_of(self.wheel).due.lines
        return any(line.flight is not None for line in (lines.main, *lines.held.values()))


class Story:
    """``faults``: how likely it is that a request meets with one."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now_ms = START_MS
        self.broker = FakeBroker(self._committed)
        self.late: list[Callable[[], object]] = []
        self.faults = rng.choice((0.0, 0.02, 0.06, 0.15))
        self.stride = rng.choice((2, 4, 8))
        self.sent: dict[Key, str] = {}
        self.delivered: set[Key] = set()
        self.cancelled: set[Key] = set()
        self.answers = dict.fromkeys(CancelAnswer, 0)
        self.requests = self.fates = 0
        self._open: list[tuple[list[tuple[int, str, bytes]], Future[AppendReceipt]]] = []
        self._rows = 0
        self.picks = 0
        self.masters: list[Master] = []
        self._new_master(CrashFiles(), MemoryState())

    @property
    def newest(self) -> Master:
        return self.masters[-1]

    # The story

    def run(self) -> None:
        """Errors: ``AssertionError``."""
        with self.told():
            for _ in range(self.rng.randint(1, 3)):
                self._append()
                self.collect()
            for self.picks in range(PICKS):
                self._pick()
            self.heal()

    @contextmanager
    def told(self) -> Iterator[None]:
        later = Later()
        with (
            patch.object(hand_module, "time", later),
            patch.object(held_module, "time", later),
            patch.object(exactly_once, "IDLE_COMMIT_S", self.rng.choice((500.0, 86_400.0))),
            patch.object(exactly_once, "time", later),
        ):
            try:
                yield
            finally:
                for master in self.masters:
                    master.actor.stop()

    def _pick(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.62:
            self._step()
        elif kind < 0.78:
            self.collect()
        elif kind < 0.84:
            self.now_ms += rng.choice((1, 5, 30, 200))
        elif kind < 0.88:
            self.broker.progress()
        elif kind < 0.92:
            self._cancel()
        elif kind < 0.935:
            self._append()
        elif kind < 0.96 and len(self.masters) < 3:
            self.take_over()
        elif kind < 0.98:
            self.broker.blocked ^= {rng.choice(TOPICS)}
        elif kind < 0.985:
            self.broker.time_out()
        else:
            self._arrive()

    def _step(self) -> None:
        """Some master goes on; each of them sleeps now and then."""
        awake = [one for one in self.masters if one.asleep_until <= self.picks]
        if not awake:
            return
        favoured = self.newest in awake and self.rng.random() < 0.4
        one = self.newest if favoured else self.rng.choice(awake)
        for _ in range(self.rng.randint(1, self.stride)):
            one.actor.step()
        if self.rng.random() < 0.1:
            one.asleep_until = self.picks + self.rng.randint(5, 50)

    def take_over(self) -> None:
        """From what is durable; the old master sleeps, mostly."""
        old = self.newest
        old.deposed = True
        if self.rng.random() < 0.7:
            old.asleep_until = self.picks + self.rng.randint(3, 60)
        self._open.clear()  # nobody will have a receipt
        files = old.files.survivors("durable", self.rng)
        self._new_master(files, MemoryState(old.state.durable))

    def _new_master(self, files: CrashFiles, state: MemoryState) -> None:
        self.masters.append(Master(self, files, state))

    def fate(self, name: str) -> str:
        self.requests += 1
        if self.rng.random() >= self.faults * WEIGHTS.get(name, 1.0):
            return "well"
        self.fates += 1
        return self.rng.choice(("lost", "late", "answer lost", "answer lost"))

    def _arrive(self) -> None:
        """A request that nobody waits for any more."""
        if self.late:
            request = self.late.pop(self.rng.randrange(len(self.late)))
            try:
                request()
            except Exception:  # its answer goes nowhere
                return

    def heal(self) -> None:
        self.broker.blocked.clear()
        self.faults = 0.0
        for turn in range(HEALED_WITHIN):
            if turn % 3 == 0:
                self.rng.choice(self.masters).actor.step()
            self.newest.actor.step()
            if turn % 4 == 0:
                self.collect()
                self._arrive()
            if turn % 10 == 9:
                self.now_ms += 100
                if turn > 60 and self.newest.wheel.status().pending == 0:
                    break
        lost = self.sent.keys() - self.delivered - self.cancelled
        assert not lost, f"lost or late for ever: {sorted(lost)}"
        status = self.newest.wheel.status()
        assert status.pending == 0, status
        assert status.delivered + status.dead == len(self.delivered), status
        for key in self.sent:  # an answer to each is possible, and true
            self.ask(key)

    # What the world does and sees

    def _append(self) -> None:
        rows = []
        for _ in range(self.rng.randint(2, 9)):
            self._rows += 1
            value = (POISON if self.rng.random() < 0.06 else b"") + b"%d" % self._rows
            due = self.now_ms + self.rng.choice((0, 0, 1, 2, 40, 150))
            rows.append((due, self.rng.choice(TOPICS), value))
        self.send(rows)

    def send(self, rows: list[tuple[int, str, bytes]]) -> None:
        self._open.append((rows, self.newest.wheel.append(batch(rows), self.now_ms)))

    def collect(self) -> None:
        """The newest master's syncer."""
        self.newest.commit()
        for rows, future in self._open:
            receipt = future.result(0)
            for row, (_, topic, _) in enumerate(rows):
                self.sent[int(receipt.due[row]), receipt.base_offset + row] = topic
        self._open.clear()

    def _cancel(self) -> None:
        to_come = [key for key in self.sent if key not in self.delivered]
        if self.sent:
            self.ask(self.rng.choice(to_come or list(self.sent)))

    def ask(self, key: Key) -> None:
        master = self.newest
        one = master.wheel.mint.one(*key)
        for _ in range(2):  # nothing here may wait: the second answer is the one that counts
            (answer,) = master.wheel.cancel([one], self.now_ms, 0)
            self.collect()
        self.answers[answer] += 1
        if answer is CancelAnswer.CANCELLED:
            assert key not in self.delivered, f"{key} was delivered, and the answer is: cancelled"
            self.cancelled.add(key)
        elif answer is CancelAnswer.DELIVERED:
            assert key in self.delivered, f"{key} was not delivered, and the answer says so"
        elif master.hand.knows and self._journal_knew(master):
            assert master.in_flight, f"{key}: nobody knows, although the mark was read"

    def _journal_knew(self, master: Any) -> bool:
        """Whether its epoch began with a journal that said that Kafka holds a mark."""
        dispatcher = master_of(master.wheel)
        return dispatcher.settle(self.now_ms) and dispatcher.canceller._reach_ms == -1

    def _committed(self, records: Any) -> None:
        record: Record
        for record in records:
            key = record.key
            assert key in self.sent, f"{key} was never acknowledged to be committed"
            assert key[0] <= self.now_ms, f"{key} is early"
            assert key not in self.delivered, f"{key} is repeated"
            assert key not in self.cancelled, f"{key} was cancelled and is delivered"
            self.delivered.add(key)


def tell(seed: int) -> Story:
    story = Story(seed)
    try:
        story.run()
    except BaseException as error:
        error.add_note(f"story {seed}")
        raise
    return story
