"""Dead letters: counted, shown, and sent where they were meant to go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ...policy.deadletters import notes_topic
from ...reading.directory import reading
from ...reading.letters.course import RedriveCourse, RedriveOrder
from ...reading.letters.letters import LetterPlace, LetterQuery, any_letters, letters_of
from ...reading.letters.looking import LetterCounts, count_letters, letter_at, letter_fields
from ...reading.letters.notes import Redriven
from ...reading.letters.redrive import redriven_before
from ...reading.letters.source import LetterSource, Topic
from ...reading.visible import MayTopic, visible_topics
from ...security.rights import Operation, Right
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage, Overloaded, SlotwheelError
from ..endpoint import AnyEndpoint, RouteCall, endpoint
from ..errors import HttpError
from ..front.front import Front
from ..jobs import GatewayJob, JobReport
from ..requests import Reply, as_json
from ..services import Services
from .cancellations import DryRunQuery
from .fleetletters import FleetLetters
from .found import header_values
from .letters import DeadLetter, LetterList, LettersQuery, RedriveBody, RedriveSummary, counts_shown

FOREIGN_MAX = 10_000
"""Records after which a topic without a single dead letter is not read on: somebody named a topic
of ordinary messages, which may be long."""
_REFUSED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """A dead-letter topic that is being read. ``damage``: what could not be read, a line each."""

    source: LetterSource
    topic: str
    opened: Topic
    damage: list[str]
    may: MayTopic | None = None
    """Tells of a topic whether letters that were meant for it may be seen; None: all may, and those
    that do not say where they were meant to go."""

    def read(self, wanted: LetterQuery, seconds: float | None = None) -> Iterator[pa.RecordBatch]:
        """The letters that are wanted, schema ``LETTER``. ``seconds``: reading ends after so long,
        and ``damage`` says where. Errors: ``HttpError`` 422: no dead letters lie there; those of
        the topic."""
        began, count, known = time.monotonic(), 0, False
        for records in self.opened.batches():
            if seconds is not None and count and time.monotonic() - began > seconds:
                self.damage.append(
                    f"what stands behind its first {count:,} records: one answer counts for"
                    f" {seconds:g} s"
                )
                return
            count += records.num_rows
            known = known or any_letters(records)
            if not known and count >= FOREIGN_MAX:
                raise HttpError(
                    422,
                    "no topic of dead letters: none of its first records says why it is dead",
                    place="topic",
                    got=self.topic,
                    limit=f"a dead letter among the first {FOREIGN_MAX:,} records",
                    remedy="Name a topic in which dead letters lie",
                )
            letters = self._visible(wanted.of(letters_of(records)))
            if letters.num_rows:
                yield letters

    def _visible(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        if self.may is None:
            return letters
        return letters.filter(visible_topics(letters.column("for_topic"), self.may))

    def redriven(self, *, whole: bool = False) -> Redriven:
        return redriven_before(self.source, self.topic, self.opened, whole=whole)


@contextmanager
def open_letters(
    services: Services,
    topic: str | None,
    *,
    embedded: bool = False,
    right: Right = Right.READ,
) -> Iterator[OpenLetters]:
    """The dead-letter topic in Kafka; in the data directory if the gateway knows no Kafka, or with
    ``embedded``. ``topic``: None or empty: that of the node. ``right``: the caller sees letters
    that were meant for topics for which it has this right, and a topic of letters that it names
    has to be one of them, or the node's. Otherwise it could find out which topics there are, and
    have letters redriven that it has forged in a topic of its own. Blocks. Errors: ``HttpError``
    404: no such topic, or neither Kafka nor a directory; those of Kafka."""
    settings, damage = services.settings, list[str]()
    topic = topic or settings.dead_letter_topic
    check_topic(notes_topic(topic))
    with ExitStack() as stack:
        if settings.bootstrap is not None and not embedded:
            kafka = dict(settings.kafka)
            source = LetterSource(None, settings.bootstrap, kafka, damage.append)
        elif settings.data is not None:
            files = stack.enter_context(reading(settings.data))
            source = LetterSource(files, "", {}, damage.append)
        else:
            raise HttpError(
                404,
                "this gateway knows no topics",
                remedy="Start it beside a node, or with --data or --bootstrap",
            )
        may = services.topics_for(right)
        hidden = HttpError(404, "no such topic of dead letters", place="topic", got=topic)
        if may is not None and topic != settings.dead_letter_topic and not may(topic):
            raise hidden
        try:
            opened = stack.enter_context(source.opened(topic))
        except InvalidMessage as error:
            if may is not None:  # the remedy names topics that there are
                raise hidden from None
            raise HttpError(
                404, error.message, place="topic", got=topic, remedy=error.remedy
            ) from None
        yield OpenLetters(source, topic, opened, damage, may)


async def list_letters(call: RouteCall[LettersQuery, None]) -> Reply:
    """Count dead letters by reason and by the topic that they were meant for, and show the first
    ones. The topic is read up to its present end, for 20 s at most: ``damage`` says how far that
    was. ``kept_by_node`` counts letters that Kafka's topic did not take."""
    return as_json(await found_letters(call.services, call.query))


