"""The wheels of a fleet, for which a gateway answers: all of them, or one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...client.addresses import Nodes
from ...client.groupstatus import group_status
from ...client.httpconnection import GatewayAccess
from ...fleet.file import read_fleet
from ...fleet.fleet import Fleet
from ...fleet.routing import Routing
from ...fleet.wheels import WheelState
from ...security.secretplace import SecretPlace
from ...wheel.errors import NodeUnreachable
from ..errors import HttpError
from ..settings import GatewaySettings
from .asking import WheelGateways
from .jobs import FleetJob

T = TypeVar("T")
WHEEL = "wheel"
"""The parameter of a query that names the wheel that is asked."""
ASKED_WHEEL = ContextVar("asked wheel", default="")
"""The wheel that the request in whose course this is read is about; empty: it is about all."""


@dataclass(frozen=True, slots=True)
class Front:
    """The wheels of ``fleet`` that are asked: all, or, unless it ``is_whole``, one of them."""

    fleet: Fleet
    gateways: WheelGateways
    names: tuple[str, ...]
    nodes: Mapping[str, Nodes]
    is_whole: bool = True

    def narrowed(self, wheel: str) -> Front:
        """The same for one wheel alone. Errors: ``InvalidMessage``: there is none of that name."""
        self.fleet.wheel(wheel)
        return replace(self, names=(wheel,), is_whole=False)

    # Asking

    async def ask_each(
        self, paths: Mapping[str, str], kind: type[T], **more: Any
    ) -> tuple[dict[str, T], list[str]]:
        """As of ``WheelGateways``."""
        return await self.gateways.ask_each(paths, kind, **more)

    async def ask_all(
        self, path: str, kind: type[T], topics: Sequence[str] | None
    ) -> tuple[dict[str, T], list[str]]:
        """The same question for all wheels: ``WheelGateways.ask_each``."""
        return await self.ask_each(dict.fromkeys(self.names, path), kind, topics=topics)

    async def ask_one(self, path: str, kind: type[T], topics: Sequence[str] | None) -> T:
        """The answer of the one wheel that is asked, to a question whose answers cannot be joined.
        Errors: ``HttpError`` 422: it is not said which one; ``NodeUnreachable``; as of
        ``WheelGateways.ask``."""
        if len(self.names) != 1:
            raise HttpError(
                422,
                "this is answered for one wheel at a time",
                place=f"query {WHEEL}",
                got="none",
                limit=", ".join(self.names)[:300],
                remedy=f"Give {WHEEL}=NAME",
            )
        answers, missing = await self.ask_all(path, kind, topics)
        if missing:
            raise NodeUnreachable(missing[0])
        return answers[self.names[0]]

    def ask_now(
        self, paths: Mapping[str, str], kind: type[T], topics: Sequence[str] | None
    ) -> tuple[dict[str, T], list[str]]:
        """As of ``WheelGateways``."""
        return self.gateways.ask_now(paths, kind, topics)

    def ranked(self, place: str) -> list[str]:
        """All wheels of the fleet, first the one that does work of which one has to do all. It is
        the same list whatever wheels are away, and whichever are asked."""
        return Routing(self.fleet.names).ranked(place.encode())

    def job(
        self,
        path: str,
        body: Any,
        topics: Sequence[str] | None,
        names: Sequence[str] | None = None,
    ) -> FleetJob:
        """A job at each wheel, or at ``names``, which has not begun."""
        names = self.names if names is None else names
        return FleetJob(self.gateways, names, path, body, topics)

    # What a node's own pages are for a wheel

    def node_page(self, path: str) -> dict[str, Any]:
        """``/metrics``, ``/healthz`` and ``/readyz`` of the front, as ``Client.page`` has them of a
        node. It is ready as long as one wheel takes messages, and names those that do not: if it
        were not, a balancer would leave out all fronts for one wheel, and nobody could send."""
        states = self.fleet.states()
        if path == "/metrics":
            gauge = GaugeMetricFamily(
                "slotwheel_fleet_wheel", "1 for the state of each wheel", labels=["wheel", "state"]
            )
            for name, (state, _) in states.items():
                for each in WheelState:
                    gauge.add_metric([name, each.value], float(state is each))
            return _page(200, "text/plain; version=0.0.4", _text_of(gauge))
        reasons = [
            f"the wheel {name} is {state}" + ("" if problem is None else f": {problem.message}")
            for name, (state, problem) in states.items()
            if state is not WheelState.THERE
        ]
        ok = path == "/healthz" or len(reasons) < len(states)
        body = json.dumps({"ok": ok, "reasons": [] if path == "/healthz" else reasons})
        return _page(200 if ok else 503, "application/json", body)

    def status(self) -> dict[str, Any]:
        """The state of each wheel: ``Fleet.status``; or the status of the one that is asked, as of
        ``group_status``. Blocks. Errors: ``NodeUnreachable``."""
        if self.is_whole:
            return self.fleet.status()
        return group_status(self.fleet.wheel(self.names[0]))

    def pending_status(self) -> dict[str, Any]:
        """How much is pending for each prefix, over all wheels, as a node's status has it. Errors:
        ``NodeUnreachable``: of one it is not known."""
        rows: dict[str, Counter[str]] = {}
        for name, wheel in self.fleet.status()["wheels"].items():
            if wheel["status"] is None:
                raise NodeUnreachable(f"the wheel {name} does not answer")
            for row in wheel["status"].get("pending_by_prefix", {"prefixes": ()})["prefixes"]:
                counts = {"rows": row["rows"], "bytes": row["bytes"]}
                rows.setdefault(row["prefix"], Counter()).update(counts)
        return {
            "pending_by_prefix": {
                "prefixes": [{"prefix": prefix, **counts} for prefix, counts in rows.items()]
            }
        }


def made_front(settings: GatewaySettings, path: Path, client: Mapping[str, Any]) -> Front:
    """The front of a fleet's file. ``client``: options of the wheels' clients. Errors:
    ``InvalidConfiguration``."""
    file = read_fleet(path)
    nodes = {name: settings.way_to(given) for name, given in file.wheels.items()}
    fleet = Fleet(nodes, **client)
    fleet.wait_until_asked()
    addresses = [address for given in file.gateways.values() for address in given]
    is_secure = any(address.startswith("https://") for address in addresses)
    token = None if settings.token is None else SecretPlace.parse(settings.token)
    access = GatewayAccess(settings.calling if is_secure else None, token)
    gateways = WheelGateways(fleet.names, file.gateways, access)
    return Front(fleet, gateways, tuple(fleet.names), nodes)


def _page(status: int, kind: str, body: str) -> dict[str, Any]:
    return {"status": status, "type": kind, "body": body}


def _text_of(metric: Metric) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(metric))
    return generate_latest(registry).decode()


class _Given(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]
