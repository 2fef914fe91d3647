"""One table of settings, in librdkafka's names, for every client of Kafka."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net import connection
from kafka.producer import kafka as producer
from kafka.producer import sender
from kafka.protocol import parser
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest

from slotwheel.broker import settings
from slotwheel.broker.settings import (
    CONFLUENT,
    JAVA,
    KAFKA_PYTHON,
    ClientKind,
    Secret,
    check,
    for_confluent,
    for_java,
    for_kafka_python,
    named,
)
from slotwheel.wheel.errors import InvalidConfiguration
from support.securing import write_private

PRODUCER, CONSUMER, ADMIN = ClientKind.PRODUCER, ClientKind.CONSUMER, ClientKind.ADMIN
LOGIN = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "plain",
    "sasl.username": "wheel",
    "sasl.password": "0123",
}


def test_every_name_of_the_table_is_one_of_both_clients() -> None:
    configs = (KafkaProducer, KafkaConsumer, KafkaAdminClient)
    known = {name for one in configs for name in one.DEFAULT_CONFIG}
    assert {own for own, _ in settings._TABLE.values()} <= known
    for name in (*settings._TABLE, *settings._SAME):
        if "_" in name or name in ("max.request.size", "fetch.max.wait.ms"):
            continue  # kafka-python's, Java's
        with pytest.raises(InvalidConfiguration) as raised:  # of the value, or of the next name
            settings._try_librdkafka({name: "…" if name != "client.id" else "me", "last": "1"})
        assert raised.value.got != name


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (
            CONSUMER,
            LOGIN,
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "wheel",
                "sasl_plain_password": "0123",
            },
        ),
        (
            ADMIN,
            {
                "ssl.ca.location": "/ca",
                "ssl.certificate.location": "/cert",
                "ssl.key.location": "/key",
                "ssl.key.password": "12",
                "ssl.endpoint.identification.algorithm": "none",
            },
            {
                "ssl_cafile": "/ca",
                "ssl_certfile": "/cert",
                "ssl_keyfile": "/key",
                "ssl_password": "12",
                "ssl_check_hostname": False,
            },
        ),
        (PRODUCER, {"acks": "-1", "linger.ms": "0.5"}, {"acks": "all", "linger_ms": 0}),
        (PRODUCER, {"compression.codec": "none"}, {"compression_type": None}),
        (PRODUCER, {"fetch.min.bytes": "5"}, {}),
        (CONSUMER, {"fetch.min.bytes": "5", "linger.ms": "5"}, {"fetch_min_bytes": 5}),
        (CONSUMER, {"auto.offset.reset": "smallest"}, {"auto_offset_reset": "earliest"}),
        (CONSUMER, {"request.timeout.ms": "7"}, {}),
        (PRODUCER, {"request.timeout.ms": "7"}, {"request_timeout_ms": 7}),
        (CONSUMER, {"check.crcs": "true"}, {"check_crcs": True}),
        # kafka-python's own names
        (CONSUMER, {"sasl_plain_password": 123}, {"sasl_plain_password": "123"}),
        (CONSUMER, {"ssl_check_hostname": "false"}, {"ssl_check_hostname": False}),
        (CONSUMER, {"max_poll_records": "7"}, {"max_poll_records": 7}),
        (ADMIN, {"max_poll_records": "7"}, {}),
        (ADMIN, {"api_version": "[2, 3]"}, {"api_version": (2, 3)}),
        (PRODUCER, {"client_id": "1", "retries": "2"}, {"client_id": "1", "retries": 2}),
    ],
)
def test_kafka_python(kind: ClientKind, given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = for_kafka_python(given, kind)
    assert found == expected
    assert [type(value) for value in found.values() if not isinstance(value, Secret)] == [
        type(expected[name]) for name, value in found.items() if not isinstance(value, Secret)
    ]


def test_confluent_gets_texts_under_its_own_names() -> None:
    given = {"security_protocol": "SSL", "request_timeout_ms": 100, "ssl_check_hostname": False}
    expected = {
        "security.protocol": "SSL",
        "socket.timeout.ms": "100",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert for_confluent(given, ADMIN) == expected
    both = {"linger.ms": 5, "session.timeout.ms": 6000}
    assert for_confluent(both, PRODUCER) == {"linger.ms": "5"}
    assert for_confluent(both, CONSUMER) == {"session.timeout.ms": "6000"}


def test_java_gets_a_login_and_certificates_as_texts(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("C")
    (tmp_path / "key").write_text("K")
    found = for_java(
        LOGIN
        | {
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": "/ca",
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
            "fetch.wait.max.ms": 10,
            "linger.ms": "5",
        }
    )
    login = found.pop("sasl.jaas.config")
    assert login.endswith('required username="wheel" password="a\\"b\\\\c";')
    assert "wheel" not in repr(login)
    assert found == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "C",
        "ssl.keystore.key": "K",
        "fetch.max.wait.ms": "10",
    }


@pytest.mark.parametrize("client", [KAFKA_PYTHON, CONFLUENT, JAVA])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl.pasword": "secret-1"}, ["sasl.pasword", "sasl.password"]),
        ({"security.protocol": "SSH"}, ["SSH", "SASL_SSL"]),
        ({"security.protocol": "SASL_SSL"}, ["without a mechanism", "sasl.mechanism"]),
        (LOGIN | {"sasl.password": ""}, ["without credentials", "sasl.password"]),
        ({"sasl.username": "a"}, ["would not be used", "SASL_SSL"]),
        ({"ssl.ca.location": "/ca"}, ["would not be used", "security.protocol"]),
        ({"ssl.truststore.location": "/ca"}, ["ssl.ca.location"]),
    ],
)
def test_what_no_client_takes_is_an_error_that_says_what_to_write(
    client: str, given: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        check(given if "truststore" not in str(given) else given | LOGIN_TLS, client)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert "secret-1" not in str(raised.value)


LOGIN_TLS = {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("client", "given", "word"),
    [
        (KAFKA_PYTHON, {"queue.buffering.max.kbytes": "1"}, "queue.buffering.max.kbytes"),
        (KAFKA_PYTHON, {"linger.ms": "soon"}, "a whole number"),
        (KAFKA_PYTHON, LOGIN_TLS | {"ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
        (CONFLUENT, LOGIN_TLS | {"ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
        (CONFLUENT, {"max_poll_records": "5"}, "confluent-kafka"),
        (CONFLUENT, {"linger.ms": "soon"}, "queue.buffering.max.ms"),
        (JAVA, {"sasl.kerberos.kinit.cmd": "x"} | LOGIN, "Spark"),
        (JAVA, LOGIN_TLS | {"ssl.key.location": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_one_client_does_not_take_is_named(
    client: str, given: dict[str, str], word: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=word):
        check(given, client)


def test_what_both_take_is_taken() -> None:
    given = LOGIN | {"linger.ms": "1", "session.timeout.ms": "6000", "client.id": "1"}
    check(given, KAFKA_PYTHON, CONFLUENT, JAVA)


def test_a_secret_does_not_show_itself() -> None:
    found = named({"sasl_plain_password": "hunter2", "ssl.key.password": 4711, "client.id": "c"})
    for shown in (repr(found), repr(pickle.loads(pickle.dumps(found)))):
        assert "hunter2" not in shown
        assert "4711" not in shown
    assert found["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(for_kafka_python(found, CONSUMER))


def test_a_secret_is_read_where_its_setting_says_and_another_setting_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_private(tmp_path / "password", "hunter 2\n")
    monkeypatch.setenv("PLANTED_KEY", "geheim")
    given = {
        "sasl_plain_password": f"file:{file}",
        "ssl.key.password": "env:PLANTED_KEY",
        "client.id": "env:PLANTED_KEY",
    }
    for _ in range(2):  # each client of a process asks
        found = named(given)
        assert (found["sasl.password"], found["ssl.key.password"]) == ("hunter 2", "geheim")
        assert found["client.id"] == "env:PLANTED_KEY"
    assert named(found) == found
    assert "PLANTED_KEY" not in os.environ
    file.chmod(0o644)
    for place, error in (
        (f"file:{file}", "open to others"),
        ("file:/nowhere", "/nowhere cannot be read"),
        ("env:NOBODY_SET", "the variable NOBODY_SET is empty or not there"),
    ):
        with pytest.raises(InvalidConfiguration, match=error):
            named({"sasl.password": place})


def test_a_login_does_not_get_into_kafka_pythons_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafka")
    login = SaslAuthenticateRequest[1](auth_bytes=b"\0user\0geheim")
    protocol = KafkaProtocol()
    protocol.send_request(login)
    protocol.send_bytes()
    # As ``KafkaConnection`` does.
    connection.log.debug("%s Request %d: %s", "node", 1, login)
    assert len(caplog.records) >= 2
    assert "geheim" not in caplog.text
    assert "SaslAuthenticateRequest" in caplog.text


def test_a_message_does_not_get_into_kafka_pythons_log() -> None:
    topic = ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData(index=0, records=b"geheim")
    request = ProduceRequest[7](
        acks=-1, timeout_ms=5, topic_data=[topic(name="t", partition_data=[data])]
    )
    read = FetchResponse.FetchableTopicResponse
    response = FetchResponse[11](
        responses=[read(topic="t", partitions=[read.PartitionData(records=b"geheim")])]
    )
    for one in (request, response):
        assert "geheim" in repr(one)
    logged = []
    # As kafka-python's classes do. Not by their modules' ``log``: a producer that is closed puts an
    # object there that logs nothing.
    for module, text, *arguments in (
        (connection, "%s Request %d: %s", "node", 1, request),
        (connection, "%s: Response %d (%s ms): %s", "node", 1, 2, response),
        (parser, "%s Received response %d %s", "node", 1, response),
        (sender, "%s: Created %d produce requests: %s", "sender", 1, {0: request}),
        (sender, "%s: Sending Produce Request: %r", "sender", request),
        (
            *(producer, "%s: Sending (key=%r value=%r headers=%r) to %s", "producer"),
            *(b"geheim", b"geheim", [("h", b"geheim")], "t"),
        ),
    ):
        logger = logging.getLogger(module.__name__)
        record = logger.makeRecord(
            logger.name, logging.DEBUG, __file__, 1, text, tuple(arguments), None
        )
        assert logger.filter(record)
        logged.append(record.getMessage())
    text = "\n".join(logged)
    assert "geheim" not in text
    assert "ProduceRequest" in text
    assert "FetchResponse" in text
    assert "value='6 bytes'" in text
