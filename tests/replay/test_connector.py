"""Where a session gets Spark's Kafka connector from."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from slotwheel.replay.facts.kafka_topics import connector_settings, not_fetched
from slotwheel.wheel.errors import InvalidConfiguration


def test_spark_fetches_the_connector_of_its_own_version() -> None:
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert connector_settings(None) == {"spark.jars.packages": package}


def test_all_jars_of_a_directory_are_taken(tmp_path: Path) -> None:
    names = ["kafka-clients-3.9.2.jar", "spark-sql-kafka-0-10_2.13-4.2.0.jar"]
    for name in (*names, "readme.txt"):
        (tmp_path / name).touch()
    jars = ",".join(str(tmp_path / name) for name in names)
    assert connector_settings(tmp_path) == {"spark.jars": jars}


def test_a_directory_without_the_connector(tmp_path: Path) -> None:
    (tmp_path / "kafka-clients-3.9.2.jar").touch()
    with pytest.raises(InvalidConfiguration, match="spark-sql-kafka"):
        connector_settings(tmp_path)


def test_what_could_not_be_fetched_is_told_from_other_ends() -> None:
    said = "Exception in thread main: [unresolved dependency: org#connector;9: not found]"
    error = not_fetched("org:connector:9", said)
    assert error is not None
    assert error.got == "org:connector:9"
    assert not_fetched("org:connector:9", "Invalid initial heap size: -Xmx2x") is None
