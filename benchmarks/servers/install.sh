#!/usr/bin/env bash
# Installs the servers of benchmarks.queues, without starting any: from Debian, as root, those that
# it has; NATS by Go's module proxy and RocketMQ's jars by Maven into .cache/. Does nothing for what
# is there. What cannot be had leaves the others; the benchmark names it as missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/support/jars.sh

debian() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "error: beanstalkd, Redis, RabbitMQ and PostgreSQL need root and apt-get" >&2
        exit 1
    fi
    # Their packages start them at once, unless this says no.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends \
        beanstalkd redis-server redis-tools rabbitmq-server postgresql wrk
}

nats() {
    version=2.15.2
    target=.cache/nats-$version
    if [ -d "$target" ]; then
        exit 0
    fi
    if ! command -v go >/dev/null; then
        echo "error: NATS needs Go 1.26 or newer" >&2
        exit 1
    fi
    echo "==> benchmarks: building NATS $version into $target (once; a minute)"
    mkdir -p .cache
    partial=$(mktemp -d .cache/partial.XXXXXX)
    trap 'rm -rf "$partial"' EXIT
    CGO_ENABLED=0 GOBIN=$PWD/$partial go install "github.com/nats-io/nats-server/v2@v$version"
    chmod 755 "$partial"
    mv -T "$partial" "$target"
}

rocketmq() {
    pom=benchmarks/servers/pom.xml
    version=$(sed -nE 's:.*<rocketmq\.version>(.*)</rocketmq\.version>.*:\1:p' "$pom")
    fetch "$pom" ".cache/rocketmq-$version" "RocketMQ is left out"
}

if [ $# = 1 ]; then
    "$1"
    exit
fi
code=0
for one in debian nats rocketmq; do
    benchmarks/servers/install.sh "$one" || code=1
done
exit $code
