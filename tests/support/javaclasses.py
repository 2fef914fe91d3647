"""Keeps the classes that Kafka and Spark load, for the Java processes of the tests.

    python -m support.javaclasses kafka

Tests start some sixty of these processes, and loading and checking classes is 40 % of what a short
one costs. So one process of each is run here for Java to write the archive that
``java.options`` names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer

from .broker import ACLS, Broker
from .java import INTERPRETED, SHORT_LIVED, classes_of

_END_S = 600.0
"""Java writes the archive as it ends: some seconds, on a busy machine minutes."""


def of_kafka(_directory: Path, keep: str) -> None:
    with Broker(settings=ACLS) as broker:
        broker.stop()
        os.environ["JAVA_TOOL_OPTIONS"] = keep
        broker.start()
        topic = broker.create_topic("topic")
        with KafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id="producer"
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"value")
            producer.commit_transaction()
        with KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id="group",
            auto_offset_reset="earliest",
        ) as consumer:
            next(consumer)
        broker.stop(_END_S)


def of_spark(directory: Path, keep: str) -> None:
    from pyspark import SparkContext

    from slotwheel.reading.layout import find
    from slotwheel.replay.proof import prove

    from . import replayrun
    from .spark import spark_session

    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*SHORT_LIVED, *INTERPRETED, keep))
    with spark_session(directory) as session:
        prove(session, find(replayrun.made().write(directory / "peers")))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_S)


PROGRAMS: dict[str, Callable[[Path, str], None]] = {"kafka": of_kafka, "spark": of_spark}


def main(program: str) -> None:
    kept = classes_of(program)
    kept.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="slotwheel-classes-") as directory:
        made = Path(directory) / kept.name
        PROGRAMS[program](Path(directory), f"-XX:ArchiveClassesAtExit={made} -Xlog:disable")
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(made.read_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
