"""A connection to a gateway that one thread uses and another one ends."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl

import pytest

from slotwheel.client.httpconnection import GatewayConnection


def test_nothing_leaves_without_tls_while_a_connection_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread sends just when it is cut."""

    def connect(made: http.client.HTTPSConnection) -> None:
        plain = socket.create_connection((made.host, made.port))
        context = ssl.create_default_context()
        made.sock = context.wrap_socket(
            plain, server_hostname=made.host, do_handshake_on_connect=False
        )
        made.sock.settimeout(0)  # nobody answers

    def shutdown(used: socket.socket, how: int) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            used.sendall(b"a message")

    monkeypatch.setattr(http.client.HTTPSConnection, "connect", connect)
    monkeypatch.setattr(socket.socket, "shutdown", shutdown, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = GatewayConnection(f"https://127.0.0.1:{server.getsockname()[1]}", 1)
        peer, _ = server.accept()
        with peer:
            connection.cut()
            connection.close()
            peer.settimeout(10)
            sent = b"".join(iter(lambda: peer.recv(65_536), b""))
    assert sent
    assert b"a message" not in sent
