"""A broker that asks who somebody is: a listener with SASL_SSL, and rights by access control lists.

    with SecuredBroker() as secured:
        settings = secured.user("orders", READ("orders"), …)

Its plain listener (`bootstrap`) is the operator's, who may do everything. Certificates are made for
each run, names are checked, and passwords are of digits: what takes them for numbers, fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from .broker import Broker
from .ports import free_port

_USERS = 12
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Right(NamedTuple):
    """What a user may do: operations, by their names, on what begins with `prefix`."""

    kind: str
    prefix: str
    operations: tuple[str, ...]


def topic(prefix: str, *operations: str) -> Right:
    return Right("TOPIC", prefix, operations)


def group(prefix: str, *operations: str) -> Right:
    return Right("GROUP", prefix, operations or ("READ",))


class SecuredBroker(Broker):
    """`secured`: the address of the listener with SASL_SSL."""

    def __init__(self) -> None:
        self._certificates = trustme.CA()
        self._strangers = trustme.CA()
        self._port = free_port()
        self.secured = f"127.0.0.1:{self._port}"
        self._made = 0
        super().__init__(settings={})

    def _configure(self, controller_port: int, settings: dict[str, str]) -> None:
        pem = self.directory / "broker.pem"
        issued = self._certificates.issue_cert("127.0.0.1", "localhost")
        pem.write_bytes(_pkcs8(issued.private_key_pem.bytes()) + _chain(issued))
        users = " ".join(f'user_{_name(n)}="{_password(n)}"' for n in range(_USERS))
        plain = f"PLAINTEXT://{self.bootstrap}"
        listener = "listener.name.secured"
        super()._configure(
            controller_port,
            settings
            | {
                "listeners": f"{plain},SECURED://{self.secured},CONTROLLER://127.0.0.1:"
                f"{controller_port}",
                "advertised.listeners": f"{plain},SECURED://{self.secured}",
                "inter.broker.listener.name": "PLAINTEXT",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SECURED:SASL_SSL",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                f"{listener}.sasl.enabled.mechanisms": "PLAIN",
                f"{listener}.plain.sasl.jaas.config": f"{_MODULE} required {users};",
                f"{listener}.ssl.keystore.type": "PEM",
                f"{listener}.ssl.keystore.location": str(pem),
            },
        )

    def user(self, *rights: Right) -> dict[str, str]:
        """A user with these rights and no others: its settings, in librdkafka's names."""
        number, self._made = self._made, self._made + 1
        assert number < _USERS
        self.allow(_name(number), rights)
        ca = self.directory / "ca.pem"
        self._certificates.cert_pem.write_to_path(str(ca))
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _name(number),
            "sasl.password": _password(number),
            "ssl.ca.location": str(ca),
        }

    def strangers_ca(self) -> str:
        """The file of an authority that did not sign the broker's certificate."""
        path = self.directory / "strangers.pem"
        self._strangers.cert_pem.write_to_path(str(path))
        return str(path)

    def allow(self, user: str, rights: Iterable[Right]) -> None:
        wanted = [
            ACL(
                principal=f"User:{user}",
                host="*",
                operation=ACLOperation[operation],
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=ResourcePattern(
                    ResourceType[right.kind],
                    "kafka-cluster" if right.kind == "CLUSTER" else right.prefix,
                    ACLResourcePatternType.LITERAL
                    if right.kind == "CLUSTER"
                    else ACLResourcePatternType.PREFIXED,
                ),
            )
            for right in rights
            for operation in right.operations
        ]
        if wanted:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
                admin.create_acls(wanted)


def _name(number: int) -> str:
    return f"user{number}"


def _password(number: int) -> str:
    return f"0{number:03d}1234567890123456789"


def _pkcs8(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)