async def found_letters(services: Services, query: LettersQuery) -> LetterList:
    """Counts of the wanted letters, and the first ones. Errors: as of ``open_letters``; of a fleet
    as of ``Front.ask_each``."""

    async def of_kafka() -> LetterList:
        return await services.letters.run(_listed_letters, services, query)

    if services.front is None:
        return await of_kafka()
    ours = of_kafka if services.settings.bootstrap is not None else None
    return await _over_fleet(services, services.front, query.topic).listed(query, ours)


def _over_fleet(services: Services, front: Front, topic: str | None) -> FleetLetters:
    ranked = front.ranked(topic or services.settings.dead_letter_topic)
    topics = {right: services.patterns_for(right) for right in (Right.READ, Right.REDRIVE)}
    return FleetLetters(front, ranked, topics)


def _listed_letters(services: Services, query: LettersQuery) -> LetterList:
    counts: LetterCounts = Counter()
    shown: list[DeadLetter] = []
    damage: list[str] = []
    in_kafka = services.settings.bootstrap is not None
    kept_alone = query.embedded and in_kafka
    try:
        with open_letters(services, query.topic, embedded=query.embedded) as letters:
            redriven = letters.redriven()
            for batch in letters.read(query, services.settings.letters_s):
                again = redriven.has(batch)
                counts.update(count_letters(batch, again))
                left = query.limit - len(shown)
                if left:
                    shown += _shown(batch.slice(0, left), again.tolist())
            damage += letters.damage
    except HttpError as error:
        absent = error.status == 404 and (query.embedded or query.topic is None)
        of_fleet = services.front is not None
        if not (absent or kept_alone) or (services.settings.data is None and not of_fleet):
            raise
        # In a data directory nothing was ever buried then; before a Kafka nobody knows.
        if in_kafka and not kept_alone:
            damage.append(f"{error.message}: {error.got}")
    kept = 0 if kept_alone else _kept_by_node(services, query, damage)
    is_limited = services.topics_for(Right.READ) is not None
    return LetterList(counts_shown(counts), shown, damage, kept, is_limited, in_kafka)


def _kept_by_node(services: Services, query: LettersQuery, damage: list[str]) -> int:
    """How many letters a node with a Kafka keeps in its data directory, because Kafka did not take
    them. ``damage``: gets a line for what could not be read."""
    if services.settings.bootstrap is None or services.settings.data is None:
        return 0
    try:
        with open_letters(services, query.topic, embedded=True) as letters:
            batches = letters.read(query, services.settings.letters_s)
            counts = [batch.num_rows for batch in batches]
            damage += letters.damage
            return sum(counts)
    except HttpError as error:
        if error.status not in (404, 422):
            raise
        return 0  # there is no such topic, or no letter in it: Kafka took them all


def _shown(batch: pa.RecordBatch, redriven: list[bool]) -> list[DeadLetter]:
    return [
        DeadLetter(redriven=again, **{**fields, "headers": header_values(fields["headers"])})
        for fields, again in zip(letter_fields(batch), redriven, strict=False)
    ]


async def get_letter(call: RouteCall[LetterPlace, None]) -> Reply:
    """Show a dead letter, by its partition and position in the topic of the dead letters."""
    place = call.path["partition"], call.path["position"]
    return as_json(await found_letter(call.services, call.query.topic, place))


async def found_letter(services: Services, topic: str | None, place: tuple[int, int]) -> DeadLetter:
    """The letter at a partition and position of a topic. Errors: ``HttpError`` 404; as of
    ``FleetLetters.letter``."""
    front = services.front
    in_kafka = services.settings.bootstrap is not None and front is not None
    if front is None or (in_kafka and len(front.names) > 1):
        return await services.letters.run(letter_in, services, topic, place)
    return await _over_fleet(services, front, topic).letter(topic, place)


def letter_in(services: Services, topic: str | None, place: tuple[int, int]) -> DeadLetter:
    """The letter at a partition and position of a topic. Blocks. Errors: ``HttpError`` 404."""
    if max(place) < 1 << 63:
        with open_letters(services, topic) as letters:
            letters.opened.narrow(*place)
            for batch in letters.read(LetterQuery()):
                row = letter_at(batch, *place)
                if row.num_rows:
                    (shown,) = _shown(row, letters.redriven().has(row).tolist())
                    return shown
    raise HttpError(
        404,
        "no such dead letter",
        place="path",
        got="{}/{}".format(*place),
        remedy="/v1/dead lists letters with their partitions and positions",
    )


async def begin_redrive(call: RouteCall[DryRunQuery, RedriveBody]) -> Reply:
    """Send dead letters again to the topics that they were meant for, each of them once, however
    often this is asked for. They are counted first; with ``dry_run`` that is all, and the answer is
    200. Otherwise a job sends them, and is answered 202."""
    if call.query.dry_run:
        return as_json(await counted_redrive(call.services, call.body))
    return as_json((await start_redrive(call.services, call.body)).report(), 202)


