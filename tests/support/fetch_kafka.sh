#!/usr/bin/env bash
# Puts what a real Kafka broker needs in place: Java, and Kafka's jars in .cache/kafka-<version>/.
# A broker of the user's own (SLOTWHEEL_TEST_BOOTSTRAP) or a Kafka of the user's own (KAFKA_HOME)
# comes first. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
needed_by=Kafka
source tests/support/fetching.sh

if [ -n "${SLOTWHEEL_TEST_BOOTSTRAP:-}" ]; then
    echo "==> kafka: tests use the broker at $SLOTWHEEL_TEST_BOOTSTRAP; nothing to fetch"
    exit 0
fi

own_broker="name a broker of your own in SLOTWHEEL_TEST_BOOTSTRAP=host:port (the tests create topics on it)"

# With JAVA_HOME set, the broker is started with that one.
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

java_is_new_enough() {
    local major
    # 'openjdk version "17.0.15" 2025-04-15' -> 17
    major=$("$java" -version 2>&1 | sed -nE '1,5s/.* version "([0-9]+).*/\1/p' | head -n 1) || return 1
    [ -n "$major" ] && [ "$major" -ge 17 ]
}

if ! java_is_new_enough; then
    # Distributions drop 17 in time; any newer one runs Kafka as well.
    install "Java 17 or newer" "$own_broker" \
        openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless
    java_is_new_enough || {
        echo "error: '$java' is still not Java 17 or newer; set JAVA_HOME" >&2
        exit 1
    }
fi

if [ -n "${KAFKA_HOME:-}" ]; then
    if ! compgen -G "$KAFKA_HOME/libs/kafka_2.1*.jar" >/dev/null; then
        echo "error: KAFKA_HOME is set to $KAFKA_HOME, but libs/ there holds no Kafka" >&2
        exit 1
    fi
    echo "==> kafka: using $KAFKA_HOME"
    exit 0
fi

version=$(sed -nE 's:.*<kafka\.version>(.*)</kafka\.version>.*:\1:p' tests/support/pom.xml)
target=.cache/kafka-$version
if [ -d "$target" ]; then
    exit 0
fi

echo "==> kafka: fetching the jars of Kafka $version into $target (once; about 45 MB)"
fetch tests/support/pom.xml "$target" "with a Kafka of your own, set KAFKA_HOME to its directory"
