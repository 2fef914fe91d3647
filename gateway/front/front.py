"""The wheels of a fleet, as the gateway over them asks for what their directories hold.

Rules
- An answer is joined from those of all wheels by their sums and by the order of due times; one of
  a wheel that does not answer is missing, and the answer says so and is not complete.
- A page ends where the first of the wheels' pages ends that has messages behind it: behind that,
  messages of this wheel are missing.

*Example.* North has messages due at 1, 2, 9 and South at 3, 4, 5; pages have two. North's page ends
at 2 and South's at 4, so the joined one is 1, 2, and its token is behind North's offset at 2.
South is asked for what is behind 2 then, and North for what is behind its last message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...client.httpconnection import GatewayAccess
from ...fleet.file import read_fleet
from ...fleet.fleet import Fleet
from ...fleet.wheels import WheelState
from ...policy.parameters import query_of
from ...reading.search.query import INT64_END, CountQuery, PageKey, PageQuery, Query
from ...security.secretplace import SecretPlace
from ...wheel.errors import NodeUnreachable
from ...wheel.ids import MessageId
from ..settings import GatewaySettings
from ..v1.cancellations import Where
from ..v1.found import FoundMessage
from ..v1.searching import FoundMessages, KnownMessage, PendingCounts, SlotCount
from .asking import WheelGateways, joined
from .cancelling import FleetCancellation

Topics = Sequence[str] | None
"""Patterns of the topics that a caller has; None: all."""


@dataclass(frozen=True, slots=True)
class Front:
    """The wheels of ``fleet`` that are asked: all, or one of them."""

    fleet: Fleet
    gateways: WheelGateways
    names: tuple[str, ...]

    def narrowed(self, wheel: str) -> Front:
        """The same for one wheel alone. Errors: ``InvalidMessage``: there is none of that name."""
        self.fleet.wheel(wheel)
        return replace(self, names=(wheel,))

    def _everywhere(self, path: str) -> dict[str, str]:
        return dict.fromkeys(self.names, path)

    # Search

    async def page(
        self, query: Query, after: PageKey | None, limit: int, topics: Topics
    ) -> FoundMessages:
        """The page of matches behind ``after``, in the order of due time, wheel and offset.
        Errors: as of ``WheelGateways.ask``."""
        asked = {
            name: PageQuery(**_fields(query), limit=limit, page=_behind(after, name))
            for name in self.names
        }
        questions = {name: f"/v1/messages?{query_of(each)}" for name, each in asked.items()}
        pages, missing = await self.gateways.ask_each(questions, FoundMessages, topics=topics)
        return merged_pages(pages, limit, missing)

    async def counts(
        self, query: Query, by: Literal["slot", "topic"] | None, topics: Topics
    ) -> PendingCounts:
        """The sums of all wheels. Errors: as of ``page``."""
        asked = query_of(CountQuery(**_fields(query), by=by))
        questions = self._everywhere(f"/v1/messages/count?{asked}")
        counts, missing = await self.gateways.ask_each(questions, PendingCounts, topics=topics)
        return merged_counts(counts, by, missing)

    async def known(self, message_id: str, topics: Topics) -> KnownMessage:
        """A message, by the wheel that its id names. Errors: as of ``page``."""
        wheel = wheel_of(message_id)
        if wheel not in self.names:
            return _unknown(message_id, f"the fleet has no wheel {wheel!r}")
        path = f"/v1/messages/{quote(message_id, safe='')}"
        found, missing = await self.gateways.ask_each({wheel: path}, KnownMessage, topics=topics)
        return found[wheel] if found else _unknown(message_id, missing[0])

    async def cancellation(self, where: Where, topics: Topics) -> FleetCancellation:
        """A cancel of all matches, which has not begun."""
        return FleetCancellation(self.gateways, self.names, where, topics)

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
        """The state of each wheel that is asked: ``Fleet.status``. Blocks."""
        found = self.fleet.status()
        wheels = {name: found["wheels"][name] for name in self.names}
        complete = all(wheel["status"] is not None for wheel in wheels.values())
        return {"complete": complete, "wheels": wheels}

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
    fleet = Fleet({name: settings.way_to(given) for name, given in file.wheels.items()}, **client)
    fleet.wait_until_asked()
    addresses = [address for given in file.gateways.values() for address in given]
    is_secure = any(address.startswith("https://") for address in addresses)
    token = None if settings.token is None else SecretPlace.parse(settings.token)
    access = GatewayAccess(settings.calling if is_secure else None, token)
    gateways = WheelGateways(fleet.names, file.gateways, access)
    return Front(fleet, gateways, tuple(fleet.names))


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


def wheel_of(message_id: str) -> str:
    """The wheel that an id names. Errors: ``UnknownId``."""
    return MessageId.parse(message_id).group


def _fields(query: Query) -> dict[str, Any]:
    """The conditions of a question, without what else it says."""
    return {name: getattr(query, name) for name in Query.__struct_fields__}


def _behind(after: PageKey | None, wheel: str) -> PageKey | None:
    """Where the page of a wheel begins, if that of all begins behind ``after``."""
    if after is None or after.wheel == wheel:
        return after and after._replace(wheel="")
    return PageKey(after.due, INT64_END - 1 if wheel < after.wheel else -1)


def key_of(message: FoundMessage) -> tuple[int, str, int]:
    """The place of a message among those of all wheels."""
    name = MessageId.parse(message.id)
    return message.due_ms, name.group, name.offset


def merged_pages(
    pages: Mapping[str, FoundMessages], limit: int, missing: Sequence[str]
) -> FoundMessages:
    """A page of at most ``limit`` messages out of those of several wheels. ``missing``: a line for
    each wheel that is not among them."""
    ends = [
        (end.due, name, end.offset)
        for name, page in pages.items()
        if page.next is not None
        for end in [PageKey.parse(page.next)]
    ]
    end = min(ends, default=None)
    messages = sorted((each for page in pages.values() for each in page.messages), key=key_of)
    if end is not None:
        messages = [message for message in messages if key_of(message) <= end]
    if len(messages) > limit:
        messages = messages[:limit]
        end = key_of(messages[-1])
    following = None
    if end is not None:
        due, wheel, offset = end
        following = str(PageKey(due, offset, wheel))
    problems = [*missing, *joined((page.problems for page in pages.values()), pages)]
    return FoundMessages(
        next=following,
        complete=not problems,
        looked_through=sum(page.looked_through for page in pages.values()),
        read_point=None,
        problems=problems,
        limited_by_rights=any(page.limited_by_rights for page in pages.values()),
        messages=messages,
    )


def merged_counts(
    counts: Mapping[str, PendingCounts],
    by: Literal["slot", "topic"] | None,
    missing: Sequence[str],
) -> PendingCounts:
    """The sums of several wheels; slots are one if they begin and end together."""
    slots: Counter[tuple[int, int]] = Counter()
    topics: Counter[str] = Counter()
    for counted in counts.values():
        for slot in counted.slots or ():
            slots[slot.from_ms, slot.seconds] += slot.messages
        topics.update(counted.topics or {})
    problems = [*missing, *joined((each.problems for each in counts.values()), counts)]
    in_order = [SlotCount(from_ms, count, s) for (from_ms, s), count in sorted(slots.items())]
    return PendingCounts(
        messages=sum(each.messages for each in counts.values()),
        complete=not problems,
        looked_through=sum(each.looked_through for each in counts.values()),
        read_point=None,
        problems=problems,
        limited_by_rights=any(each.limited_by_rights for each in counts.values()),
        slots=in_order if by == "slot" else None,
        topics=dict(topics) if by == "topic" else None,
    )


def _unknown(message_id: str, why: str) -> KnownMessage:
    return KnownMessage(message_id, "unknown", why, None, None, None, None, None)
