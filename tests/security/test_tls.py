"""A stream of TLS: what comes out of it, whatever the pieces, and who is refused by it."""

from __future__ import annotations

import contextlib
import random
import ssl
import warnings
from pathlib import Path

import pytest

from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.tls import Tls, TlsFiles, TlsStream
from slotwheel.wheel.errors import (
    InvalidConfiguration,
    NodeUnreachable,
    SlotwheelError,
    Unauthenticated,
)
from support.certificates import Authority, bundle
from support.mutating import AMOUNTS
from support.securing import EXAMPLE, parsed


def server_of(tls: Tls) -> TlsFiles:
    return TlsFiles(tls, accepts=True, requires_certificate=True)


def exchange(sender: TlsStream, receiver: TlsStream, piece: int = 1 << 20) -> None:
    sent = sender.outgoing()
    for start in range(0, len(sent), piece):
        receiver.feed(sent[start : start + piece])
        if not receiver.is_ready:
            receiver.shake_hands()


def shake(client: TlsStream, server: TlsStream, piece: int = 1 << 20) -> None:
    """Both sides of a handshake. Errors: of the side that refuses the other."""
    client.shake_hands()
    for _ in range(4):
        exchange(client, server, piece)
        exchange(server, client, piece)
    assert client.is_ready
    assert server.is_ready


def proven(client: TlsStream, server: TlsStream) -> tuple[str, ...]:
    shake(client, server)
    return server.names


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_bytes_come_out_as_they_went_in_whatever_the_pieces(
    authority: Authority, piece: int
) -> None:
    client = TlsFiles.of_client(authority.issue("billing.example")).dial("localhost")
    server = server_of(authority.issue("localhost")).accept()
    shake(client, server, piece)
    assert server.names == ("billing.example",)
    assert client.names == ("localhost",)
    plain = random.Random(1).randbytes(100_000)
    for sender, receiver in ((client, server), (server, client)):
        sealed = sender.seal(plain[:10]) + sender.seal(b"") + sender.seal(plain[10:])
        assert plain[:10] not in sealed
        received = bytearray()
        room = memoryview(bytearray(5_000))
        for start in range(0, len(sealed), piece):
            receiver.feed(sealed[start : start + piece])
            while (count := receiver.read_into(room)) > 0:
                received += room[:count]
            assert count == -1
        assert received == plain
        assert receiver.read(10) is None


@pytest.mark.parametrize("cut", [0, 100, 20_000])
def test_who_says_that_nothing_more_comes_can_still_read(authority: Authority, cut: int) -> None:
    """``cut``: so many bytes come behind the end."""
    client = TlsFiles.of_client(authority.issue("billing.example")).dial("localhost")
    server = server_of(authority.issue("localhost")).accept()
    shake(client, server)
    sealed = server.seal(bytes(40_000))
    client.feed(sealed[: len(sealed) - cut])
    client.end()
    client.feed(sealed[len(sealed) - cut :])
    received = 0
    while received < 40_000 and (plain := client.read(1 << 20)):
        received += len(plain)
    assert received == 40_000


def test_the_end_is_told_from_silence(authority: Authority) -> None:
    client = TlsFiles.of_client(authority.issue("billing.example")).dial("localhost")
    server = server_of(authority.issue("localhost")).accept()
    shake(client, server)
    server.feed(client.seal(b"last") + client.end())
    assert server.read(100) == b"last"
    assert server.read(100) == b""
    assert server.read_into(memoryview(bytearray(9))) == 0


@pytest.mark.parametrize(
    ("names", "common_name", "shown"),
    [
        (("b.example", "a.example"), "cn", ("b.example", "a.example")),
        (("127.0.0.1",), "cn", ()),
        ((), "cn", ("cn",)),
    ],
)
def test_the_names_are_those_that_the_certificate_lists_and_else_its_common_name(
    authority: Authority, names: tuple[str, ...], common_name: str, shown: tuple[str, ...]
) -> None:
    client = TlsFiles.of_client(authority.issue(*names, common_name=common_name, file="c"))
    assert (
        proven(client.dial("localhost"), server_of(authority.issue("localhost")).accept()) == shown
    )


