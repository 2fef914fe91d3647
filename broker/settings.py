"""Settings of Kafka's clients: one table, in librdkafka's names, for every client of the product.

Theory: one program has several clients of one Kafka, and not all of the same library: a node that
sends with confluent-kafka has a REST proxy that reads with kafka-python, and a proof that reads
with Spark's Java. Whoever sets up ``security.protocol`` for one of them means all of them. So
settings are written once, in librdkafka's names, and are translated here for whoever needs them.

    {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "wheel", …}

Rules
- A name that the client does not have is an error before it connects. Ignored, a misspelt
  ``sasl.pasword`` would be reported as brokers that do not answer.
- A setting for producers alone is left out for a consumer, and the other way round: else one set of
  settings could not serve both.
- Values are texts, as they come from a command line; a password of digits stays a text. A number
  or a boolean is made of a text only where the client needs one.
- kafka-python's own names are taken, too: those of the table mean the same, and the others are for
  kafka-python alone.
- A secret may stand elsewhere, ``sasl.password=file:/run/secrets/kafka``, and is read here: so all
  clients, of every library and in every process, can be given it that way.
- A secret does not show itself: its ``repr``, and so that of each object that holds it, has dots
  instead. kafka-python logs all bytes that it sends and receives at *debug*, logins and messages
  among them: a filter replaces them by the name of the request, or by their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ..security.secretplace import SecretPlace, is_place
from ..wheel.errors import InvalidConfiguration


class ClientKind(Enum):
    """A setting may be for some kinds of clients only."""

    PRODUCER = "a producer"
    CONSUMER = "a consumer"
    ADMIN = "an admin client"


KAFKA_PYTHON, CONFLUENT, JAVA = "kafka-python", "confluent-kafka", "Spark's Kafka client"


class Secret(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def without_content(record: logging.LogRecord) -> bool:
    """A logger's filter: replaces bytes in a record by their number, and requests by their name."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_outline, record.args))
    return True


def _outline(argument: object) -> object:
    if isinstance(argument, bytes | bytearray | memoryview):
        return f"{len(argument)} bytes"
    if type(argument) in (list, tuple):
        return [_outline(item) for item in cast("Iterable[object]", argument)]
    if isinstance(argument, dict):
        return {key: _outline(value) for key, value in argument.items()}
    kind = type(argument)
    return kind.__name__ if kind.__module__.startswith("kafka.protocol.") else argument


for _logger in (
    "kafka.net.connection",
    "kafka.protocol.parser",
    "kafka.producer.kafka",
    "kafka.producer.sender",
):
    logging.getLogger(_logger).addFilter(without_content)


def _text(value: str) -> str:
    return value


def _whole(value: str) -> int:
    return int(float(value))


def _yes(value: str) -> bool:
    return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[
        value.lower()
    ]


def _acks(value: str) -> int | str:
    return "all" if value in ("all", "-1") else int(value)


def _codec(value: str) -> str | None:
    return None if value == "none" else value


def _reset(value: str) -> str:
    for meaning, names in (
        ("earliest", ("earliest", "smallest", "beginning")),
        ("latest", ("latest", "largest", "end")),
        ("none", ("none", "error")),
    ):
        if value in names:
            return meaning
    raise ValueError


def _checks_host(value: str) -> bool:
    return {"https": True, "none": False, "": False}[value.lower()]


def _version(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.strip("[]() ").replace(",", ".").split("."))


_Convert = Callable[[str], Any]

