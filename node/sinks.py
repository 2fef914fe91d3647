"""A node's ways in and out by its configuration: sinks, dead letters, delay topics.

A node imports Kafka's clients only if it uses them: they are a fifth of the time to start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..broker.settings import CONFLUENT as CONFLUENT_KAFKA
from ..broker.settings import KAFKA_PYTHON, check
from ..delivery.deadletters import DeadLetters
from ..delivery.departures import DepartureKeeper, KeptDepartures
from ..delivery.embedded.exactly_once import EmbeddedExactlyOnce
from ..delivery.embedded.sink import EmbeddedSink
from ..delivery.kafka.exactly_once import KafkaExactlyOnce
from ..delivery.kafka.plan import KafkaSettings
from ..delivery.kafka.sink import KafkaSink
from ..delivery.kafka.topicbook import AnyTopic, TopicBook
from ..delivery.ports import DeliveryEvents
from ..delivery.semantics import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, AtLeastOnce, AtMostOnce
from ..delivery.sink import Sink
from ..security.principals import Authenticator
from ..wheel.files import Files
from ..wheel.ids import IdMint
from ..wheel.wheel import Wheel
from .config import CONFLUENT, REFUSE, NodeConfig
from .intake.delay_topic import DelayTopicIntake
from .intake.door import Door
from .intake.fleet import FleetPlace
from .intake.ports import Clock, IntakeEvents, PoliciesPort
from .intake.source_reader import SourceReader


class WaysOut:
    """The sink, the dead letters with their last resort in the data directory, the delivery
    semantics that use both, and the keeper of departures.

    Errors: ``UnsupportedVersion`` for embedded topics; ``MissingExtra``.
    """

    def __init__(
        self,
        config: NodeConfig,
        files: Files,
        mint: IdMint,
        clock: Clock,
        events: DeliveryEvents,
    ) -> None:
        _check_kafka(config)
        embedded = EmbeddedSink(files, mint, clock)
        self._local = embedded
        self._dead_letter_topic = config.dead_letter_topic
        try:
            self.topics = embedded.recover_all()
            self.sink: Sink = _kafka_sink(config, mint) if config.to_kafka else embedded
        except BaseException:
            embedded.close()
            raise
        self.book: TopicBook | None = None
        """The cache of Kafka's topics; None: due messages go to embedded topics."""
        self.door = Door(embedded.topics, clock=clock)
        if isinstance(self.sink, KafkaSink):
            self.book = self.sink.book
            refuses = config.unknown_topics == REFUSE
            known = self.book if refuses else AnyTopic(self.book)
            self.door = Door(known, own=[config.dead_letter_topic], clock=clock)
            self.sink.clocks.alarm = lambda text: events.alarm("clocks-differ", reason=text)
        local = None if self.sink is embedded else embedded
        dead_letters = DeadLetters(self.sink, local, config.dead_letter_topic)
        self.semantics: AtLeastOnce
        if config.delivery == AT_MOST_ONCE:
            self.semantics = AtMostOnce(self.sink, dead_letters)
        elif config.delivery == AT_LEAST_ONCE:
            self.semantics = AtLeastOnce(self.sink, dead_letters)
        elif isinstance(self.sink, KafkaSink):
            self.semantics = KafkaExactlyOnce(
                self.sink,
                config.dead_letter_topic,
                events,
                local=embedded,
                alone=not config.peers,
                accept_repeats=config.accept_repeats,
            )
        else:
            self.semantics = EmbeddedExactlyOnce(
                embedded, dead_letters, files, accept_repeats=config.accept_repeats
            )
        self.departures = DepartureKeeper()
        if config.trace_retain_ms:
            reserve = config.wheel.disk_reserve_bytes
            self.departures = KeptDepartures(files, config.trace_retain_ms, reserve, events)
        if config.delay_topics:
            # Its modules are imported now: when a standby takes over, another version may be
            # installed.
            _reader_of(config)
            _fleet_of(config)

    @property
    def facts(self) -> dict[str, int]:
        """Figures for the status. ``own_dead_letters``: the number of those in the data directory,
        which Kafka's dead-letter topic did not take."""
        if self.sink is self._local:
            return {}
        return {"own_dead_letters": self._local.count(self._dead_letter_topic)}

    def damaged_topics(self) -> dict[str, str]:
        """The errors of segments of embedded topics that were set aside, by path."""
        return self._local.damaged()

    def close(self) -> None:
        self.departures.close()
        self._local.close()
        if self.sink is not self._local:
            self.sink.close()