async def counted_redrive(services: Services, order: RedriveOrder) -> RedriveSummary:
    """How many letters a redrive would send, and where to. Errors: as of ``open_letters``;
    ``InvalidConfiguration``."""
    front = services.front
    if front is not None and services.settings.bootstrap is None:
        _check_order(services, order)
        counted = await _over_fleet(services, front, order.topic).counted(order)
        return msgspec.convert(counted.summary(), RedriveSummary)

    def count() -> RedriveSummary:
        with ExitStack() as stack:
            summary = _counted(stack, services, order, dry_run=True).summary()
            return msgspec.convert(summary, RedriveSummary)

    return await services.redrives.run(count)


async def start_redrive(
    services: Services, order: RedriveOrder, letters_max: int | None = None
) -> GatewayJob:
    """A job that redrives. Errors: as of ``RunningRedrive``; ``HttpError`` 409: there are more than
    ``letters_max`` letters, and the job is not begun; ``Overloaded``."""
    front = services.front
    if front is not None and services.settings.bootstrap is None:
        return await _redrive_everywhere(services, front, order, letters_max)
    redrive: RunningRedrive = await services.redrives.run(RunningRedrive, services, order)
    letters = redrive.course.counts.letters
    try:
        if letters_max is not None and letters > letters_max:
            raise HttpError(409, "there are more letters by now", got=letters, limit=letters_max)
        job = GatewayJob(
            "redrive",
            letters,
            redrive.summary,
            services.identity.principal,
            services.demand_again(Operation.REDRIVE),
        )
        services.jobs.start(job, redrive.run)
    except (HttpError, Overloaded):
        redrive.close()
        raise
    return job


async def _redrive_everywhere(
    services: Services, front: Front, order: RedriveOrder, letters_max: int | None
) -> GatewayJob:
    """A job that has the wheels redrive their letters."""
    _check_order(services, order)
    work = await _over_fleet(services, front, order.topic).counted(order)
    letters = work.letters
    if letters_max is not None and letters > letters_max:
        raise HttpError(409, "there are more letters by now", got=letters, limit=letters_max)
    job = GatewayJob(
        "redrive",
        letters,
        work.summary,
        services.identity.principal,
        services.demand_again(Operation.REDRIVE),
    )
    services.jobs.start(job, lambda running: work.run(running.advance, running.stopped))
    return job


def _check_order(services: Services, order: RedriveOrder) -> None:
    """Errors: ``InvalidMessage``: letters cannot go there; ``Forbidden``."""
    order.check_target(order.topic or services.settings.dead_letter_topic)
    if order.to_topic is not None:
        services.authenticator.demand_topics(services.identity, Operation.REDRIVE, [order.to_topic])


def _counted(
    stack: ExitStack, services: Services, order: RedriveOrder, *, dry_run: bool
) -> RedriveCourse:
    _check_order(services, order)
    letters = stack.enter_context(open_letters(services, order.topic, right=Right.REDRIVE))
    course = RedriveCourse(
        order,
        letters.source,
        letters.topic,
        letters.opened,
        letters.redriven(whole=True),
        # Of a fleet one wheel has to send all, or two redrives would not know of each other.
        address=services.settings.at_nodes
        if services.front is None
        else services.front.nodes[services.front.ranked(letters.topic)[0]],
        timeout_s=services.settings.answer_s,
        dry_run=dry_run,
    )
    stack.enter_context(course).count(letters.read(order))
    return course


class RunningRedrive:
    """A redrive as a job's work: counted when it is made, sent by ``run``. Errors: as of
    ``open_letters`` and ``RedriveCourse.check``, so that what is sure to fail begins no job."""

    def __init__(self, services: Services, order: RedriveOrder) -> None:
        self._refused: list[dict[str, Any]] = []
        with ExitStack() as stack:
            self.course = _counted(stack, services, order, dry_run=False)
            self.course.check()
            self.close = stack.pop_all().close

    def summary(self) -> dict[str, Any]:
        return {**self.course.summary(), "refusals": list(self._refused)}

    def run(self, job: GatewayJob) -> None:
        def refused(place: tuple[int, int], error: SlotwheelError) -> None:
            if len(self._refused) < _REFUSED_SHOWN:
                self._refused.append({"letter": "{}/{}".format(*place), "error": error.to_wire()})

        try:
            if job.total:
                self.course.send(refused, job.advance, job.stopped)
        finally:
            self.close()


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.LETTERS,
        "GET",
        "/v1/dead",
        list_letters,
        {200: LetterList},
        (404,),
        name="listDeadLetters",
    ),
    endpoint(
        Operation.LETTERS,
        "GET",
        "/v1/dead/{partition:int}/{position:int}",
        get_letter,
        {200: DeadLetter},
        (404,),
        name="getDeadLetter",
    ),
    endpoint(
        Operation.REDRIVE,
        "POST",
        "/v1/dead/redrive",
        begin_redrive,
        {200: RedriveSummary, 202: JobReport},
        (404,),
        name="redriveDeadLetters",
    ),
]