GATEWAY = b"gateway.example"
DNS, URI, MAIL, ADDRESS, DIRECTORY = 0x82, 0x86, 0x81, 0x87, 0xA4
"""Tags of names in a certificate."""
ODD_NAMES: dict[str, tuple[list[tuple[int, bytes]], list[str] | None]] = {
    "zero byte": ([(DNS, GATEWAY + b"\0.evil.example")], ["gateway.example\0.evil.example"]),
    "zero byte first": ([(DNS, b"\0" + GATEWAY)], ["\0gateway.example"]),
    "zero byte in an address": ([(URI, GATEWAY + b"\0")], ["gateway.example\0"]),
    "wildcard": ([(DNS, b"*.example")], ["*.example"]),
    "other case": ([(DNS, GATEWAY.upper())], ["GATEWAY.EXAMPLE"]),
    "dot behind": ([(DNS, GATEWAY + b".")], ["gateway.example."]),
    "end of line": ([(DNS, GATEWAY + b"\n")], ["gateway.example\n"]),
    "long": ([(DNS, GATEWAY * 300)], ["gateway.example" * 300]),
    "empty": ([(DNS, b"")], [""]),
    "another first": ([(DNS, b"a"), (DNS, GATEWAY)], ["a", "gateway.example"]),
    "mail": ([(MAIL, GATEWAY)], []),
    "address": ([(ADDRESS, b"\x7f\0\0\1")], []),
    "half an address": ([(ADDRESS, b"\x7f")], []),
    "directory": ([(DIRECTORY, b"\x30\0")], []),
    "no text": ([(DNS, b"\xff\xfe")], None),
    "no text in an address": ([(DNS, GATEWAY), (URI, b"\x80")], None),
    "letters that look alike": ([(DNS, "g\u0430teway.example".encode())], ["g\u0430teway.example"]),
}


@pytest.mark.parametrize(("names", "shown"), ODD_NAMES.values(), ids=ODD_NAMES)
def test_an_odd_name_is_nobody_elses(
    authority: Authority, names: list[tuple[int, bytes]], shown: list[str] | None
) -> None:
    """The authority has signed it, so it is a caller, but never the gateway. What is no text is
    refused by name: as an error that nobody foresaw it would be an alarm of the node each time."""
    client = TlsFiles.of_client(authority.issue_raw(names, common_name="gateway.example"))
    server = server_of(authority.issue("localhost")).accept()
    if shown is None:
        with pytest.raises(InvalidConfiguration, match="no text"):
            shake(client.dial("localhost"), server)
        return
    assert list(proven(client.dial("localhost"), server)) == shown
    authenticator = Authenticator(parsed(EXAMPLE))
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(IdentityProof.of(server.names))


@pytest.mark.parametrize("case", ["foreign", "expired", "self-signed", "none"])
def test_a_client_without_a_good_certificate_is_refused(
    authority: Authority, foreign: Authority, case: str
) -> None:
    """The server has the reason; the client is told by an alert that it reads."""
    made = {
        "foreign": lambda: foreign.issue("billing.example"),
        "expired": lambda: authority.issue("billing.example", expired=True, file="old"),
        "self-signed": lambda: Tls(ca=foreign.ca, cert=self_signed(foreign)),
        "none": lambda: Tls(ca=foreign.ca),
    }[case]()
    tls = Tls(ca=authority.ca, cert=made.cert, key=made.key)
    client = TlsFiles.of_client(tls).dial("localhost")
    server = server_of(authority.issue("localhost")).accept()
    reasons = {"foreign": "issuer", "expired": "expired", "self-signed": "self", "none": "not retu"}
    with pytest.raises(InvalidConfiguration, match=reasons[case]):
        shake(client, server)
    client.feed(server.outgoing())
    with pytest.raises(InvalidConfiguration, match="the other side does not accept"):
        client.read(1)


def self_signed(foreign: Authority) -> Path:
    """A file with an authority's own certificate and key."""
    path = foreign.folder / "self-signed.pem"
    path.write_bytes(foreign.own_pem)
    return path


@pytest.mark.parametrize(
    ("host", "case", "reason"),
    [
        ("localhost", "foreign", "issuer"),
        ("localhost", "expired", "expired"),
        ("other.example", "authority", "Hostname mismatch"),
        ("127.0.0.1", "authority", "IP address mismatch"),
    ],
)
def test_a_server_that_does_not_prove_its_name_is_refused(
    authority: Authority, foreign: Authority, host: str, case: str, reason: str
) -> None:
    made = foreign if case == "foreign" else authority
    issued = made.issue("localhost", expired=case == "expired", file=f"server-{case}")
    client = TlsFiles.of_client(Tls(ca=authority.ca)).dial(host)
    server = TlsFiles(Tls(cert=issued.cert, key=issued.key), accepts=True).accept()
    with pytest.raises(InvalidConfiguration, match=reason):
        shake(client, server)


def test_a_node_id_is_compared_exactly(authority: Authority) -> None:
    """A name with a star, which a host's name may match, is no node."""
    files = {
        name: TlsFiles(
            authority.issue(name),
            accepts=True,
            dials=True,
            requires_certificate=True,
            compares_node_ids=True,
        )
        for name in ("a.x", "b.x", "*.x")
    }
    assert proven(files["a.x"].dial("b.x"), files["b.x"].accept()) == ("a.x",)
    for other in ("a.x", "*.x"):
        with pytest.raises(InvalidConfiguration, match="another name"):
            shake(files["a.x"].dial("b.x"), files[other].accept())


