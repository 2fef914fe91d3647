"""The client for asyncio: the same methods, awaited.

    async with AsyncClient("127.0.0.1:7200") as client:
        message_id = await client.send("orders", b"remind", delay="30s")

Messages go over the loop's own connection (``asynclink.py``): tasks that send at the same time
share a request, and nobody waits for a timer. The other methods - tables, cancelling, moving,
asking - are called less often, and done by a ``Client`` in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

import pyarrow as pa

from ..wheel.errors import InvalidConfiguration, NotRunning
from ..wheel.protocol import DEFAULT_ADDRESS
from ..wheel.rows import Content
from ..wire.pool import Pool
from .addresses import Addresses, Nodes
from .asynclink import AsyncLink
from .asyncthreads import in_pool
from .client import Client, needs_policies
from .message import Delay, DueTime, Headers, Message, clock_ms, message_of
from .receipts import Receipts
from .schedules import AsyncSchedules

if TYPE_CHECKING:
    from ..security.tls import Tls

P = ParamSpec("P")
R = TypeVar("R")
_THREADS_MAX = 16
"""The most threads for methods of ``Client``; they are started when they are needed."""


class AsyncClient:
    """A ``Client`` for one event loop; the methods have its arguments and errors. Addresses of
    gateways are not taken: over HTTP, asyncio has clients of its own. Leaving the ``async with``
    block waits until messages are stored or have failed, and closes."""

    def __init__(
        self,
        address: str | Sequence[str] | Nodes = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 30.0,
        acks: str = "all",
        tls: Tls | None = None,
        token: str | None = None,
    ) -> None:
        if acks == "0":
            raise InvalidConfiguration(
                "whoever awaits a message wants an answer",
                got='acks="0"',
                limit='acks="all" or "1"',
                remedy="Use Client to send without answers",
            )
        self._client = Client(address, timeout_s=timeout_s, acks=acks, tls=tls, token=token)
        if self._client.wire is None:
            self._client.close()
            raise InvalidConfiguration(
                "the asyncio client connects to nodes",
                got=self._client.address,
                limit="host:port",
                remedy="Give the addresses of nodes, or use an HTTP client for a gateway",
            )
        self._acks, self._timeout_s = acks, timeout_s
        self._link: AsyncLink | None = None
        self._pool = Pool(_THREADS_MAX, "slotwheel-async")
        self._open: set[asyncio.Future[Any]] = set()
        self._closed = False

    def send(
        self,
        topic: str | Message,
        value: Content = None,
        *,
        key: Content = None,
        headers: Headers = (),
        partition: int | None = None,
        due: DueTime = None,
        delay: Delay = None,
        expires: DueTime = None,
        ttl: Delay = None,
        level: str | None = None,
        name: str | None = None,
        if_exists: str | None = None,
    ) -> asyncio.Future[str]:
        """Send one message. Awaiting the result gives its id, once it is stored: what ``store`` of
        ``Client`` returns.

        Errors at once: ``InvalidMessage``, ``NotRunning``; all others when it is awaited."""
        self._check_usable()
        message = message_of(
            topic, value, key, headers, partition, due, delay, expires, ttl, level, name, if_exists
        )
        if needs_policies(message):
            return self._kept(in_pool(self._pool, self._client.store, message))
        flat = self._client.prepare(message, clock_ms())
        if self._link is None:
            wire = self._client.wire
            assert wire is not None
            self._link = AsyncLink(
                Addresses(self._client.addresses),
                self._acks,
                self._timeout_s,
                wire.epoch_of_master,
                self._pool,
                tls=wire.tls,
                token=wire.token,
            )
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            self._link.store(flat, future)
        except OverflowError:  # more or longer headers than a plain row can have
            future = in_pool(self._pool, self._client.store, message)
        return self._kept(future)

    async def store(self, topic: str | Message, value: Content = None, **more: Any) -> str:
        """Send one message and wait until it is stored. Takes what ``send`` takes; returns the
        id. Errors: ``SlotwheelError``."""
        return await self.send(topic, value, **more)

    async def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Send many messages and wait until each is stored or failed, as its receipt says."""
        return await self._run(_answered, self._client.send_many, list(messages))

    async def send_table(self, table: pa.Table | pa.RecordBatch) -> Receipts:
        """Send a table (``Client.send_table``), and wait as ``send_many`` does."""
        return await self._run(_answered, self._client.send_table, table)

    @overload
    async def cancel(self, ids: str | Sequence[str]) -> list[str]: ...
    @overload
    async def cancel(self, *, topic: str, name: str) -> tuple[str, str | None]: ...
    async def cancel(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
    ) -> list[str] | tuple[str, str | None]:
        cancel: Callable[..., Any] = self._client.cancel
        answer: list[str] | tuple[str, str | None]
        answer = await self._run(cancel, ids, topic=topic, name=name)
        return answer

    async def reschedule(
        self,
        message_id: str | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        due: DueTime = None,
        delay: Delay = None,
    ) -> tuple[str, str | None]:
        return await self._run(
            self._client.reschedule, message_id, topic=topic, name=name, due=due, delay=delay
        )

    async def get(self, *, topic: str, name: str) -> str | None:
        return await self._run(self._client.get, topic=topic, name=name)

    async def status(self) -> dict[str, Any]:
        return await self._run(self._client.status)

    async def page(self, path: str) -> dict[str, Any]:
        return await self._run(self._client.page, path)

    async def policies(self) -> dict[str, Any]:
        return await self._run(self._client.policies)

    async def register(self, group: str, rule: Mapping[str, Any] | None) -> dict[str, Any]:
        return await self._run(self._client.register, group, rule)

    async def forget(self, group: str) -> dict[str, Any]:
        return await self._run(self._client.forget, group)

    @property
    def schedules(self) -> AsyncSchedules:
        """The group's schedules; see ``Schedules``."""
        return AsyncSchedules(self._client.schedules, self._run)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages sent are stored or have failed. Errors: ``TimeoutError``."""
        if self._open:
            _, left = await asyncio.wait(set(self._open), timeout=timeout_s)
            if left:
                raise TimeoutError(f"not everything was answered within {timeout_s} s")

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait at most ``timeout_s`` until messages are stored or failed, and end. Repeatable."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(timeout_s)
        except TimeoutError:
            pass  # an error of whoever awaits them
        finally:
            if self._link is not None:
                await self._link.close()
            await in_pool(self._pool, self._client.close, timeout_s)
            self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _kept(self, future: asyncio.Future[R]) -> asyncio.Future[R]:
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    async def _run(self, call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        self._check_usable()
        return await self._kept(in_pool(self._pool, call, *given, **named))

    def _check_usable(self) -> None:
        if self._closed:
            raise NotRunning("the client is closed", remedy="Make a new AsyncClient")


def _answered(send: Callable[[Any], Receipts], content: Any) -> Receipts:
    receipts = send(content)
    receipts.outcomes()
    return receipts
