"""Asks the gateways of a fleet's wheels, each beside a node and its data directory.

Theory: a question is a request to one gateway of each wheel, all at the same time, each by a thread
that waits. A wheel that does not answer is named in the answer, which is not complete then; the
others answer all the same. Whether a gateway that takes long hangs or works shows another question
to it, for its health: it has ``ANSWER_S`` if it hangs, and ``BUSY_S`` if it works.

Rules
- The front proves itself as a gateway and says which topics its own caller has (``TOPICS``), as it
  does on the wire. A header of its own caller is never passed on.
- What the question itself caused (4xx) is the answer of the front, too: all wheels would say so.
- A gateway that cannot be reached is followed by the next one of its wheel; one that is silent is
  not, so that the time is bounded, and is asked last from then on.
- Each wheel has threads of its own. Otherwise a wheel that hangs would soon hold all of them, and
  no other wheel would be asked. *Example.* With 64 threads for all, and 20 questions a second of
  which each waits 5 s for North, every thread waits for North after 3.2 s.
- The time of a question begins when it is asked. One that finds all threads of its wheel taken
  waits for them, and ends in the same time as any other.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from ...client.httpconnection import GatewayAccess, GatewayAnswer, GatewayConnection
from ...wheel.errors import InvalidConfiguration, NodeUnreachable, SlotwheelError
from ..authentication import TOPICS
from ..errors import HttpError

T = TypeVar("T")
ANSWER_S = 5.0
"""A wheel whose gateway does nothing for so long is left out, s."""
BUSY_S = 120.0
"""One that works on an answer may take so long, s, as for counting millions of messages, or of dead
letters that are to be sent."""
_THREADS = 8
"""The most questions that wait for one wheel at a time; further ones wait for them."""
_GRACE_S = 1.0
"""A thread may be held up for longer than its socket's limit, as by a name server; s."""
_SILENT = "its gateway does not answer"
_NOT_OF_THE_QUESTION = (401, 403, 408, 429)
"""Statuses below 500 that tell of the gateways, and not of the question."""