def _check_kafka(config: NodeConfig) -> None:
    """Refuse settings that would keep a client from its brokers, before the node serves.

    Errors: ``InvalidConfiguration``, ``MissingExtra``."""
    if config.kafka_settings:
        clients = {CONFLUENT_KAFKA if config.sink == CONFLUENT else KAFKA_PYTHON}
        if config.http is not None or config.delay_fleet:  # the gateway's clients, the membership
            clients.add(KAFKA_PYTHON)
        if config.sink == CONFLUENT:
            from ..delivery.kafka.confluent_client import need_extra

            need_extra()
        check(config.kafka_settings, *clients)


def _kafka_sink(config: NodeConfig, mint: IdMint) -> KafkaSink:
    assert config.bootstrap is not None
    kind: type[KafkaSink]
    if config.sink == CONFLUENT:
        from ..delivery.kafka.confluent import ConfluentSink

        kind = ConfluentSink
    else:
        from ..delivery.kafka.kafka_python import KafkaPythonSink

        kind = KafkaPythonSink
    settings = KafkaSettings(config.bootstrap, extra=config.kafka_settings)
    if config.delivery != EXACTLY_ONCE:
        return kind(mint, settings)
    # It is not the group that reads the delay topic: a group that keeps the mark has no members.
    group = f"slotwheel-{config.wheel.group}-mark"
    transactions = kind.make_transactions(settings, group, config.dead_letter_topic)
    return kind(mint, settings, transactions)


def _reader_of(config: NodeConfig) -> Callable[[], SourceReader]:
    assert config.bootstrap is not None
    group = config.delay_fleet or f"slotwheel-{config.wheel.group}"
    if config.sink == CONFLUENT:
        from .intake.confluent_reader import ConfluentReader

        return partial(ConfluentReader, config.bootstrap, group, config.kafka_settings)
    from .intake.kafka_reader import KafkaPythonReader

    return partial(KafkaPythonReader, config.bootstrap, group, config.kafka_settings)


def _fleet_of(config: NodeConfig) -> FleetPlace | None:
    if config.delay_fleet is None:
        return None
    from .intake.kafka_member import KafkaFleetMember

    assert config.bootstrap is not None
    bootstrap, topics, settings = config.bootstrap, config.delay_topics, config.kafka_settings
    return FleetPlace(
        config.delay_fleet,
        config.wheel.group,
        lambda name: KafkaFleetMember(bootstrap, name, topics, settings),
        alone=not config.peers,
    )


def delay_topics(
    config: NodeConfig,
    wheel: Wheel,
    policies: PoliciesPort,
    door: Door,
    clock: Clock,
    events: IntakeEvents,
    authenticator: Authenticator,
) -> DelayTopicIntake | None:
    """The intake of the delay topics; None if the node has none. ``authenticator``: knows their
    rights and quotas."""
    if not config.delay_topics:
        return None
    return DelayTopicIntake(
        wheel,
        _reader_of(config),
        topics=config.delay_topics,
        partitions=config.delay_partitions,
        begin_at=config.delay_from,
        fleet=_fleet_of(config),
        clock=clock,
        events=events,
        dead_topic=config.dead_letter_topic,
        policies=policies,
        door=door,
        authenticator=authenticator,
    )
