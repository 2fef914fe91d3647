#!/usr/bin/env bash
# Installs the servers of benchmarks.queues from Debian, as root, without starting any.
set -euo pipefail
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "error: needs root and apt-get; what is not installed is named as missing" >&2
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
apt-get install -y -qq --no-install-recommends beanstalkd redis-server redis-tools rabbitmq-server postgresql wrk
