"""Spark's Kafka connector, which is not part of PySpark: how a session gets it.

    org.apache.spark:spark-sql-kafka-0-10_2.13           the connector
        org.apache.spark:spark-token-provider-kafka-0-10_2.13
        org.apache.kafka:kafka-clients
        org.apache.commons:commons-pool2

Either Spark fetches it from Maven Central, in the version of the PySpark that is installed, or
all of its jars lie in a directory.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from ...wheel.errors import InvalidConfiguration

CONNECTOR = "spark-sql-kafka-0-10_2.13"
PACKAGE = f"org.apache.spark:{CONNECTOR}:{pyspark.__version__}"
JARS, PACKAGES = "spark.jars", "spark.jars.packages"
_REMEDY = "Put it and what it needs into a directory (docs/replay.md says what) and give that with"


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
