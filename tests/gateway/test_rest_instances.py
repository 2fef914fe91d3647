"""Consumer instances of the REST proxy, and who ends them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from slotwheel.gateway.rest.consumer_types import InstanceBody
from slotwheel.gateway.rest.instances import Instances
from support.waiting import eventually


def test_an_unused_instance_that_was_deleted_takes_no_other_one_along() -> None:
    """Its name is given again while those before it in the line are ended."""

    async def main() -> None:
        settings: Any = SimpleNamespace(instances_max=8, instance_idle_s=0.04)
        cluster: Any = None
        instances = Instances(cluster, settings)
        first, old, last = (instances.create("g", InstanceBody(name=one)) for one in "abc")
        first.used = old.used = last.used = float("-inf")
        ends, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def close() -> None:
            loop.call_soon_threadsafe(ends.set)
            assert go_on.wait(60)

        first.close = close  # type: ignore[method-assign]
        await asyncio.wait_for(ends.wait(), 60)
        await instances.end(old)
        new = instances.create("g", InstanceBody(name="b"))
        new.used = float("inf")
        go_on.set()
        async with asyncio.timeout(60):
            while not last.ended:
                await asyncio.sleep(0.001)
        assert instances.find("g", "b") is new
        instances.close()

    asyncio.run(main())


def test_an_instance_is_not_closed_while_a_thread_reads_by_it() -> None:
    """The request was given up, as when the gateway ends: its call goes on."""
    done: list[str] = []
    reads, go_on = threading.Event(), threading.Event()

    def read() -> None:
        reads.set()
        assert go_on.wait(60)
        done.append("read")

    async def main() -> None:
        settings: Any = SimpleNamespace(instances_max=8, instance_idle_s=60)
        cluster: Any = None
        instances = Instances(cluster, settings)
        instance = instances.create("g", InstanceBody())
        instance.close = lambda: done.append("closed")  # type: ignore[method-assign]
        request = asyncio.create_task(instances.call(instance, read))
        while not reads.is_set():
            await asyncio.sleep(0.001)
        request.cancel()
        threading.Timer(0.1, go_on.set).start()
        instances.close()

    asyncio.run(main())
    eventually(lambda: done == ["read", "closed"])
