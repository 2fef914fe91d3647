"""Records that were delivered to Kafka: the existing topics, and Spark's Kafka source of them.

Theory: the files name the topics that messages are for, so the topics are known when the files have
been read. The brokers are asked by a plain client before that: Spark would notice only after
minutes that no broker answers, and report it in Java's words.

Spark's Kafka connector is not part of PySpark. Either Spark fetches it from Maven Central, in the
version of the PySpark that is installed, or all of its jars lie in a directory:

    org.apache.spark:spark-sql-kafka-0-10_2.13           the connector
        org.apache.spark:spark-token-provider-kafka-0-10_2.13
        org.apache.kafka:kafka-clients
        org.apache.commons:commons-pool2

Rules
- On the driver only: tasks have no Kafka client but Spark's.
- Committed records of all partitions are read, from the first that is kept to the last one when the
  source is made, which is after the layout was listed.
- Behind an open transaction, whoever began it, no record can be read. A proof that ended there
  would call messages lost that are in their topic, so it waits, and after a time fails.
- Records that Kafka has deleted cannot be seen: messages among them count as lost. A note says that
  some were deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ...broker.reach import why_not
from ...broker.settings import JAVA, KAFKA_PYTHON, ClientKind, check, for_java, for_kafka_python
from ...broker.topicids import id_text
from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...wheel.errors import InvalidConfiguration, SlotwheelError
from .summary import TOPICS_MAX

FORMAT = "kafka"
CONNECTOR = "spark-sql-kafka-0-10_2.13"
PACKAGE = f"org.apache.spark:{CONNECTOR}:{pyspark.__version__}"
JARS, PACKAGES = "spark.jars", "spark.jars.packages"
_REMEDY = "Put it and what it needs into a directory (docs/replay.md says what) and give that with"
_JAVA_ROOMS = ("org.apache.kafka.", "org.apache.spark.sql.kafka010.")
_JAVA_ERROR = re.compile(r"(?:Timeout|Kafka|Offset|Partition)\w*Exception: ([^\n]+)")
_TIMEOUT_MS = 5_000
_SILENT_MS = 15_000
_OPEN_S = 90.0
"""How long an open transaction is waited for, s: a broker ends it after 60 s, unless its producer
has asked for more."""
_NAMED_MAX = 20
"""Topics or partitions that a note names at most."""


class KafkaUnreachable(SlotwheelError):
    """No broker answered in time, or one answered with an error."""

    code = "kafka-unreachable"
    retryable = True


class TransactionOpen(SlotwheelError):
    """A transaction keeps records from being read."""

    code = "transaction-open"
    retryable = True


class KafkaTopics:
    """Topics in Kafka. ``names``: the topics to read; empty: those that messages are for. The topic
    of the dead letters is read in any case, if it exists."""

    def __init__(
        self,
        bootstrap: str,
        names: Sequence[str] = (),
        dead_letters: str = DEAD_LETTER_TOPIC,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap, self._settings = bootstrap, settings or {}
        self._names = tuple(dict.fromkeys(names))
        self._dead_letters = dead_letters
        self.notes: list[str] = []
        """The notes that ``records`` has made, as sentences."""
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic that was read; empty before ``records``."""

    def check(self) -> None:
        """Ask the brokers before anything is read. Errors: ``KafkaUnreachable``;
        ``InvalidConfiguration``: a setting that is not usable, or a topic that was named does not
        exist."""
        check(self._settings, KAFKA_PYTHON, JAVA)
        with self._admin() as admin:
            self._check(_partitions(admin))

    def sources(self) -> dict[str, str]:
        """``CLUSTER/TOPIC-ID`` by name: a topic that was made anew under its old name has another
        one. Topics that do not exist, or have no id, are left out. Errors: as of ``check``."""
        with self._admin() as admin:
            cluster = admin.describe_cluster()["cluster_id"]
            topic_ids = {
                topic["name"]: id_text(topic["topic_id"])
                for topic in admin.describe_topics()
                if topic["error_code"] == 0
            }
        names = (*self._names, self._dead_letters)
        return {name: f"{cluster}/{topic_ids[name]}" for name in names if topic_ids.get(name)}

    def records(self, spark: SparkSession, topics: Collection[str] | None) -> DataFrame | None:
        """Spark's source of those topics that exist; None: no topic does. ``topics``: those that
        messages are for; None: too many to be listed. Errors: as of ``check``, and
        ``TransactionOpen``."""
        if topics is None and not self._names:
            raise InvalidConfiguration(
                "the messages are for too many topics",
                limit=TOPICS_MAX,
                remedy="Name those that are to be read: --topic T, once for each",
            )
        wanted = set(self._names or topics or ())
        with self._admin() as admin:
            known = _partitions(admin)
            self._check(known)
            names = sorted((wanted | {self._dead_letters}) & known.keys())
            self.partitions = {name: len(known[name]) for name in names}
            parts = [(name, number) for name in names for number in known[name]]
            cut = _cut(admin, parts)
            wait_for_transactions(admin, parts)
        missing = sorted(wanted - known.keys())
        self.notes = []
        if missing:
            self.notes.append(f"Kafka has no topic {_listed(missing)}")
        if cut:
            self.notes.append(
                f"Kafka has deleted the records of {_listed(cut)}: messages that were among them"
                " count as lost"
            )
        return self._source(spark, names) if names else None

    def failure(self, error: Exception) -> KafkaUnreachable | None:
        """The error for a failure of Spark's source; None: something else failed."""
        text = str(error)
        if "Traceback" in text or not any(room in text for room in _JAVA_ROOMS):
            return None
        match = _JAVA_ERROR.search(text)
        reason = match[1] if match else text.partition("\n")[0]
        return KafkaUnreachable(
            f"Kafka at {self._bootstrap} failed while it was read: {reason}",
            remedy="Try again when its brokers answer",
        )

    def _source(self, spark: SparkSession, topics: Sequence[str]) -> DataFrame:
        options = {
            **source_options(self._bootstrap, self._settings),
            "subscribe": ",".join(topics),
            "endingOffsets": "latest",
            # A failing broker ends the proof within a minute instead of three.
            "kafka.default.api.timeout.ms": str(_SILENT_MS),
            "kafka.request.timeout.ms": str(_SILENT_MS),
            "kafkaConsumer.pollTimeoutMs": str(2 * _SILENT_MS),
            "fetchOffset.numRetries": "1",
            # Even a topic of one partition is read by all cores.
            "minPartitions": str(spark.sparkContext.defaultParallelism),
        }
        try:
            return spark.read.format(FORMAT).options(**options).load()
        except AnalysisException as error:
            raise InvalidConfiguration(
                "this Spark has no Kafka connector",
                remedy=f"Give it one: spark-submit --packages {PACKAGE}",
            ) from error

    def _check(self, known: Collection[str]) -> None:
        missing = [name for name in self._names if name not in known]
        if missing:
            raise InvalidConfiguration(
                f"Kafka at {self._bootstrap} has no topic {_listed(missing)}",
                remedy="Without --topic, all topics are read that messages are for",
            )

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        try:
            ours = {
                "bootstrap_servers": self._bootstrap,
                "client_id": "slotwheel-replay",
                "bootstrap_timeout_ms": _TIMEOUT_MS,
                "request_timeout_ms": _TIMEOUT_MS,
            }
            users = for_kafka_python(self._settings, ClientKind.ADMIN)
            with KafkaAdminClient(**ours | users) as admin:
                yield admin
        except (KafkaError, OSError) as error:
            why = why_not(self._bootstrap, self._settings, error)
            raise KafkaUnreachable(
                f"Kafka at {self._bootstrap} does not answer: {why}",
                remedy="Look at the address, and whether the broker runs",
            ) from error