_TABLE: dict[str, tuple[str, _Convert]] = {
    # Who and how
    "bootstrap.servers": ("bootstrap_servers", _text),
    "client.id": ("client_id", _text),
    "security.protocol": ("security_protocol", _text),
    "sasl.mechanism": ("sasl_mechanism", _text),
    "sasl.username": ("sasl_plain_username", _text),
    "sasl.password": ("sasl_plain_password", _text),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", _text),
    "ssl.ca.location": ("ssl_cafile", _text),
    "ssl.certificate.location": ("ssl_certfile", _text),
    "ssl.key.location": ("ssl_keyfile", _text),
    "ssl.key.password": ("ssl_password", _text),
    "ssl.crl.location": ("ssl_crlfile", _text),
    "ssl.cipher.suites": ("ssl_ciphers", _text),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _checks_host),
    # Connections
    "client.dns.lookup": ("client_dns_lookup", _text),
    "connections.max.idle.ms": ("connections_max_idle_ms", _whole),
    "max.in.flight.requests.per.connection": ("max_in_flight_requests_per_connection", _whole),
    "metadata.max.age.ms": ("metadata_max_age_ms", _whole),
    "receive.message.max.bytes": ("receive_message_max_bytes", _whole),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _whole),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _whole),
    "retry.backoff.ms": ("retry_backoff_ms", _whole),
    "socket.receive.buffer.bytes": ("receive_buffer_bytes", _whole),
    "socket.send.buffer.bytes": ("send_buffer_bytes", _whole),
    "socket.timeout.ms": ("request_timeout_ms", _whole),
    # Producers
    "acks": ("acks", _acks),
    "batch.size": ("batch_size", _whole),
    "compression.type": ("compression_type", _codec),
    "enable.idempotence": ("enable_idempotence", _yes),
    "linger.ms": ("linger_ms", _whole),
    "message.max.bytes": ("max_request_size", _whole),
    "message.timeout.ms": ("delivery_timeout_ms", _whole),
    "request.timeout.ms": ("request_timeout_ms", _whole),
    "retries": ("retries", _whole),
    "transaction.timeout.ms": ("transaction_timeout_ms", _whole),
    "transactional.id": ("transactional_id", _text),
    # Consumers
    "allow.auto.create.topics": ("allow_auto_create_topics", _yes),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", _whole),
    "auto.offset.reset": ("auto_offset_reset", _reset),
    "check.crcs": ("check_crcs", _yes),
    "client.rack": ("client_rack", _text),
    "enable.auto.commit": ("enable_auto_commit", _yes),
    "fetch.max.bytes": ("fetch_max_bytes", _whole),
    "fetch.min.bytes": ("fetch_min_bytes", _whole),
    "fetch.wait.max.ms": ("fetch_max_wait_ms", _whole),
    "group.id": ("group_id", _text),
    "group.instance.id": ("group_instance_id", _text),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", _whole),
    "isolation.level": ("isolation_level", _text),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _whole),
    "max.poll.interval.ms": ("max_poll_interval_ms", _whole),
    "session.timeout.ms": ("session_timeout_ms", _whole),
}
"""For librdkafka's name, that of kafka-python, and the converter from text to its value."""

_SAME = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "max.request.size": "message.max.bytes",
    "delivery.timeout.ms": "message.timeout.ms",
    "message.send.max.retries": "retries",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
} | {own: name for name, (own, _) in _TABLE.items() if name != "request.timeout.ms"}
"""Other names for the table's: librdkafka's synonyms, Java's names, kafka-python's."""

_OF_PRODUCERS = (
    *("acks", "batch.", "compression.", "delivery.", "dr_", "enable.gapless", "enable.idempotence"),
    *("linger.ms", "message.timeout", "partitioner", "queue.buffering.", "queuing.", "request."),
    *("retries", "sticky.", "transaction.", "transactional."),
)
_OF_CONSUMERS = (
    *(
        "allow.auto",
        "auto.commit",
        "auto.offset",
        "check.crcs",
        "client.rack",
        "consume.",
        "group.",
    ),
    *("enable.auto", "enable.partition.eof", "fetch.", "heartbeat.", "isolation.", "max.partition"),
    *("max.poll", "offset.", "partition.assign", "queued.", "session."),
)
"""Beginnings of librdkafka's names that are for one kind of client only."""

_JAVA = {
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
} | {
    name: name
    for name in (
        *("client.id", "security.protocol", "sasl.mechanism", "sasl.kerberos.service.name"),
        *("client.dns.lookup", "connections.max.idle.ms", "metadata.max.age.ms"),
        *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.ms", "check.crcs"),
        *("client.rack", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes"),
    )
}
_JAVA_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

_INSTEAD = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, both PEM",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.truststore.location": "ssl.ca.location, PEM",
    "ssl.ca.pem": "ssl.ca.location, and the certificate to a file",
    "ssl.certificate.pem": "ssl.certificate.location, and the certificate to a file",
    "ssl.key.pem": "ssl.key.location, and the key to a file",
}
"""Names that only other clients have, and what to write instead."""

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN = ("sasl.username", "sasl.password")


