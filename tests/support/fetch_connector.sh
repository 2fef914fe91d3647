#!/usr/bin/env bash
# Puts the jars of Spark's Kafka connector in .cache/spark-kafka-<version>/, by Maven. A directory of
# the user's own (SLOTWHEEL_KAFKA_JARS) comes first. Does nothing when all is there. Java comes with
# what fetch_kafka.sh does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
needed_by=Spark
source tests/support/fetching.sh

if [ -n "${SLOTWHEEL_KAFKA_JARS:-}" ]; then
    echo "==> spark: tests use the connector in $SLOTWHEEL_KAFKA_JARS; nothing to fetch"
    exit 0
fi

version=$(sed -nE 's:.*<connector\.version>(.*)</connector\.version>.*:\1:p' tests/support/connector.pom.xml)
target=.cache/spark-kafka-$version
if [ -d "$target" ]; then
    exit 0
fi
echo "==> spark: fetching the jars of its Kafka connector $version into $target (once; about 10 MB)"
fetch tests/support/connector.pom.xml "$target" \
    "with jars of your own, set SLOTWHEEL_KAFKA_JARS to their directory"
