"""Our own client over HTTPS: what it proves, what it demands, and what it never sends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slotwheel import Client, SlotwheelError, Tls
from slotwheel.security.rights import Right
from slotwheel.wheel.errors import Forbidden, Unauthenticated
from support.certificates import Authority
from support.gatewayprocess import GatewayProcess
from support.httpoperations import OPERATIONS, request_for
from support.nodeprocess import NodeProcess
from support.rightsfile import ALL, OTHER, TOPIC, bearer, token_of, write_rights
from support.securing import write_private
from support.waiting import eventually

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("https")


@pytest.fixture(scope="module")
def files(authority: Authority) -> Tls:
    return authority.issue(HOST)


@pytest.fixture(scope="module")
def gateway(folder: Path, files: Tls) -> Iterator[GatewayProcess]:
    member = '"cert:app.example" = ["all"]'
    security = write_rights(folder / "security.toml", further=member)
    options = [
        *("--tls-cert", str(files.cert), "--tls-key", str(files.key)),
        *("--client-ca", str(files.ca), "--http-client-certs", "optional"),
        *("--security", str(security)),
    ]
    with (
        NodeProcess(folder / "data") as node,
        GatewayProcess(node, *options, ca=Path(str(files.ca))) as started,
    ):
        yield started


def token_file(folder: Path, name: str) -> str:
    return f"file:{write_private(folder / f'{name}.token', token_of(name))}"


def refusal(client: Client) -> SlotwheelError:
    """The error of a message that is sent."""
    with pytest.raises(SlotwheelError) as caught:
        client.send(TOPIC, b"x", delay=60).result()
    return caught.value


def test_a_token_or_a_certificate_lets_a_client_in(
    gateway: GatewayProcess, authority: Authority, files: Tls, tmp_path: Path
) -> None:
    own = authority.issue("app.example")
    for tls, token in ((Tls(ca=files.ca), token_file(tmp_path, ALL)), (own, None)):
        with Client(gateway.url, tls=tls, token=token) as client:
            message_id = client.send(TOPIC, b"x", delay=60).result()
            assert client.cancel(message_id) == ["cancelled"]
            with pytest.raises(Forbidden, match=f"append.*{OTHER}"):
                client.send(OTHER, b"x", delay=60).result()
    with Client(gateway.url, tls=Tls(ca=files.ca)) as client, pytest.raises(Unauthenticated):
        client.send(TOPIC, b"x", delay=60).result()


def answered(gateway: GatewayProcess, context: ssl.SSLContext, request: bytes) -> bytes:
    """The first bytes of the answer. Errors: ``OSError``: the connection ends without."""
    with (
        gateway.connect() as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        secured.sendall(request)
        if received := secured.recv(100):
            return received
        raise ConnectionResetError


def test_each_operation_by_a_certificate(
    gateway: GatewayProcess, authority: Authority, tmp_path: Path
) -> None:
    """One of another authority opens nothing, whatever its name is and whatever token comes along;
    one that the file does not have is a stranger's; the member's is that of its roles."""
    foreign = Authority(tmp_path / "foreign", "foreign")
    contexts = []
    for tls in (
        foreign.issue("app.example"),
        authority.issue("stranger.example"),
        authority.issue("app.example", file="member"),
    ):
        contexts.append(ssl.create_default_context(cafile=authority.ca))
        contexts[-1].load_cert_chain(str(tls.cert), tls.key)
    other, stranger, member = contexts
    with (
        httpx.Client(base_url=gateway.url, verify=stranger) as unknown,
        httpx.Client(base_url=gateway.url, verify=member) as known,
    ):
        for place, operation in OPERATIONS.items():
            request = request_for(place)
            said = f"{request['method']} {request['url']} HTTP/1.1\r\nHost: {HOST}\r\n"
            said += f"Authorization: {bearer(ALL)['Authorization']}\r\nContent-Length: 0\r\n\r\n"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                answered(gateway, other, said.encode())
            is_public = operation.right is Right.PUBLIC
            assert (unknown.request(**request).status_code == 401) is not is_public, place
            assert known.request(**request).status_code != 401, place


def test_a_token_is_read_again_for_each_request(
    gateway: GatewayProcess, files: Tls, tmp_path: Path
) -> None:
    place = token_file(tmp_path, "unknown")
    with Client(gateway.url, tls=Tls(ca=files.ca), token=place) as client:
        with pytest.raises(Unauthenticated):
            client.send(TOPIC, b"x", delay=60).result()
        write_private(Path(place.removeprefix("file:")), token_of(ALL))
        assert client.send(TOPIC, b"x", delay=60).result()


def test_who_answers_has_to_prove_its_name(
    gateway: GatewayProcess, tmp_path: Path, files: Tls
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    token = token_file(tmp_path, ALL)
    port = gateway.address.rpartition(":")[2]
    addresses = {
        gateway.url: Tls(ca=stranger.ca),
        f"https://localhost:{port}": Tls(ca=files.ca),
    }
    for address, tls in addresses.items():
        with Client(address, tls=tls, token=token) as client:
            assert "certificate of the other side" in str(refusal(client))
    with Client(gateway.url, token=token) as client:  # by the system's authorities
        assert "certificate of the other side" in str(refusal(client))


def test_plain_and_encrypted_ports_are_told_apart(
    gateway: GatewayProcess, files: Tls, tmp_path: Path
) -> None:
    with Client(gateway.url.replace("https", "http")) as client:
        assert "without TLS to a port of TLS" in str(refusal(client))
    with (
        GatewayProcess(gateway.node) as plain,
        Client(f"https://{plain.address}", tls=Tls(ca=files.ca)) as client,
    ):
        assert "does not speak TLS" in str(refusal(client))


def test_a_token_never_leaves_without_tls(tmp_path: Path) -> None:
    """Not even to find out that nobody speaks TLS there."""
    token = token_file(tmp_path, ALL)
    with Client("http://192.0.2.1:80", token=token, timeout_s=2) as client:
        assert "would be sent without TLS" in str(refusal(client))
    came: list[bytes] = []
    with socket.create_server((HOST, 0)) as server:

        def take() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(5)
                came.append(connection.recv(100_000))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=take)
        thread.start()
        address = f"https://{HOST}:{server.getsockname()[1]}"
        with Client(address, token=token, timeout_s=5) as client:
            refusal(client)
        thread.join()
    assert came
    assert token_of(ALL).encode() not in b"".join(came)


@pytest.mark.usefixtures("looks_often")
def test_a_certificate_that_is_exchanged_loses_nothing(
    folder: Path, files: Tls, authority: Authority, tmp_path: Path
) -> None:
    """Clients send all the time; the certificate is another one in the middle."""
    cert, key = tmp_path / "gateway.crt", tmp_path / "gateway.key"

    def put(source: Tls) -> None:
        for path, content in ((key, source.key), (cert, source.cert)):
            new = path.with_suffix(".new")
            new.write_bytes(Path(str(content)).read_bytes())
            new.replace(path)

    put(files)
    ended = threading.Event()
    ids: list[str] = []
    with NodeProcess(tmp_path / "data") as node:
        options = "--tls-cert", str(cert), "--tls-key", str(key)
        with GatewayProcess(node, *options, ca=Path(str(files.ca))) as gateway:

            def send() -> None:
                while not ended.is_set():
                    with Client(gateway.url, tls=Tls(ca=files.ca)) as client:
                        ids.append(client.send(TOPIC, b"x", delay=600).result())

            thread = threading.Thread(target=send)
            thread.start()
            serial = _serial_of(gateway.address, files)
            put(authority.issue(HOST, file="second"))
            eventually(lambda: _serial_of(gateway.address, files) != serial, every_s=0.2)
            before = len(ids)
            while len(ids) < before + 10 and thread.is_alive():
                time.sleep(0.05)
            ended.set()
            thread.join()
            assert len(ids) >= before + 10
            assert gateway.get("/v1/messages/count")["messages"] == len(set(ids)) == len(ids)


def _serial_of(address: str, files: Tls) -> str:
    context = ssl.create_default_context(cafile=files.ca)
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 10)
    with context.wrap_socket(plain, server_hostname=HOST) as sock:
        certificate = sock.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])