class _Asked:
    """A question that is under way, for who gives it up: its thread is free at once then. If it
    were not, eight questions to a gateway that hangs would keep all threads of its wheel for
    ``BUSY_S``, and the wheel would be missing for as long after it is well again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: GatewayConnection | None = None
        self._is_given_up = False

    def holds(self, connection: GatewayConnection | None) -> None:
        """Note the connection on which it waits; None: on none."""
        with self._lock:
            self._connection = connection
            if connection is not None and self._is_given_up:
                connection.cut()

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self._connection is not None:
                self._connection.cut()


class WheelGateways:
    """The gateways of the wheels ``names``. ``addresses``: of each wheel that has any;
    ``answer_s``: as of ``ANSWER_S``. Thread-safe."""

    def __init__(
        self,
        names: Sequence[str],
        addresses: Mapping[str, Sequence[str]],
        access: GatewayAccess,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.names = names
        self._addresses = {name: list(given) for name, given in addresses.items()}
        self._access = access
        self._answer_s = answer_s
        # No thread of them is begun before it is needed.
        self._pools = {
            name: ThreadPoolExecutor(_THREADS, thread_name_prefix=f"gateway-front-{name}")
            for name in names
        }
        # Of those that are all taken by long questions nobody could tell whether they hang.
        self._probing = {
            name: ThreadPoolExecutor(1, thread_name_prefix=f"gateway-probe-{name}")
            for name in names
        }

        self._starting = threading.Lock()
        self._probes: dict[str, Future[Any]] = {}

    def close(self) -> None:
        for pool in (*self._pools.values(), *self._probing.values()):
            pool.shutdown(wait=False, cancel_futures=True)

    def first_address(self, wheel: str) -> str:
        """Where a browser finds the wheel's own gateway; empty: it has none."""
        return next(iter(self._addresses.get(wheel, ())), "")

    # Asking one

    def ask(
        self,
        wheel: str,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: Any = None,
        topics: Sequence[str] | None = None,
        kept_by_one: bool = False,
        until: float | None = None,
        asked: _Asked | None = None,
    ) -> T:
        """The answer of a wheel. ``topics``: patterns of those that the caller has; None: all.
        ``kept_by_one``: one of its gateways has what is asked for, as a job; so a 404 leads to the
        next. ``until``: it has to be there by then, by the monotonic clock, s; None: ``answer_s``
        from now. Blocks. Errors: ``HttpError``: the question is at fault; ``NodeUnreachable``."""
        headers = {}
        if topics is not None:
            headers[TOPICS.decode()] = json.dumps(list(topics))
        until = time.monotonic() + self._answer_s if until is None else until
        asked = asked or _Asked()
        answer = self._answer(wheel, method, path, body, headers, kept_by_one, until, asked)
        if answer.status < 300:
            try:
                return msgspec.json.decode(answer.body, type=kind)
            except msgspec.MsgspecError as error:
                raise NodeUnreachable(f"its gateway's answer is none: {error}"[:200]) from None
        if answer.status >= 500 or answer.status in _NOT_OF_THE_QUESTION:
            text = f"its gateway answers {answer.status}: {answer.error().message}"
            raise NodeUnreachable(text[:300])
        raise _of_question(answer)

    def _answer(
        self,
        wheel: str,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
        kept_by_one: bool,
        until: float,
        asked: _Asked,
    ) -> GatewayAnswer:
        addresses = self._addresses.get(wheel)
        if not addresses:
            raise NodeUnreachable(
                "the fleet's file names no gateway of it",
                remedy=f"Add a line {wheel} to [gateways], with http://host:port",
            )
        failed: SlotwheelError = NodeUnreachable("others wait for its gateway")
        for address in list(addresses):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                connection = GatewayConnection(address, left_s, self._access)
            except (NodeUnreachable, InvalidConfiguration) as error:
                failed = error
                continue
            asked.holds(connection)
            try:
                left_s = max(0.1, until - time.monotonic())
                answer = connection.ask(method, path, body, timeout_s=left_s, headers=headers)
            except NodeUnreachable as error:
                if address in addresses:
                    addresses.sort(key=address.__eq__)
                raise NodeUnreachable(f"{address} does not answer: {error.message}") from None
            finally:
                asked.holds(None)
                connection.close()
            if not kept_by_one or answer.status != HTTPStatus.NOT_FOUND:
                return answer
            failed = NodeUnreachable("its gateway has forgotten it", got=address)
        raise NodeUnreachable(failed.message, got=failed.got)

    # Asking several

    async def ask_each(
        self,
        questions: Mapping[str, str],
        kind: type[T],
        *,
        method: str = "GET",
        body: Any = None,
        topics: Sequence[str] | None = None,
    ) -> tuple[dict[str, T], list[str]]:
        """The answers of the wheels that answer, and a text about each other one. ``questions``:
        the path and query by the wheel's name. Errors: ``HttpError``, as of ``ask``."""
        asked = {name: _Asked() for name in questions}
        more: dict[str, Any] = {"body": body, "topics": topics, "busy": True}
        calls = {
            name: asyncio.wrap_future(
                self.submit(name, method, path, kind, asked=asked[name], **more)
            )
            for name, path in questions.items()
        }
        await asyncio.wait(calls.values(), timeout=self._answer_s / 2)
        if working := await self._working([name for name in calls if not calls[name].done()]):
            left_s = BUSY_S - self._answer_s + _GRACE_S
            await asyncio.wait([calls[name] for name in working], timeout=left_s)
        answers: dict[str, T] = {}
        problems: list[str] = []
        for name, call in calls.items():
            if not call.done():
                problems.append(problem_of(name, NodeUnreachable(_SILENT)))
                call.cancel()
                asked[name].give_up()
                continue
            try:
                answers[name] = call.result()
            except NodeUnreachable as error:
                problems.append(problem_of(name, error))
        return answers, problems

    def ask_now(
        self, questions: Mapping[str, str], kind: type[T], topics: Sequence[str] | None
    ) -> tuple[dict[str, T], list[str]]:
        """As ``ask_each``, for a thread that may wait, and for so long as ``ANSWER_S`` at most. A
        wheel that cannot answer the question counts as one that does not answer."""
        asked = {name: _Asked() for name in questions}
        calls = {
            name: self.submit(name, "GET", path, kind, topics=topics, asked=asked[name])
            for name, path in questions.items()
        }
        wait(calls.values(), self._answer_s + _GRACE_S)
        answers: dict[str, T] = {}
        problems: list[str] = []
        for name, call in calls.items():
            if not call.done():
                problems.append(problem_of(name, NodeUnreachable(_SILENT)))
                call.cancel()
                asked[name].give_up()
                continue
            try:
                answers[name] = call.result()
            except (HttpError, NodeUnreachable) as error:
                problems.append(problem_of(name, error))
        return answers, problems

    async def _working(self, names: Sequence[str]) -> list[str]:
        """Those of the wheels ``names`` whose gateways work on a question, as they answer another
        one meanwhile."""
        if not names:
            return []
        probes = {name: asyncio.wrap_future(self._probe(name)) for name in names}
        await asyncio.wait(probes.values(), timeout=self._answer_s / 2)
        working = []
        for name, probe in probes.items():
            if probe.done() and not probe.cancelled() and probe.exception() is None:
                working.append(name)
        return working

    def _probe(self, name: str) -> Future[Any]:
        """A question to a wheel's gateway for its health: one for all who want to know it now."""
        with self._starting:
            probe = self._probes.get(name)
            if probe is None or probe.done():
                probe = self._probing[name].submit(self.page, name, "/healthz")
                self._probes[name] = probe
            return probe

    def page(self, wheel: str, path: str) -> dict[str, Any]:
        """A page of a wheel's gateway that is no JSON, or whose status is a part of the answer, as
        ``Client.page`` has it of a node. Blocks. Errors: ``NodeUnreachable``."""
        try:
            until = time.monotonic() + self._answer_s
            answer = self._answer(wheel, "GET", path, None, {}, False, until, _Asked())
        except NodeUnreachable as error:
            raise NodeUnreachable(problem_of(wheel, error)) from None
        return {"status": answer.status, "type": "", "body": answer.body.decode(errors="replace")}

    def submit(self, wheel: str, *given: Any, busy: bool = False, **named: Any) -> Future[Any]:
        """Begin ``ask``. ``busy``: the answer may take ``BUSY_S``."""
        named["until"] = time.monotonic() + (BUSY_S if busy else self._answer_s)
        return self._pools[wheel].submit(self.ask, wheel, *given, **named)


def problem_of(wheel: str, error: SlotwheelError | HttpError) -> str:
    """A line that names a wheel whose answer is missing."""
    return f"the wheel {wheel} is missing: {error.message}"


def _of_question(answer: GatewayAnswer) -> HttpError:
    body = answer.json()
    fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
    return HttpError(
        answer.status,
        str(fields.get("message") or f"a wheel's gateway answers {answer.status}"),
        error_code=int(fields.get("error_code") or answer.status),
        code=str(fields.get("code") or ""),
        place=str(fields.get("place") or ""),
        got=fields.get("got"),
        limit=fields.get("limit"),
        remedy=str(fields.get("remedy") or ""),
    )
