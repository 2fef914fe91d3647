#!/usr/bin/env bash
# Puts what the tests need and pip does not bring in place: Java, a C compiler, Chromium, Prometheus, and the jars of
# Kafka, of Spark's connector and of a generator of clients in .cache/. Does nothing when all is there.
# What is the user's own comes first: JAVA_HOME, KAFKA_HOME, SLOTWHEEL_KAFKA_JARS,
# SLOTWHEEL_TEST_BOOTSTRAP (a broker).
#
# Programs that are missing are installed with apt as root. Without root, Debian's packages are
# unpacked below .cache/tools/, whose bin/ the tests put first on their path. Where there is no apt,
# all that is missing is named at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/support/jars.sh
tools=$PWD/.cache/tools
python=$PWD/.venv/bin/python
export PATH=$tools/bin:$PATH
export DEBIAN_FRONTEND=noninteractive

java_is_new_enough() {
    local major
    # 'openjdk version "17.0.15" 2025-04-15' -> 17
    major=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE '1,5s/.* version "([0-9]+).*/\1/p' | head -n 1)
    # The programs of docs/languages.md are run from their sources.
    [ -n "$major" ] && [ "$major" -ge 17 ] &&
        "${JAVA_HOME:+$JAVA_HOME/bin/}java" --list-modules | grep '^jdk.compiler@' >/dev/null
}

version_in() { sed -nE "s:.*<$2>(.*)</$2>.*:\1:p" "tests/support/$1"; }

kafka=.cache/kafka-$(version_in pom.xml kafka.version)
clients=.cache/clients-$(version_in clients.pom.xml generator.version)
connector=.cache/spark-kafka-$(version_in connector.pom.xml connector.version)
if [ -n "${KAFKA_HOME:-}" ]; then
    if ! compgen -G "$KAFKA_HOME/libs/kafka_2.1*.jar" >/dev/null; then
        echo "error: KAFKA_HOME is set to $KAFKA_HOME, but libs/ there holds no Kafka" >&2
        exit 1
    fi
    kafka=$KAFKA_HOME
fi
[ -z "${SLOTWHEEL_TEST_BOOTSTRAP:-}" ] || kafka=.
connector=${SLOTWHEEL_KAFKA_JARS:-$connector}

missing=()
packages=()
needs() {
    missing+=("$1")
    packages+=("${@:2}")
}
if ! java_is_new_enough; then
    if [ -n "${JAVA_HOME:-}" ]; then
        echo "error: $JAVA_HOME/bin/java, where JAVA_HOME says, is no Java 17 or newer with a compiler" >&2
        exit 1
    fi
    # Distributions drop 17 in time; any newer one runs Kafka and Spark as well.
    needs "Java 17 or newer with its compiler" openjdk-17-jdk-headless/openjdk-21-jdk-headless/default-jdk-headless
fi
if ! { [ -d "$kafka" ] && [ -d "$connector" ] && [ -d "$clients" ]; } && ! command -v mvn >/dev/null; then
    needs "Maven" maven
fi
command -v cc >/dev/null || command -v gcc >/dev/null || needs "a C compiler" gcc libc6-dev
command -v chromium >/dev/null || needs "Chromium" chromium

# as_user APT-COMMAND...: with lists of our own, which a user without root may bring up to date.
as_user() {
    "$1" -o "Dir::State::lists=$tools/lists" -o "Dir::Cache=$tools/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User= "${@:2}"
}

