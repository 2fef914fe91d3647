"""Who has the policies changed over the network, by address: none fills the table of consumer
groups for all others, and none has the journal written without end.

Theory: a consumer registers its group's rule when it starts. The table of all groups is small, as
each change writes the whole of it. So one address gets a quarter of the table; it may make as many
changes at once, and from then on one a second. A registration that changes nothing is free: all
members of a group register the same rule.

Rules
- Groups count for the address that registered them here, as long as they are in the table, and
  while they are on their way into it: many that come at once get no more than those that come one
  by one. A master that begins knows of none.
- An address that has changed nothing for a while is forgotten, and so is how often it did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from ..policy.policyset import GROUPS_BYTES_MAX, GROUPS_MAX
from ..wheel.errors import InvalidConfiguration, Overloaded

GROUPS_OF_ONE_MAX = GROUPS_MAX // 4
BYTES_OF_ONE_MAX = GROUPS_BYTES_MAX // 4
CHANGES_MAX = GROUPS_OF_ONE_MAX
"""Changes of one address at once; one more each second."""
SETTLED_S = 20.0
"""After so long a change is committed, or never will be."""


class Registrants:
    """``clock``: seconds, monotonic. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Host, bytes, and when it came, by group.
        self._groups: dict[str, tuple[str, int, float]] = {}
        self._full_at: dict[str, float] = {}  # when an address has all its changes again

    def registers(self, host: str, group: str, nbytes: int, stored: Collection[str]) -> None:
        """``host`` wants ``group`` stored beside the groups that are. Errors:
        ``InvalidConfiguration``: it has too many; ``Overloaded``: it comes too often."""
        with self._lock:
            now = self._clock()
            self._groups = {
                name: one
                for name, one in self._groups.items()
                if (name in stored or now - one[2] < SETTLED_S) and name != group
            }
            mine = [size for whose, size, _ in self._groups.values() if whose == host]
            if len(mine) >= GROUPS_OF_ONE_MAX or sum(mine) + nbytes > BYTES_OF_ONE_MAX:
                raise InvalidConfiguration(
                    "too many consumer groups with rules from one address",
                    got=f"{len(mine) + 1} of {host}",
                    limit=f"{GROUPS_OF_ONE_MAX}, and {BYTES_OF_ONE_MAX} bytes",
                    remedy="Remove those that are gone: slotwheel routes forget GROUP",
                )
            self._spend(host)
            self._groups[group] = host, nbytes, now

    def forgets(self, host: str, group: str) -> None:
        """``host`` wants ``group`` out of the table. Errors: ``Overloaded``."""
        with self._lock:
            self._spend(host)
            if group in self._groups:  # it counts until it is gone
                self._groups[group] = *self._groups[group][:2], self._clock() - SETTLED_S

    def _spend(self, host: str) -> None:
        now = self._clock()
        self._full_at = {one: at for one, at in self._full_at.items() if at > now}
        full_at = max(now, self._full_at.get(host, now)) + 1
        if full_at - now > CHANGES_MAX:
            raise Overloaded(
                "too many changes of the policies from one address",
                got=host,
                limit=f"{CHANGES_MAX} at once, then one a second",
                remedy="Try again in a second",
            )
        self._full_at[host] = full_at
