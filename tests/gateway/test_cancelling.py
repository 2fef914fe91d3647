"""A cancel waits for the node on a thread, and never on the event loop, where all others wait."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from slotwheel.gateway.services import Services
from slotwheel.gateway.v1.cancelling import cancelled

ID = "default.1795834707258.7.00000000"


def test_the_event_loop_goes_on_while_a_node_does_not_answer_a_cancel() -> None:
    silent = threading.Event()

    def cancel(ids: list[str], *, topics: object) -> list[str]:
        assert topics is None
        assert silent.wait(60)
        return ["cancelled"] * len(ids)

    async def ask() -> list[Any]:
        services: Any = SimpleNamespace(
            client=SimpleNamespace(cancel=cancel),
            pool=None,
            patterns_for=lambda _: None,
            run=lambda call: Services.run(services, call),
        )
        asked = asyncio.ensure_future(cancelled(services, [ID, "no id"]))
        await asyncio.sleep(0.05)
        assert not asked.done()
        silent.set()
        return await asked

    answers = asyncio.run(ask())
    assert [(one.id, one.answer) for one in answers] == [(ID, "cancelled"), ("no id", "unknown")]