def named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under the names of the table; a name that is not in it stays. Numbers and
    booleans become texts, as librdkafka takes them, and secrets become ``Secret``: where a place
    stands for one, it is read. Errors: ``InvalidConfiguration``."""
    return {name: _as_text(name, value) for name, value in _renamed(settings).items()}


def check(settings: Mapping[str, Any], *clients: str) -> None:
    """Refuse, before anything connects, settings with which one of ``clients`` (``CONFLUENT``, …)
    could reach no broker. Errors: ``InvalidConfiguration``."""
    # Names come first: "without credentials" would mislead a user who misspelt sasl.password.
    for client in clients:
        if client == KAFKA_PYTHON:
            for kind in ClientKind:
                for_kafka_python(settings, kind)
        elif client == CONFLUENT:
            unproven = named(settings)
            unproven.pop("security.protocol", None)
            _try_librdkafka(unproven)
        else:
            for_java(settings)
    _check_login(named(settings))
    if KAFKA_PYTHON in clients:
        _try_tls(for_kafka_python(settings, ClientKind.ADMIN))
    if CONFLUENT in clients:
        _try_librdkafka(settings)


def for_kafka_python(settings: Mapping[str, Any], kind: ClientKind) -> dict[str, Any]:
    """Keyword arguments for one of kafka-python's clients. Errors: ``InvalidConfiguration``."""
    defaults = _defaults()
    merged = {name: value for of_kind in defaults.values() for name, value in of_kind.items()}
    config: dict[str, Any] = {}
    for name, value in named(settings).items():
        argument, convert = _TABLE.get(name, (name, None))
        if argument not in merged:
            raise _unknown_name(name, KAFKA_PYTHON, [*_TABLE, *merged], "take confluent-kafka")
        foreign = kind is not ClientKind.PRODUCER and name.startswith(_OF_PRODUCERS)
        if argument in defaults[kind] and not foreign:
            config[argument] = _converted(
                name, value, convert or _converter_of(argument, merged[argument])
            )
    return config


def for_confluent(settings: Mapping[str, Any], kind: ClientKind) -> dict[str, Any]:
    """The configuration of one of confluent-kafka's clients. A name that is not in the table is
    passed on: librdkafka itself refuses it if it has no such setting (``refused``). Errors: as of
    ``named``."""
    config: dict[str, Any] = {}
    for name, value in named(settings).items():
        of_producers, of_consumers = name.startswith(_OF_PRODUCERS), name.startswith(_OF_CONSUMERS)
        if of_producers and kind is not ClientKind.PRODUCER:
            continue
        if of_consumers and kind is not ClientKind.CONSUMER:
            continue
        config[name] = value
    return config


def for_java(settings: Mapping[str, Any]) -> dict[str, str]:
    """The configuration of a consumer of Java's client. Certificates are PEM files, as for
    librdkafka; the client's certificate and its key are read here. Errors:
    ``InvalidConfiguration``."""
    given = {name: str(value) for name, value in named(settings).items()}
    config: dict[str, str] = {}
    for name, value in given.items():
        if name in _JAVA:
            config[_JAVA[name]] = value
        elif name == "ssl.ca.location":
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": value}
        elif name == "ssl.certificate.location":
            config |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": _read(value)}
        elif name == "ssl.key.location":
            config["ssl.keystore.key"] = Secret(_read(value))
        elif name == "ssl.key.password":
            config[name] = Secret(value)
        elif name == "ssl.endpoint.identification.algorithm":
            config[name] = "https" if _converted(name, value, _checks_host) else ""
        elif name not in (*_LOGIN, "bootstrap.servers"):
            if name.startswith((*_OF_PRODUCERS, *_OF_CONSUMERS)):
                continue  # Spark sets up its consumers itself
            raise _unknown_name(name, JAVA, [*_JAVA, *_LOGIN], "leave it out of this command")
    if (module := _JAVA_LOGIN.get(given.get("sasl.mechanism", ""))) and all(
        name in given for name in _LOGIN
    ):
        user, password = (_quoted(given[name]) for name in _LOGIN)
        login = f"{module} required username={user} password={password};"
        config["sasl.jaas.config"] = Secret(login)
    return config


def refused(error: Any) -> InvalidConfiguration | None:
    """The error for a configuration that librdkafka refuses; None for its other errors."""
    if error.name() not in ("_INVALID_ARG", "_CONFLICT", "_SSL"):
        return None
    text = error.str().removeprefix("Failed to create producer: ")
    text = text.removeprefix("Failed to create consumer: ")
    _, quote, name = text.partition('No such configuration property: "')
    if quote:
        return _unknown_name(name.rstrip('"'), CONFLUENT, list(_TABLE), "correct it")
    return _unusable(text)


def is_secret(name: str) -> bool:
    """Returns True when the value of the setting ``name`` must not be shown."""
    name = name.replace("_", ".")
    return any(part in name for part in ("password", "secret", "jaas", ".pem", "oauthbearer.conf"))


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "ssl_check_hostname":
            checked = _converted(name, value, _yes)
            renamed[_SAME[name]] = "https" if checked else "none"
        elif value is not None:
            table_name = _SAME.get(name, name)
            upper = table_name in ("security.protocol", "sasl.mechanism")
            renamed[table_name] = str(value).upper() if upper else value
    return renamed


