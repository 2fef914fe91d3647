"""Answers of thousands of events are not made on the gateway's loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from slotwheel.gateway.asking import Questions
from slotwheel.gateway.endpoint import NoQuery, RouteCall
from slotwheel.gateway.v1 import tracing
from slotwheel.trace.chains.anomalies import ANOMALY
from slotwheel.trace.chains.chain import Chain, ChainState
from slotwheel.trace.chains.lookup import AnomaliesFound, AnomalyQuery, EventsQuery
from slotwheel.trace.events import STORED
from slotwheel.trace.store import TracePage

_CHAIN = Chain("g.1.2.00000003", ChainState.UNKNOWN, {}, (), (), {}, ())


@pytest.mark.parametrize(
    ("handler", "maker", "query", "found"),
    [
        ("get_chain", "chain_fields", NoQuery(), _CHAIN),
        (
            *("list_events", "event_fields", EventsQuery()),
            TracePage(STORED.empty_table(), None),
        ),
        (
            *("list_anomalies", "anomaly_fields", AnomalyQuery()),
            AnomaliesFound(ANOMALY.empty_table(), {}, ()),
        ),
    ],
)
def test_an_answer_is_made_on_a_thread(
    handler: str, maker: str, query: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    make = getattr(tracing, maker)

    def noted(what: Any) -> Any:
        threads.append(threading.current_thread())
        return make(what)

    def ask(*_: Any, **__: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(found)
        return done

    monkeypatch.setattr(tracing, maker, noted)
    services: Any = SimpleNamespace(
        front=None,
        lookup=SimpleNamespace(ask=ask),
        lookup_questions=Questions(),
        run=asyncio.to_thread,
        topics_for=lambda _: None,
    )
    asked: RouteCall[Any, None] = RouteCall(services, None, {"id": _CHAIN.id}, query, None)
    asyncio.run(getattr(tracing, handler)(asked))
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
