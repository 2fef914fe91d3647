"""All consumer instances of this gateway: made, found, and ended when they are not used.

Theory: an instance is bound to the gateway that made it. Its calls run in threads of a pool of
their own, one call an instance at a time, none longer than a step; so many clients that wait for
records share few threads, and the loop never waits.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from ...consumer.source import ConsumerFailed, SourceAway
from ...wheel.checks import TOPIC_PATTERN, is_topic
from ...wheel.errors import DirectoryInUse, NodeUnreachable
from ..authentication import identity_of
from ..errors import RETRY_AFTER_S, HttpError
from ..settings import GatewaySettings
from .cluster import Cluster
from .consumer_types import InstanceBody
from .errors import KAFKA_REFUSES, bad_instance, illegal_state, no_instance, not_now
from .instance import ConsumerInstance, InstanceSettings
from .media import FORMATS, EmbeddedFormat

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("slotwheel.gateway")
TIMEOUT_MAX_MS = 60_000
BYTES_MAX = 16 << 20
"""The most bytes of the keys and values of an answer."""
_THREADS = 32
_Key = tuple[str, str, str]
"""Its owner, its group and its name."""
_END_S = 1.0


class Instances:
    """The instances of one event loop."""

    def __init__(self, cluster: Cluster, settings: GatewaySettings) -> None:
        self._cluster = cluster
        self._max, self._idle_s = settings.instances_max, settings.instance_idle_s
        self._known: dict[_Key, ConsumerInstance] = {}
        self._hosts: dict[_Key, str] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="consumers")
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.Task[None] | None = None

    def create(
        self, group: str, given: InstanceBody, host: str = "", owner: str = ""
    ) -> ConsumerInstance:
        """Make an instance for the address ``host``, which may have three quarters of all, and for
        the principal ``owner``, whose it is: names of others' instances are free for it, or it
        could find out which there are, and take them away. Errors: 40902, 42204, 429."""
        check_name(group, "the group")
        settings = _settings(given)
        key = owner, group, settings.name
        if key in self._known:
            raise HttpError(
                409,
                "Consumer with specified consumer ID already exists in the specified consumer"
                " group.",
                error_code=40902,
                got=f"{group}/{settings.name}",
                remedy="Take another name, or leave it out, or DELETE that one",
            )
        self._hosts = {known: at for known, at in self._hosts.items() if known in self._known}
        count = sum(other == host for other in self._hosts.values())
        share = self._max - self._max // 4
        if len(self._known) >= self._max or count >= share:
            raise HttpError(
                429,
                "too many consumer instances" + " from one address" * (count >= share),
                limit=share if count >= share else self._max,
                remedy="DELETE those that are not used any more; they also end by themselves",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        made = ConsumerInstance(self._cluster, group, settings, self._loop.time(), owner)
        self._known[key] = made
        self._hosts[key] = host
        if self._look is None:
            self._look = self._loop.create_task(self._end_idle())
        return made

    def find(self, group: str, name: str, owner: str = "") -> ConsumerInstance:
        """The instance of that name, if it is that principal's. Errors: 40403."""
        instance = self._known.get((owner, group, name))
        if instance is None:
            raise no_instance(group, name)
        return instance

    def find_for(self, request: Request) -> ConsumerInstance:
        """The instance in a request's path, if it is its caller's. Errors: 40403."""
        return self.find(**request.path_params, owner=identity_of(request.scope).principal)

    @asynccontextmanager
    async def using(self, request: Request) -> AsyncIterator[ConsumerInstance]:
        """Lock the instance in a request's path for it. Errors: 40403; ``Forbidden``: its caller
        has lost the right for one of its topics."""
        instance = self.find_for(request)
        group, name = instance.group, instance.settings.name
        instance.used = self._loop.time()
        async with instance.lock:
            if instance.ended:
                raise no_instance(group, name)
            instance.limit_to(identity_of(request.scope).rights)
            try:
                yield instance
            finally:
                instance.used = self._loop.time()

    async def call(
        self, instance: ConsumerInstance, function: Callable[P, R], *args: P.args, **named: P.kwargs
    ) -> R:
        """Call what uses an instance, in a thread. Errors: as of ``run``."""
        return await self.run(_alone, instance, lambda: function(*args, **named))

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Call what waits for Kafka, in a thread. Errors: ``HttpError``."""
        try:
            return await self._loop.run_in_executor(self._pool, lambda: function(*args, **named))
        except (SourceAway, NodeUnreachable) as error:
            raise not_now(error) from error
        except ConsumerFailed as error:
            raise HttpError(500, str(error), error_code=KAFKA_REFUSES) from error
        except DirectoryInUse as error:
            raise illegal_state(error.message, error.remedy) from error

    async def end(self, instance: ConsumerInstance) -> None:
        """End an instance, which leaves its group. A request that waits for records gets those that
        have come."""
        if instance.ended:  # another instance may have its name by now
            return
        self._known.pop((instance.owner, instance.group, instance.settings.name), None)
        instance.ended = True
        async with instance.lock:
            await self.call(instance, instance.close)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._idle_s / 4))
            idle_since = self._loop.time() - self._idle_s
            for instance in list(self._known.values()):
                if instance.used < idle_since and not instance.lock.locked():
                    _log.info(
                        "consumer %s/%s: ended, unused", instance.group, instance.settings.name
                    )
                    try:
                        await self.end(instance)
                    except Exception:
                        _log.exception(
                            "consumer %s/%s: at its end", instance.group, instance.settings.name
                        )

    def close(self) -> None:
        """End all instances, for ``_END_S`` at most: otherwise their groups would wait until the
        brokers notice that they are gone."""
        if self._look is not None:
            self._look.cancel()
        known, self._known = self._known, {}
        for instance in known.values():
            instance.ended = True
        ends = [self._pool.submit(_alone, instance, instance.close) for instance in known.values()]
        wait(ends, _END_S)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _alone(instance: ConsumerInstance, function: Callable[[], R]) -> R:
    """Call it while no other thread uses the instance."""
    with instance.calling:
        return function()


def check_name(name: str, what: str) -> None:
    """Check the name of a group or an instance: it is a part of URLs, and a group's of a path.
    Errors: 42204."""
    if not is_topic(name):
        raise bad_instance(f"unusable name of {what}", got=name, limit=TOPIC_PATTERN)


def _settings(given: InstanceBody) -> InstanceSettings:
    """Errors: 42204."""
    name = f"rest-consumer-{uuid.uuid4()}" if given.name is None else given.name
    check_name(name, "the instance")
    resets = ("earliest", "latest")
    if given.auto_offset_reset not in resets:
        raise _unusable("auto.offset.reset", given.auto_offset_reset, " or ".join(resets))
    return InstanceSettings(
        name,
        _format(given.format),
        given.auto_offset_reset == "latest",
        _flag("auto.commit.enable", given.auto_commit_enable),
        # -1 stands for the default.
        max(1, _number("fetch.min.bytes", given.fetch_min_bytes, -1, BYTES_MAX)),
        _number("consumer.request.timeout.ms", given.request_timeout_ms, 0, TIMEOUT_MAX_MS),
    )


def _format(given: str) -> EmbeddedFormat:
    for embedded in FORMATS:
        if embedded == given:
            return embedded
    raise _unusable("format", given, " or ".join(FORMATS))


def _flag(name: str, given: bool | str) -> bool:
    if isinstance(given, str):
        if given.lower() not in ("true", "false"):
            raise _unusable(name, given, "true or false")
        return given.lower() == "true"
    return given


def _number(name: str, given: int | str, least: int, most: int) -> int:
    text = str(given)
    if not (text.lstrip("-").isascii() and text.lstrip("-").isdecimal() and len(text) < 12):
        raise _unusable(name, given, f"{least} to {most}")
    if not least <= int(text) <= most:
        raise _unusable(name, given, f"{least} to {most}")
    return int(text)


def _unusable(name: str, got: object, limit: str) -> HttpError:
    return bad_instance(f"unusable {name}", place=f"$['{name}']", got=got, limit=limit)
