"""Limits how often and how much each address changes the policies over the network.

Theory: a consumer registers its group's rule when it starts. The table of all groups is small, as
each change writes the whole of it: one client could fill it for all others, or have the journal
written without end. So an address gets a quarter of the table; it may make as many changes at once,
and then one a second. A registration that changes nothing is free: all members of a group register
the same rule.

Rules
- A group counts for the address that registered it with this node, while it is in the table and
  while it is on its way into it: otherwise many that come at once would get more than a quarter. A
  new master knows no addresses.
- An address is forgotten when it may make all its changes again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from ..policy.policyset import GROUPS_BYTES_MAX, GROUPS_MAX
from ..wheel.errors import InvalidConfiguration, Overloaded

GROUPS_OF_ONE_MAX = GROUPS_MAX // 4
BYTES_OF_ONE_MAX = GROUPS_BYTES_MAX // 4
CHANGES_MAX = GROUPS_OF_ONE_MAX
"""So many changes may an address make at once; one more each second."""
SETTLED_S = 20.0
"""A change that is not committed after this time, s, never will be."""


class Registrants:
    """The addresses and their groups. ``clock``: seconds, monotonic. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By group: host, bytes, and the time at which it was registered.
        self._groups: dict[str, tuple[str, int, float]] = {}
        self._full_at: dict[str, float] = {}  # when an address has all its changes again

    def registers(self, host: str, group: str, nbytes: int, stored: Collection[str]) -> None:
        """Note that ``host`` registers ``group``, which takes ``nbytes`` in the table. ``stored``:
        the groups in the table. Errors: ``InvalidConfiguration``: the address has too many;
        ``Overloaded``: it asks too often."""
        with self._lock:
            now = self._clock()
            self._groups = {
                name: (registrant, size, since)
                for name, (registrant, size, since) in self._groups.items()
                if (name in stored or now - since < SETTLED_S) and name != group
            }
            taken = [size for registrant, size, _ in self._groups.values() if registrant == host]
            if len(taken) >= GROUPS_OF_ONE_MAX or sum(taken) + nbytes > BYTES_OF_ONE_MAX:
                raise InvalidConfiguration(
                    "too many consumer groups with rules from one address",
                    got=f"{len(taken) + 1} of {host}",
                    limit=f"{GROUPS_OF_ONE_MAX}, and {BYTES_OF_ONE_MAX} bytes",
                    remedy="Remove those that are gone: slotwheel routes forget GROUP",
                )
            self._spend(host)
            self._groups[group] = host, nbytes, now

    def forgets(self, host: str, group: str) -> None:
        """Spend a change of ``host``; ``group`` counts until it is gone. Errors: ``Overloaded``."""
        with self._lock:
            self._spend(host)
            if group in self._groups:  # it counts while it is in the table
                self._groups[group] = *self._groups[group][:2], self._clock() - SETTLED_S

    def _spend(self, host: str) -> None:
        now = self._clock()
        self._full_at = {address: at for address, at in self._full_at.items() if at > now}
        full_at = max(now, self._full_at.get(host, now)) + 1
        if full_at - now > CHANGES_MAX:
            raise Overloaded(
                "too many changes of the policies from one address",
                got=host,
                limit=f"{CHANGES_MAX} at once, then one a second",
                remedy="Try again in a second",
            )
        self._full_at[host] = full_at
