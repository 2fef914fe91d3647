"""What the gateway's routes work with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..aside.asked import AskedAside
from ..audit.watch.worker import AuditProcess
from ..client import Client
from ..fleet.fleet import Fleet
from ..policy.policyset import PolicySet
from ..reading.visible import MayTopic
from ..security.principals import Identity
from ..security.rights import Operation, Right, TopicList, forbidden
from ..trace.chains.lookup import TraceLookup
from ..wheel.errors import Overloaded, SlotwheelError
from .administration import TopicAdministration
from .asking import Questions
from .authentication import STRANGER, RequestAuthenticator
from .fresh import FreshAnswers
from .gathering import MessageStore
from .jobs import Jobs
from .logins import Logins
from .metrics import GatewayMetrics
from .searcher import Searcher
from .settings import GatewaySettings

if TYPE_CHECKING:
    from .front.front import Front

P = ParamSpec("P")
R = TypeVar("R")


class OneByOne:
    """Calls that take processor time: one at a time on ``pool``, and few that wait. Belongs to one
    event loop."""

    def __init__(self, pool: ThreadPoolExecutor, waiting_max: int = 8) -> None:
        self._pool = pool
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Errors: ``Overloaded``: too many wait; those of ``function``."""
        if self._waiting >= self._waiting_max:
            raise Overloaded(
                "as many requests of this kind wait as may",
                got=self._waiting,
                limit=self._waiting_max,
                remedy="Ask again in a moment",
            )
        self._waiting += 1
        try:
            async with self._turn:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, lambda: function(*args, **named))
        finally:
            self._waiting -= 1


class SingleFlight(Generic[R]):
    """One call that waits, on ``pool``, for all who ask while it runs: however many these are, they
    hold one thread. Belongs to one event loop."""

    def __init__(self, pool: ThreadPoolExecutor, function: Callable[[], R]) -> None:
        self._pool = pool
        self._function = function
        self._running: asyncio.Future[R] | None = None

    async def __call__(self) -> R:
        """Errors: those of the function."""
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._pool, self._function)
            self._running.add_done_callback(self._end)
        try:
            return await asyncio.shield(self._running)
        except SlotwheelError as error:
            raise copy(error) from None

    def _end(self, done: asyncio.Future[R]) -> None:
        self._running = None
        if not done.cancelled():
            done.exception()  # whoever asked may be gone


_FRESH_S = 1.0
"""Policies that are fresh for so long yet are so when a thread gets to a request."""


@dataclass(slots=True)
class Services:
    """``client``: of the group, it follows the master. ``policies``: what it asks for. ``pages``:
    of the node beside the gateway, by their path; they have threads of their own, so that others
    who wait for a node do not keep them. ``letters``: for looking at dead letters. ``redrives``:
    for counting what is sent again, which never waits for those who look. ``logins``: of browsers.
    ``searcher``: None without a data directory; ``lookup``: None without that and a store of
    events; ``audit``: None if it is off. ``front``: the wheels of a fleet, for which it answers;
    None: it is the gateway of one wheel. ``administration``: of Kafka's topics; None without a
    Kafka."""

    settings: GatewaySettings
    client: Client | Fleet
    policies: SingleFlight[PolicySet]
    pages: Mapping[str, Callable[[], Awaitable[dict[str, Any]]]]
    gatherer: MessageStore
    metrics: GatewayMetrics
    pool: ThreadPoolExecutor
    jobs: Jobs
    letters: OneByOne
    redrives: OneByOne
    logins: Logins
    front: Front | None
    searcher: Searcher | None
    lookup: AskedAside[TraceLookup] | None
    lookup_questions: Questions
    fresh: FreshAnswers
    """For pages that many look at."""
    audit: AuditProcess | None
    administration: TopicAdministration | None
    closing: ExitStack
    """What the routes have open; it is closed when the gateway ends."""
    authenticator: RequestAuthenticator = field(default_factory=RequestAuthenticator)
    identity: Identity = STRANGER
    """The caller for whom they are used. By default it is one that has no rights, so that a way on
    which nobody asked for a proof leads to a refusal."""

    @property
    def searches(self) -> bool:
        """True when there is something to search: a data directory, or the wheels of a fleet."""
        return self.searcher is not None or self.front is not None

    def used_by(self, identity: Identity) -> Services:
        """The same services, used for a caller."""
        services = copy(self)
        services.identity = identity
        return services

    def narrow(self, wheel: str) -> None:
        """Use these services for one wheel of a fleet. Errors: ``InvalidMessage``: the fleet has
        none of that name."""
        assert self.front is not None, "a gateway over a fleet"
        front = self.front = self.front.narrowed(wheel)
        self.pages = {
            path: partial(self.run, front.gateways.page, wheel, path) for path in self.pages
        }

    def patterns_for(self, right: Right) -> tuple[str, ...] | None:
        """The topics of ``topics_for`` as a security file writes them, for others to decide on."""
        topics = self._list_for(right)
        return None if topics is None else topics.patterns

    def topics_for(self, right: Right) -> MayTopic | None:
        """Tells of a topic whether the caller has the right for it; None: for every topic, as of a
        right that is a flag, and that the caller has."""
        topics = self._list_for(right)
        return None if topics is None else topics.has

    def _list_for(self, right: Right) -> TopicList | None:
        rights = self.identity.rights
        return None if rights.is_unlimited or right in rights.flags else rights.topics(right)

    def demand_again(self, operation: Operation) -> Callable[[], None]:
        """A check for what goes on behind its caller's request: it raises ``Forbidden`` once the
        caller, by the security file of then, lacks a topic that it has now for that operation."""
        began, authenticator = self.identity, self.authenticator

        def demand() -> None:
            rights = authenticator.renewed(began).rights
            if not rights.has_all_of(began.rights, operation.right):
                raise forbidden(operation)

        return demand

    async def await_policies(self) -> None:
        """Until ``client.prepare_many`` need not ask for them. Errors: ``NodeUnreachable``."""
        if self.client.policies_fresh_s < _FRESH_S:
            await self.policies()

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """What waits, on a thread, so that the loop does not. Errors: those of ``function``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: function(*args, **named))