# The first of some packages, named with / between them, that apt has.
available() {
    local name
    for name in ${1//\// }; do
        if "${@:2}" apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "error: apt has none of ${1//\//, }, for the tests" >&2
    return 1
}

unpack() {
    mkdir -p "$tools/lists/partial" "$tools/cache/archives/partial" "$tools/root" "$tools/bin"
    as_user apt-get update -qq
    local names=() name
    for name in "$@"; do
        names+=("$(available "$name" as_user)")
    done
    # What the machine has is used; the rest, as apt would install it, is only unpacked.
    local inst
    inst=$(as_user apt-get -s --no-install-recommends install "${names[@]}" |
        awk '$1 == "Inst" { print $2 }')
    # shellcheck disable=SC2086
    (cd "$tools/cache" && as_user apt-get -qq download $inst)
    local file link target
    for file in "$tools"/cache/*.deb; do
        dpkg -x "$file" "$tools/root"
        rm "$file"
    done
    # Links to where the files would have been installed.
    find "$tools/root" -type l -lname '/*' | while read -r link; do
        target=$(readlink "$link")
        if [ -e "$tools/root$target" ] || [ ! -e "$target" ]; then
            ln -sfn "$tools/root$target" "$link"
        fi
    done
    put_on_path
}

# A program below bin/ for each that was unpacked.
put_on_path() {
    local home libraries
    home=$(find "$tools"/root/usr/lib/jvm -path '*/bin/java' 2>/dev/null | head -n 1)
    home=${home%/bin/java}
    if [ -n "$home" ]; then
        program java "$home/bin/java"
        program javac "$home/bin/javac"
        trust "$home"
    fi
    [ ! -e "$tools/root/usr/share/maven/bin/mvn" ] ||
        program mvn env ${home:+"JAVA_HOME=$home"} "$tools/root/usr/share/maven/bin/mvn"
    if [ -e "$tools/root/usr/lib/chromium/chromium" ]; then
        libraries=$(find "$tools"/root/{,usr/}lib/*-linux-gnu -name '*.so*' -printf '%h:' 2>/dev/null |
            tr : '\n' | sort -u | paste -sd :)
        program chromium env "LD_LIBRARY_PATH=${libraries#:}" "$tools/root/usr/lib/chromium/chromium"
    fi
}

# program NAME COMMAND...: bin/NAME runs the command with what it is given.
program() {
    local name=$1
    shift
    mkdir -p "$tools/bin"
    printf '#!/bin/sh\nexec%s "$@"\n' "$(printf ' %q' "$@")" >"$tools/bin/$name"
    chmod +x "$tools/bin/$name"
}

# Java's own certificates are made when its package is installed, which this one was not.
trust() {
    local store
    store=$(readlink -m "$1/lib/security/cacerts")
    [ ! -e "$store" ] || return 0
    "$python" -m pip install -q --upgrade --target "$tools/python" cryptography
    mkdir -p "$(dirname "$store")"
    PYTHONPATH=$tools/python "$python" - "$store" <<'PYTHON'
import ssl, sys
from pathlib import Path
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12
where = ssl.get_default_verify_paths()
file = next(f for f in ("/etc/ssl/certs/ca-certificates.crt", where.cafile) if f and Path(f).exists())
found = x509.load_pem_x509_certificates(Path(file).read_bytes())
named = [pkcs12.PKCS12Certificate(one, str(place).encode()) for place, one in enumerate(found)]
store = pkcs12.serialize_java_truststore(named, NoEncryption())
Path(sys.argv[1]).write_bytes(store)
PYTHON
}

if [ ${#missing[@]} -gt 0 ]; then
    names=$(printf ', %s' "${missing[@]}")
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        echo "error: the tests need what is not on this machine: ${names:2}; install it" >&2
        exit 1
    fi
    if [ "$(id -u)" = 0 ]; then
        echo "==> installing for the tests: ${names:2}"
        apt-get update -qq
        chosen=()
        for package in "${packages[@]}"; do
            chosen+=("$(available "$package" env)")
        done
        apt-get install -y -qq --no-install-recommends "${chosen[@]}" >/dev/null
    else
        echo "==> unpacking for the tests, below .cache/tools: ${names:2}"
        unpack_these=()
        for package in "${packages[@]}"; do
            case $package in
            gcc)
                # A compiler that is only unpacked does not find its parts; PyPI has one that does.
                "$python" -m pip install -q --target "$tools/python" ziglang
                program cc env "PYTHONPATH=$tools/python" "$python" -m ziglang cc
                ;;
            libc6-dev) ;;
            *) unpack_these+=("$package") ;;
            esac
        done
        [ ${#unpack_these[@]} -eq 0 ] || unpack "${unpack_these[@]}"
    fi
    java_is_new_enough || {
        echo "error: 'java' is still not Java 17 or newer with a compiler; set JAVA_HOME" >&2
        exit 1
    }
fi

# Debian's package would start a Prometheus as a service.
if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
    echo "==> unpacking for the tests, below .cache/tools: Prometheus"
    mkdir -p "$tools/lists/partial" "$tools/cache/archives/partial" "$tools/root"
    as_user apt-get update -qq
    (cd "$tools/cache" && as_user apt-get -qq download prometheus)
    dpkg -x "$tools"/cache/prometheus_*.deb "$tools/root"
    rm "$tools"/cache/prometheus_*.deb
    program promtool "$tools/root/usr/bin/promtool"
    program prometheus "$tools/root/usr/bin/prometheus"
fi

fetch tests/support/pom.xml "$kafka" "with a Kafka of your own, set KAFKA_HOME to its directory"
fetch tests/support/connector.pom.xml "$connector" "with jars of your own, set SLOTWHEEL_KAFKA_JARS to their directory"
fetch tests/support/clients.pom.xml "$clients" "without them no client is generated of openapi.json"