def _as_text(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        value = str(value)
    if not isinstance(value, str) or isinstance(value, Secret) or not is_secret(name):
        return value
    return Secret(SecretPlace.parse(value).read() if is_place(value) else value)


def _converted(name: str, value: Any, convert: _Convert) -> Any:
    if not isinstance(value, str):
        return value  # an object that only this library knows
    try:
        return convert(value)
    except (KeyError, ValueError):
        pass
    limits: dict[_Convert, str] = {
        _whole: "a whole number",
        _yes: "true or false",
        _checks_host: "https or none",
    }
    raise _unusable(name, "…" if is_secret(name) else repr(value), limits.get(convert))


def _converter_of(name: str, default: Any) -> _Convert:
    """The converter for a setting that only kafka-python has, by the type of its default."""
    if name == "api_version":
        return _version
    if isinstance(default, bool):
        return _yes
    return _whole if isinstance(default, int) else _text


def _defaults() -> dict[ClientKind, dict[str, Any]]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    return {
        ClientKind.PRODUCER: KafkaProducer.DEFAULT_CONFIG,
        ClientKind.CONSUMER: KafkaConsumer.DEFAULT_CONFIG,
        ClientKind.ADMIN: KafkaAdminClient.DEFAULT_CONFIG,
    }


def _try_librdkafka(settings: Mapping[str, Any]) -> None:
    """Make clients of librdkafka, which checks its settings only then; without addresses they do
    not connect. Errors: ``InvalidConfiguration``."""
    from confluent_kafka import Consumer, KafkaException, Producer

    offline = {"bootstrap.servers": "", "log_level": 0}
    try:
        Producer(for_confluent(settings, ClientKind.PRODUCER) | offline)
        of_consumer = {"group.id": "slotwheel"} | for_confluent(settings, ClientKind.CONSUMER)
        Consumer(of_consumer | offline).close()
    except KafkaException as error:
        raise refused(error.args[0]) or error from None
    except (TypeError, ValueError) as error:
        raise _unusable(str(error)) from None


def _try_tls(config: Mapping[str, Any]) -> None:
    """Open the certificates: kafka-python does so only when it connects, and reports a bad one as
    brokers that do not answer. Errors: ``InvalidConfiguration``."""
    import ssl  # every command that takes Kafka's settings would load it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    names = "ssl.ca.location"
    try:
        if config.get("ssl_cafile"):
            context.load_verify_locations(config["ssl_cafile"])
        names = "ssl.certificate.location, ssl.key.location or ssl.key.password"
        if config.get("ssl_certfile"):
            # Without a password, OpenSSL would ask for one at the terminal.
            password = config.get("ssl_password") or ""
            context.load_cert_chain(config["ssl_certfile"], config.get("ssl_keyfile"), password)
    except OSError as error:  # ssl.SSLError, too
        raise _unusable(f"{names}: {error}") from None


def _check_login(settings: Mapping[str, Any]) -> None:
    """Refuse settings that contradict each other: a password would not be sent, or would be sent
    without TLS, and nobody would notice. Errors: ``InvalidConfiguration``."""
    protocol = settings.get("security.protocol", "PLAINTEXT")
    mechanism = settings.get("sasl.mechanism", "")
    if protocol not in _PROTOCOLS:
        raise InvalidConfiguration(
            "no such security.protocol of Kafka", got=protocol, limit=", ".join(_PROTOCOLS)
        )
    for kind, taken, limit in (
        ("sasl.", protocol.startswith("SASL_"), "SASL_SSL or SASL_PLAINTEXT"),
        ("ssl.", protocol.endswith("SSL"), "SSL or SASL_SSL"),
    ):
        unused = next((name for name in settings if name.startswith(kind)), None)
        if unused is not None and not taken:
            raise InvalidConfiguration(
                f"{unused} would not be used",
                got=f"security.protocol={protocol}",
                limit=limit,
                remedy="Set security.protocol, too",
            )
    if not protocol.startswith("SASL_"):
        return
    if not mechanism:
        raise InvalidConfiguration(
            f"{protocol} without a mechanism",
            limit="sasl.mechanism, such as PLAIN or SCRAM-SHA-512",
            remedy="Set sasl.mechanism as the brokers have it",
        )
    missing = [name for name in _LOGIN if not settings.get(name)]
    if mechanism in _PASSWORD_MECHANISMS and missing:
        raise InvalidConfiguration(
            f"{mechanism} without credentials",
            limit=" and ".join(missing),
            remedy="Set both sasl.username and sasl.password",
        )


def _unusable(
    problem: str, got: str | None = None, limit: str | None = None
) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"a setting of the Kafka client is not usable: {problem}",
        got=got,
        limit=limit,
        remedy="Correct it in --kafka",
    )


def _unknown_name(name: str, client: str, names: list[str], otherwise: str) -> InvalidConfiguration:
    near = get_close_matches(name, names, 1, 0.7)
    write = _INSTEAD.get(name.replace("_", "."), near[0] if near else "")
    remedy = f"Write {write}" if write and write != name else f"Leave it out, or {otherwise}"
    return InvalidConfiguration(f"{client} has no such setting", got=name, remedy=remedy)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise _unusable(str(error)) from None
