"""A node's ways in and out by its configuration: sinks, dead letters, the delay topic.

A node imports Kafka's clients only if it uses them: they are a fifth of the time to start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..delivery.deadletters import DeadLetters
from ..delivery.embedded.sink import EmbeddedSink
from ..delivery.kafka.sink import KafkaSettings
from ..delivery.sink import Sink
from ..intake.delay_topic import DelayTopicIntake, SourceReader
from ..intake.ports import Clock, IntakeEvents
from ..wheel.files import Files
from ..wheel.ids import IdMint
from ..wheel.wheel import Wheel
from .config import CONFLUENT, NodeConfig


class WaysOut:
    """The sink, and the dead letters with their last resort in the data directory.

    Errors: ``UnsupportedVersion`` for embedded topics; ``MissingExtra``.
    """

    def __init__(self, config: NodeConfig, files: Files, mint: IdMint, clock: Clock) -> None:
        embedded = EmbeddedSink(files, mint, clock)
        self._local = embedded
        try:
            self.topics = embedded.recover_all()
            self.sink: Sink = _kafka_sink(config, mint) if config.to_kafka else embedded
        except BaseException:
            embedded.close()
            raise
        local = None if self.sink is embedded else embedded
        self.dead_letters = DeadLetters(self.sink, local, config.dead_letter_topic)
        if config.delay_topic is not None:
            # Now, not when a standby takes over: by then another version may be installed.
            _reader_of(config)

    def damaged_topics(self) -> dict[str, str]:
        """The errors of segments of embedded topics that were set aside, by path."""
        return self._local.damaged()

    def close(self) -> None:
        self._local.close()
        if self.sink is not self._local:
            self.sink.close()


def _kafka_sink(config: NodeConfig, mint: IdMint) -> Sink:
    assert config.bootstrap is not None
    if config.sink == CONFLUENT:
        from ..delivery.kafka.confluent import ConfluentSink

        extra: dict[str, Any] = dict(config.kafka_settings)
        return ConfluentSink(mint, KafkaSettings(config.bootstrap, extra=extra))
    from ..delivery.kafka.kafka_python import KafkaPythonSink, typed

    extra = typed(config.kafka_settings)
    return KafkaPythonSink(mint, KafkaSettings(config.bootstrap, extra=extra))


def _reader_of(config: NodeConfig) -> Callable[[str, str, int, str], SourceReader]:
    """Load what reads a delay topic with the sink's client."""
    if config.sink == CONFLUENT:
        from ..intake.confluent_reader import ConfluentReader

        return ConfluentReader
    from ..intake.kafka_reader import KafkaPythonReader

    return KafkaPythonReader


def delay_topic(
    config: NodeConfig, wheel: Wheel, clock: Clock, events: IntakeEvents
) -> DelayTopicIntake | None:
    """The intake of the delay topic; None if the node has none."""
    topic, bootstrap = config.delay_topic, config.bootstrap
    if topic is None or bootstrap is None:
        return None
    group = f"slotwheel-{config.wheel.group}"

    def open_reader() -> SourceReader:
        return _reader_of(config)(bootstrap, topic, config.delay_partition, group)

    return DelayTopicIntake(
        wheel,
        open_reader,
        topic=topic,
        partition=config.delay_partition,
        clock=clock,
        events=events,
        dead_topic=config.dead_letter_topic,
    )