def test_older_versions_of_tls_are_refused(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    client = TlsStream(context, server_hostname="localhost")
    server = TlsFiles(authority.issue("localhost"), accepts=True).accept()
    with pytest.raises(InvalidConfiguration, match="unsupported protocol"):
        shake(client, server)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_two_newest_versions_are_spoken_and_no_session_is_resumed(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """A resumed session would prove a certificate to nobody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    issued = authority.issue("billing.example")
    context.load_cert_chain(str(issued.cert), str(issued.key))
    context.minimum_version = context.maximum_version = version
    files = server_of(authority.issue("localhost"))
    session: ssl.SSLSession | None = None
    for _ in range(2):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
        server = files.accept()
        while not server.is_ready or outgoing.pending:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            server.feed(outgoing.read())
            server.is_ready or server.shake_hands()
            incoming.write(server.outgoing())
        client.do_handshake()
        client.write(b"hi")
        assert server.read(100, outgoing.read()) == b"hi"
        incoming.write(server.seal(b"there"))
        assert client.read(100) == b"there"
        assert server.names == ("billing.example",)
        assert not client.session_reused
        session = client.session


@pytest.mark.parametrize("begin", [b"SWWIRE\1\0", b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
def test_who_speaks_no_tls_is_refused(authority: Authority, begin: bytes) -> None:
    server = server_of(authority.issue("localhost")).accept()
    server.feed(begin)
    with pytest.raises(InvalidConfiguration, match="does not speak TLS"):
        server.shake_hands()
    client = TlsFiles.of_client(Tls(ca=authority.ca)).dial("localhost")
    client.shake_hands()
    client.feed(begin)
    with pytest.raises(InvalidConfiguration, match="what listens there does not speak TLS"):
        client.shake_hands()


def test_what_is_altered_on_its_way_is_refused(authority: Authority) -> None:
    client = TlsFiles.of_client(authority.issue("billing.example")).dial("localhost")
    server = server_of(authority.issue("localhost")).accept()
    shake(client, server)
    sealed = bytearray(client.seal(b"pay 10"))
    sealed[-1] ^= 1
    server.feed(sealed)
    with pytest.raises(NodeUnreachable, match="altered"):
        server.read(100)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_broken_handshakes_raise_nothing_unforeseen(authority: Authority, amount: int) -> None:
    files = server_of(authority.issue("localhost"))
    begin = TlsFiles.of_client(Tls(ca=authority.ca)).dial("localhost")
    begin.shake_hands()
    hello = begin.outgoing()
    chance = random.Random(7)
    refused = 0
    for _ in range(amount):
        broken = bytearray(hello)
        for _ in range(chance.choice((1, 2, 30))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        stream = files.accept()
        stream.feed(broken[: chance.choice((len(broken), chance.randrange(len(broken))))])
        try:
            assert not stream.shake_hands()
        except SlotwheelError:
            refused += 1
    assert refused > amount / 20


def test_new_files_count_for_the_next_connection(authority: Authority, foreign: Authority) -> None:
    issued = authority.issue("localhost", file="rotated")
    files = TlsFiles(issued, accepts=True)
    before = files.accept()
    new = foreign.issue("localhost")
    assert new.cert is not None
    assert new.key is not None
    assert issued.cert is not None
    assert issued.key is not None
    Path(issued.cert).write_bytes(Path(new.cert).read_bytes())
    assert not files.look()  # a certificate without its key
    assert "no certificate with its key" in str(files.error)
    Path(issued.key).write_bytes(Path(new.key).read_bytes())
    assert files.look()
    shake(TlsFiles.of_client(Tls(ca=authority.ca)).dial("localhost"), before)
    shake(TlsFiles.of_client(Tls(ca=foreign.ca)).dial("localhost"), files.accept())


def test_a_certificate_stands_while_its_authority_is_accepted_and_it_is_valid(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    now_s = [0.0]
    ca = bundle(tmp_path / "ca.pem", authority)
    issued = authority.issue("localhost")
    files = TlsFiles(
        Tls(ca=ca, cert=issued.cert, key=issued.key),
        accepts=True,
        requires_certificate=True,
        clock=lambda: now_s[0],
    )
    server = files.accept()
    shake(TlsFiles.of_client(authority.issue("billing.example")).dial("localhost"), server)
    certificate = server.certificate
    assert certificate is not None
    assert files.stands(certificate)
    bundle(ca, authority, foreign)
    assert files.look()
    assert files.stands(certificate)
    bundle(ca, foreign)
    assert files.look()
    assert not files.stands(certificate)
    bundle(ca, authority, foreign)
    files.look()
    now_s[0] = certificate.expires_s
    assert not files.stands(certificate)
    assert files.stands(None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "none begins there"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificates of"),
    ],
)
def test_a_file_without_certificates_is_named(
    authority: Authority, tmp_path: Path, content: str, text: str
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text(content)
    with pytest.raises(InvalidConfiguration, match=text) as caught:
        TlsFiles.of_client(Tls(ca=ca))
    assert str(ca) in str(caught.value)


def test_a_key_with_a_password_is_refused_and_nobody_asked(
    authority: Authority, tmp_path: Path
) -> None:
    issued = authority.issue("localhost")
    with pytest.raises(InvalidConfiguration, match="password"):
        TlsFiles(Tls(cert=issued.cert, key=authority.locked_key(tmp_path)), accepts=True)


def test_a_key_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="no certificate"):
        Tls(key=tmp_path / "key")
