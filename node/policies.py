"""The group's policies on one node: read from the engine's settings, changed on the master.

Rules: the settings that the journal has committed count, for all peers alike; otherwise two peers
with different files would route the same record differently. A node's file (--policies) becomes the
group's when that node is master; a node without a file changes nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ..policy.policyset import PolicySet, rule_bytes
from ..policy.rule import Rule
from ..wheel.errors import NotMaster, NotRunning, Overloaded
from .events import NodeEvents
from .registrants import Registrants

CHANGE_S = 10.0
_TURN_S = 1.0
"""The longest time of a turn, s: its thread has to end in time."""
_AGAIN_S = 0.05
_LOOK_EVERY_S = 1.0


class SettingsPort(Protocol):
    """The part of the wheel that ``GroupPolicies`` uses."""

    @property
    def settings(self) -> Mapping[str, Any]: ...
    def change_settings(
        self, known: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Future[Any]: ...


class GroupPolicies:
    """The group's policies. Thread-safe. ``written``: those of this node's file, if it has one."""

    def __init__(self, wheel: SettingsPort, written: PolicySet | None, events: NodeEvents) -> None:
        self._wheel = wheel
        self._written = written
        self._events = events
        self._known: tuple[Mapping[str, Any], PolicySet] = ({}, PolicySet())
        self._applied: Mapping[str, Any] | None = None
        self._applying = threading.Lock()
        self._registrants = Registrants(time.monotonic)

    @property
    def current(self) -> PolicySet:
        """The policies that are committed on this node."""
        return self._read()[1]

    def register(self, group: str, rule: Rule | None, host: str = "") -> PolicySet:
        """Register a consumer group's rule for the address ``host``, and return the policies with
        it, committed. Errors: as of ``PolicySet.registered`` and ``Registrants.registers``;
        ``NotMaster``, ``NotRunning``."""
        stored = self.current.groups
        if group not in stored:
            self._registrants.registers(host, group, rule_bytes(group, rule), stored)
        return self._change(lambda settings: settings.registered(group, rule), CHANGE_S)

    def forget(self, group: str, host: str = "") -> PolicySet:
        """Forget a consumer group's rule. Errors: ``Overloaded``: ``host`` asks too often;
        ``NotMaster``, ``NotRunning``."""
        if group in self.current.groups:
            self._registrants.forgets(host, group)
        return self._change(lambda settings: settings.forgotten(group), CHANGE_S)

    def turn(self) -> float:
        """Make the file's policies the group's, if this node is master; for a loop."""
        written, (stored, _) = self._written, self._read()
        if written is not None and stored is not self._applied:
            with self._applying, contextlib.suppress(NotMaster, NotRunning):
                before = self.current.version
                version = self._change(lambda settings: settings.changed(written), _TURN_S).version
                self._applied = self._wheel.settings
                if version != before:
                    self._events.event("policies-changed", version=version)
        return _LOOK_EVERY_S

    def settle(self, stop: threading.Event) -> None:
        """Wait until the file's policies are the group's: a record that is read before that may ask
        for a route that is only in the file. Errors: as of ``PolicySet.changed``."""
        while self._written is not None and not stop.is_set():
            current = self.current
            if current.changed(self._written) is current:
                return
            self.turn()
            stop.wait(_AGAIN_S)

    def _read(self) -> tuple[Mapping[str, Any], PolicySet]:
        stored = self._wheel.settings
        known = self._known
        if known[0] is not stored:
            known = self._known = (stored, PolicySet.from_dict(stored) if stored else PolicySet())
        return known

    def _change(self, change: Callable[[PolicySet], PolicySet], within_s: float) -> PolicySet:
        """Make a change and wait until it is committed. Errors: ``NotRunning``, ``NotMaster``."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            stored, settings = self._read()
            changed = change(settings)
            if changed is settings:
                return settings
            try:
                self._wheel.change_settings(stored, changed.to_dict()).result(within_s)
            except Overloaded:  # another change is on its way, or the disk is full
                time.sleep(_AGAIN_S)
                continue
            except TimeoutError:
                break
            return changed
        raise NotRunning(
            "the change is not committed; whether it will be is not known",
            limit=f"{within_s:.0f} s",
            remedy="'slotwheel policies' shows what holds; try again",
            uncertain=True,
        )
