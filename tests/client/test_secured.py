"""The client over TLS: its methods are the same, and what does not fit together is said at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel import AsyncClient, Client, InvalidConfiguration, Message, SlotwheelError, Tls
from slotwheel.client.addresses import Nodes
from slotwheel.security.tls import TlsFiles
from support.certificates import Authority
from support.fakewheel import FakeWheel, served
from support.stopwatch import Stopwatch


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    return authority.issue("billing.example")


@pytest.fixture
def secured(wheel: FakeWheel, authority: Authority) -> Iterator[str]:
    """The address of a node that asks for a certificate."""
    node = TlsFiles(authority.issue("127.0.0.1"), accepts=True, requires_certificate=True)
    with served(wheel, tls=node) as address:
        yield address


def test_all_methods_are_the_same_over_tls(wheel: FakeWheel, secured: str, tls: Tls) -> None:
    due = int(time.time() * 1000) + 60_000
    rows = pa.table({"topic": ["t"] * 3000, "value": [bytes(500)] * 3000, "due": [due] * 3000})
    with Client(f"tls://{secured}", tls=tls, timeout_s=20) as client:
        assert client.send("t", b"sent", delay=60).id
        assert client.store("t", b"stored", delay=60)
        many = client.send_many([Message("t", b"%d" % n, delay=60) for n in range(2000)])
        assert len(many.result(60)) == 2000
        assert len(client.send_table(rows).result(60)) == 3000
        assert client.status().keys()
    assert len(wheel.values()) == 5002


def test_messages_of_an_event_loop_go_over_tls(wheel: FakeWheel, secured: str, tls: Tls) -> None:
    async def send() -> list[str]:
        async with AsyncClient(f"tls://{secured}", tls=tls, timeout_s=20) as client:
            sends = [client.send("t", bytes(n), delay=60) for n in range(1000)]
            assert (await client.status()).keys()
            return list(await asyncio.gather(*sends))

    assert len(set(asyncio.run(send()))) == 1000
    assert sorted(map(len, wheel.values())) == list(range(1000))


def by_client(address: str, tls: Tls | None) -> None:
    with Client(address, tls=tls, timeout_s=30) as client:
        client.store("t", b"x", delay=60)


def by_buffer(address: str, tls: Tls | None) -> None:
    with Client(address, tls=tls, timeout_s=30) as client:
        client.send("t", b"x", delay=60).result(60)


def by_action(address: str, tls: Tls | None) -> None:
    with Client(address, tls=tls, timeout_s=30) as client:
        client.status()


def by_loop(address: str, tls: Tls | None) -> None:
    async def send() -> None:
        async with AsyncClient(address, tls=tls, timeout_s=30) as client:
            await client.store("t", b"x", delay=60)

    asyncio.run(send())


@pytest.mark.parametrize("send", [by_client, by_buffer, by_action, by_loop])
def test_what_does_not_fit_together_is_an_error_at_once(
    send: Callable[[str, Tls | None], None],
    secured: str,
    authority: Authority,
    tls: Tls,
    tmp_path: Path,
) -> None:
    """A person has to change something: nothing is tried again for ``timeout_s``."""
    foreign = Authority(tmp_path / "foreign", "foreign")
    stranger = foreign.issue("billing.example")
    named = secured.replace("127.0.0.1", "localhost")
    for address, files, text in (
        (f"tls://{secured}", Tls(ca=foreign.ca), "certificate of the other side is not accepted"),
        (f"tls://{named}", tls, "certificate of the other side is not accepted"),
        (f"tls://{secured}", Tls(ca=authority.ca), "does not accept this one's TLS"),
        (
            f"tls://{secured}",
            Tls(ca=authority.ca, cert=stranger.cert, key=stranger.key),
            "does not accept this one's TLS",
        ),
        (secured, None, "tls://HOST:PORT"),
    ):
        watch = Stopwatch()
        with pytest.raises(InvalidConfiguration, match=text):
            send(address, files)
        assert watch.seconds < 25


@pytest.mark.parametrize("send", [by_client, by_buffer, by_action, by_loop])
def test_tls_to_a_node_without_it_is_an_error_at_once(
    send: Callable[[str, Tls | None], None], address: str, tls: Tls
) -> None:
    with pytest.raises(InvalidConfiguration, match="does not speak TLS"):
        send(f"tls://{address}", tls)


@pytest.mark.parametrize(
    ("address", "tls", "text"),
    [
        ("a:1,tls://b:1", None, "some addresses are with TLS"),
        ("a:1", Tls(), "addresses without it"),
        ("http://a:1", Tls(), "addresses without it"),
        ("tls://a", None, "not the address of a node"),
        ("tls://http://a:1", None, "not the address of a node"),
    ],
)
def test_addresses_that_mix_are_refused(address: str, tls: Tls | None, text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        Client(address, tls=tls)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"none\.pem"):
        Client("tls://a:1", tls=Tls(ca=tmp_path / "none.pem"))


def test_the_way_to_nodes_can_be_handed_on(wheel: FakeWheel, secured: str, tls: Tls) -> None:
    nodes = Nodes(f"tls://{secured}", tls)
    assert str(nodes) == f"tls://{secured}"
    with Client(nodes, timeout_s=20) as client:
        client.store("t", b"x", delay=60)
    assert wheel.values() == [b"x"]


def test_what_the_system_trusts_counts_without_an_authority(secured: str) -> None:
    """It does not trust the test's."""
    with (
        Client(f"tls://{secured}", timeout_s=20) as client,
        pytest.raises(SlotwheelError, match="not accepted"),
    ):
        client.store("t", b"x", delay=60)
