"""The wheels of a fleet: a client of each, and which of them answer.

Theory: whoever sends a message without a key may choose any wheel, and should choose one that
answers; and a wheel that drains has to be passed by. Both have to be known before a message is
sent, as one that is on its way may be stored. So each wheel is greeted every ``LOOK_S``, and a
wheel counts as *away* from the first greeting that fails to the next one that does not.

    greeted -> there        takes messages
            -> draining     delivers what it has, and takes none
            -> misnamed     another group answers at its addresses: nothing is sent there
    no answer -> away       messages with a key wait for it, all others go past it
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..client.addresses import Nodes
from ..client.client import Client
from ..wheel.errors import InvalidConfiguration, SlotwheelError
from ..wire.pool import Pool

_log = logging.getLogger("slotwheel.fleet")

LOOK_S = 1.0
"""The seconds between two greetings of a wheel, and the longest time that one takes."""
_THREADS_MAX = 32
_FIRST_LOOK_S = 2.0


class WheelState(StrEnum):
    """What the last greeting of a wheel showed."""

    NOT_ASKED = "not asked yet"
    THERE = "there"
    AWAY = "away"
    DRAINING = "draining"
    MISNAMED = "misnamed"


@dataclass(slots=True, eq=False)
class WheelOfFleet:
    """A wheel of a fleet. ``problem``: the error of the last greeting, None if there was none."""

    name: str
    nodes: Nodes
    client: Client
    state: WheelState = WheelState.NOT_ASKED
    problem: SlotwheelError | None = None
    asked: threading.Event = field(default_factory=threading.Event)
    greeting: bool = False


class Wheels:
    """The wheels of a fleet, by name. ``connect`` makes the client of one. Thread-safe."""

    def __init__(self, nodes: Mapping[str, Nodes], connect: Callable[[str, Nodes], Client]) -> None:
        self.by_name: dict[str, WheelOfFleet] = {}
        try:
            for name, reached in nodes.items():
                self.by_name[name] = WheelOfFleet(name, reached, connect(name, reached))
        except BaseException:
            for wheel in self.by_name.values():
                wheel.client.close(0)
            raise
        self._asked = False
        self._pool = Pool(_THREADS_MAX, "slotwheel-greeting")
        self._closed = threading.Event()

    def watch(self, changed: Callable[[], None]) -> None:
        """Begin to greet the wheels. ``changed`` is called, by other threads, when one begins or
        ceases to take messages."""
        self._changed = changed
        threading.Thread(target=self._watch, name="slotwheel-fleet", daemon=True).start()

    def wait_until_asked(self) -> None:
        """Wait until each wheel was greeted once, or could have been."""
        if self._asked:
            return
        end = time.monotonic() + _FIRST_LOOK_S
        for wheel in self.by_name.values():
            wheel.asked.wait(max(0.0, end - time.monotonic()))
        self._asked = True

    def open(self) -> list[str]:
        """The names of the wheels that take messages, or will when they answer again."""
        closed = (WheelState.DRAINING, WheelState.MISNAMED)
        return [name for name, wheel in self.by_name.items() if wheel.state not in closed]

    def close(self) -> None:
        """Greet no more."""
        self._closed.set()
        self._pool.close()

    def _watch(self) -> None:
        while not self._closed.is_set():
            for wheel in self.by_name.values():
                if not wheel.greeting:
                    wheel.greeting = True
                    try:
                        self._pool.submit(self._greet, wheel)
                    except RuntimeError:  # closed just now, or no thread can be had: next time
                        wheel.greeting = False
            self._closed.wait(LOOK_S)

    def _greet(self, wheel: WheelOfFleet) -> None:
        before = wheel.state
        try:
            wheel.state, wheel.problem = self._state_of(wheel)
        except Exception:  # a bug; the wheel stays as it was
            _log.exception("slotwheel fleet: greeting %s failed", wheel.name)
        wheel.greeting = False
        if wheel.state is not before:
            if wheel.problem is not None and not self._closed.is_set():
                _log.warning(
                    "slotwheel fleet: %s is %s: %s", wheel.name, wheel.state, wheel.problem
                )
            self._changed()
        wheel.asked.set()

    def _state_of(self, wheel: WheelOfFleet) -> tuple[WheelState, SlotwheelError | None]:
        try:
            hello = wheel.client.hello(LOOK_S)
        except SlotwheelError as error:
            return WheelState.AWAY, error
        if hello["group"] != wheel.name:
            return WheelState.MISNAMED, InvalidConfiguration(
                "another wheel answers at these addresses",
                got=f"{wheel.nodes}: {hello['group']!r}",
                limit=f"{wheel.name!r}",
                remedy="Name the wheel in the fleet's file as its group is called (--group)",
            )
        return (WheelState.DRAINING if hello.get("draining") else WheelState.THERE), None