def source_options(bootstrap: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Options of every reading of records: committed ones, from the first, with their headers."""
    return {
        **{f"kafka.{name}": value for name, value in for_java(settings).items()},
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def _partitions(admin: Any) -> dict[str, list[int]]:
    return {
        topic["name"]: [part["partition_index"] for part in topic["partitions"]]
        for topic in admin.describe_topics()
        if topic["error_code"] == 0
    }


def _cut(admin: Any, parts: Sequence[tuple[str, int]]) -> list[str]:
    """Partitions whose first records Kafka has deleted, each with its first offset."""
    from kafka.admin import OffsetSpec

    firsts = _offsets(admin, parts, OffsetSpec.EARLIEST)
    return [f"{name} before {at:,}" for name, at in firsts.items() if at > 0]


def wait_for_transactions(admin: Any, parts: Sequence[tuple[str, int]]) -> None:
    """Wait until every record that is in these partitions now can be read, or never will be."""
    from kafka import IsolationLevel
    from kafka.admin import OffsetSpec

    ends = _offsets(admin, parts, OffsetSpec.LATEST)
    deadline = time.monotonic() + _OPEN_S
    while True:
        readable = _offsets(
            admin, parts, OffsetSpec.LATEST, isolation_level=IsolationLevel.READ_COMMITTED
        )
        behind = [f"{name} from {at:,} on" for name, at in readable.items() if at < ends[name]]
        if not behind:
            return
        if time.monotonic() > deadline:
            raise TransactionOpen(
                "a transaction has been open for long, so records cannot be read",
                got=_listed(behind),
                limit=f"{_OPEN_S:.0f} s",
                remedy="End the producer that has it open (kafka-transactions.sh names it)",
            )
        time.sleep(0.2)


def _offsets(
    admin: Any, parts: Sequence[tuple[str, int]], spec: Any, **more: Any
) -> dict[str, int]:
    from kafka import TopicPartition

    if not parts:
        return {}
    wanted = dict.fromkeys((TopicPartition(*part) for part in parts), spec)
    offsets = admin.list_partition_offsets(wanted, **more)
    return {f"{part.topic}-{part.partition}": at.offset for part, at in sorted(offsets.items())}


def _listed(items: Sequence[str]) -> str:
    shown = ", ".join(items[:_NAMED_MAX])
    return f"{shown} and {len(items) - _NAMED_MAX:,} more" if len(items) > _NAMED_MAX else shown


def connector_settings(directory: Path | None) -> dict[str, str]:
    """Settings of a session with the connector. ``directory``: holds its jars; None: Spark fetches
    them. Errors: ``InvalidConfiguration``."""
    if directory is None:
        return {PACKAGES: PACKAGE}
    jars = sorted(str(path.resolve()) for path in directory.glob("*.jar"))
    if not any(Path(jar).name.startswith(CONNECTOR) for jar in jars):
        raise InvalidConfiguration(
            f"there is no {CONNECTOR}-….jar in the directory of Spark's Kafka connector",
            got=directory,
        )
    return {JARS: ",".join(jars)}


def not_fetched(packages: str, output: str) -> InvalidConfiguration | None:
    """The error for a Spark that could not fetch ``packages``, by its output; None: another
    cause."""
    if "unresolved dependency" not in output:
        return None
    return InvalidConfiguration(
        "Spark could not fetch its Kafka connector", got=packages, remedy=f"{_REMEDY} --kafka-jars"
    )
