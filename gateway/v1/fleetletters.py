"""The dead letters of a fleet: counted, shown, and sent again, by the gateways of its wheels.

Theory: an embedded wheel has its letters in its own data directory. Wheels that deliver into Kafka
have one topic there together, and each keeps what that topic did not take. So each wheel is asked
for its directory first, which is quick and says where its letters lie; then one wheel is asked for
the topic that they share. Otherwise three wheels would count each letter of that topic thrice.

Rules
- Letters of the shared topic are sent again by one wheel alone, the first of those to which the
  topic's name leads, also while that one is away: the turns by which two redrives exclude each
  other are in the log of one wheel, so through two wheels both would send. Whoever redrives by a
  wheel's own gateway or data directory at the same time goes past this rule.
- For looking at them any wheel will do.
- A wheel that does not answer is named, and the others do their part.

*Example.* North and South deliver into Kafka, West has embedded topics. Kafka's topic has 5
letters, South keeps 1, West has 2. The answer counts 7, and 1 kept by a node. A redrive is a job at
West, and one at whichever of North and South ``dead-letters`` leads to: 7 letters, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...policy.parameters import query_of
from ...reading.letters.course import RedriveOrder
from ...reading.letters.letters import LetterPlace
from ...security.rights import Right
from ...wheel.errors import NodeUnreachable
from ..errors import HttpError
from ..front.front import WHEEL, Front
from ..front.jobs import FleetJob, joined_summary
from .joining import of_each
from .letters import DeadLetter, LetterList, LettersQuery, RedriveSummary, counts_shown


class FleetLetters:
    """``ranked``: all wheels of the fleet, in the order to which the topic's name leads;
    ``topics``: patterns of the topics for which the caller has a right; None: all."""

    def __init__(
        self,
        front: Front,
        ranked: Sequence[str],
        topics: Mapping[Right, Sequence[str] | None],
    ) -> None:
        self._front = front
        self._ranked = ranked
        self._topics = topics

    # Looking

    async def listed(
        self, query: LettersQuery, of_kafka: Callable[[], Awaitable[LetterList]] | None
    ) -> LetterList:
        """Counts over all wheels, and the letters that were buried first. ``of_kafka``: counts
        those of Kafka's topic; None: this gateway knows no Kafka, and a wheel is asked. Errors:
        ``HttpError``: the question is at fault."""
        own, missing = await self._lists(self._front.names, query, embedded=True)
        sharing = self._sharing(own)
        shared = None
        if of_kafka is not None:
            shared = await of_kafka()
            sharing = []
        for name in sharing:
            lists, failed = await self._lists([name], query, embedded=query.embedded)
            if name in lists:
                shared = lists[name]
                break
            missing += failed
        return joined_letters(own, shared, query.limit, missing)

    async def _lists(
        self,
        names: Sequence[str],
        query: LettersQuery,
        *,
        embedded: bool,
        right: Right = Right.READ,
    ) -> tuple[dict[str, LetterList], list[str]]:
        path = f"/v1/dead?{query_of(msgspec.structs.replace(query, embedded=embedded))}"
        topics = self._topics[right]
        return await self._front.ask_each(dict.fromkeys(names, path), LetterList, topics=topics)

    def _sharing(self, own: Mapping[str, LetterList]) -> list[str]:
        """The wheels that deliver into Kafka, as far as they answer."""
        return [name for name in self._ranked if name in own and own[name].in_kafka]

    async def letter(self, topic: str | None, place: tuple[int, int]) -> DeadLetter:
        """A letter of the one wheel that is asked; of all, one in Kafka. Errors: ``HttpError`` 404;
        422: it is not said which wheel, and none has a Kafka; ``NodeUnreachable``."""
        path = "/v1/dead/{}/{}?{}".format(*place, query_of(LetterPlace(topic=topic)))
        names = list(self._front.names)
        where = LettersQuery(topic=topic, limit=0)
        own, missing = await self._lists(names, where, embedded=True)
        if len(names) > 1:
            names = self._sharing(own)
            if not names and not missing:
                raise HttpError(
                    422,
                    "each wheel has dead letters of its own",
                    place=f"query {WHEEL}",
                    got="none",
                    limit=", ".join(self._front.names)[:300],
                    remedy=f"Give {WHEEL}=NAME, as /v1/dead shows it",
                )
        topics = self._topics[Right.READ]
        for name in names:
            found, failed = await self._front.ask_each({name: path}, DeadLetter, topics=topics)
            if found:
                in_kafka = name in own and own[name].in_kafka
                return msgspec.structs.replace(found[name], wheel="" if in_kafka else name)
            missing += failed
        raise NodeUnreachable("; ".join(dict.fromkeys(missing)))

    # Sending again

    async def counted(self, order: RedriveOrder) -> FleetRedrive:
        """A redrive that has not begun. Errors: ``HttpError`` 404: no wheel has letters there; the
        order is at fault; ``NodeUnreachable``: no wheel answers that could have letters."""
        names, topics = self._front.names, self._topics[Right.REDRIVE]
        # Whoever may redrive need not be somebody who may read.
        own, missing = await self._lists(
            names,
            LettersQuery(topic=order.topic, limit=0),
            embedded=True,
            right=Right.REDRIVE,
        )
        embedded = [name for name, found in own.items() if not found.in_kafka]
        senders = [name for name in embedded if own[name].counts]
        if any(found.in_kafka for found in own.values()):
            # One that does not answer may be the one: it is not passed over, nor waited for again.
            lead = next(name for name in self._ranked if name not in embedded)
            senders += [lead] if lead in own else []
        if not senders and missing:
            raise NodeUnreachable("; ".join(missing))
        if not senders:
            raise HttpError(
                404,
                "no wheel has a dead letter in this topic",
                place="topic",
                got=order.topic or "the nodes' own",
                remedy="/v1/dead counts the letters of a topic",
            )
        body = msgspec.to_builtins(order)
        counts, failed = await self._front.ask_each(
            dict.fromkeys(senders, "/v1/dead/redrive?dry_run=true"),
            RedriveSummary,
            method="POST",
            body=body,
            topics=topics,
        )
        missing = list(dict.fromkeys([*missing, *failed]))
        if missing and not counts:
            raise NodeUnreachable("; ".join(missing))
        sending = [name for name, counted in counts.items() if counted.letters]
        job = self._front.job("/v1/dead/redrive", body, topics, sending)
        return FleetRedrive(job, counts, missing)


def joined_letters(
    own: Mapping[str, LetterList],
    shared: LetterList | None,
    limit: int,
    missing: Sequence[str],
) -> LetterList:
    """``own``: what is in the data directory of each wheel; ``shared``: what is in Kafka, None: no
    wheel delivers there, or none could tell; ``missing``: a line for each wheel that is absent."""
    embedded = {name: found for name, found in own.items() if not found.in_kafka}
    keeping = [found for found in own.values() if found.in_kafka]
    of_kafka = [] if shared is None else [shared]
    counts: Counter[tuple[str, str | None, bool]] = Counter()
    for found in (*of_kafka, *embedded.values()):
        for row in found.counts:
            counts[row.reason, row.topic, True] += row.redriven
            counts[row.reason, row.topic, False] += row.letters - row.redriven
    letters = [letter for found in of_kafka for letter in found.letters]
    letters += [
        msgspec.structs.replace(letter, wheel=name)
        for name, found in embedded.items()
        for letter in found.letters
    ]
    letters.sort(key=lambda each: (each.buried_ms or 0, each.wheel, each.partition, each.position))
    damage = [*missing, *of_each((found.damage for found in own.values()), own)]
    return LetterList(
        counts_shown(counts),
        letters[:limit],
        [*damage, *(text for found in of_kafka for text in found.damage)],
        kept_by_node=sum(row.letters for found in keeping for row in found.counts),
        limited_by_rights=any(found.limited_by_rights for found in own.values()),
        in_kafka=bool(keeping or of_kafka),
    )


class FleetRedrive:
    """A redrive of several wheels. ``job``: at those that have letters to send; ``counts``: what
    each wheel would send; ``missing``: a line for each of which that is not known."""

    def __init__(
        self, job: FleetJob, counts: Mapping[str, RedriveSummary], missing: Sequence[str]
    ) -> None:
        self._job = job
        self._counts = counts
        self._missing = missing
        self.run = job.run

    @property
    def letters(self) -> int:
        """The number of letters that were counted."""
        return sum(counted.letters for counted in self._counts.values())

    def summary(self) -> dict[str, Any]:
        """The fields of ``RedriveSummary`` by now, and the first ``refusals``: those of the jobs,
        and of a wheel without one what was counted."""
        told = self._job.summaries()
        rest = (
            msgspec.to_builtins(counted)
            for name, counted in self._counts.items()
            if name not in told
        )
        nothing = msgspec.to_builtins(RedriveSummary(0, {}, 0, 0, 0, 0, 0, 0, False, True))
        notes = [*self._missing, *self._job.problems()]
        every = [*told.values(), *rest]
        summary = joined_summary([nothing, *every])
        return {
            **summary,
            "notes_deleted": any(each["notes_deleted"] for each in every),
            "complete": all(each["complete"] for each in every) and not notes,
            "problems": notes,
        }
