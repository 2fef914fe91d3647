"""The lab for those who may not make network namespaces: loopback addresses, and proxies between.

Theory: each peer listens behind a proxy, and the others only know the proxy's address. A connection
carries two links, one a direction: what its caller sends, and what it is answered. Who the caller
is, the kernel tells: the process that owns the other end of the connection. A cut link forwards
nothing, and tells nobody; when it heals, what was held flows on, as TCP would send it again.

Limits: connections are taken by the kernel also over a cut link, and nothing follows then.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from .namespaces import HOST
from .ports import free_port
from .proxy import Link, Proxy

_MAPPED = "0000000000000000FFFF0000"


class Loopback:
    """Peers on ports of 127.0.0.1, for tests that leave the links alone."""

    kind = "loopback"
    host = "127.0.0.1"

    def __init__(self, peers: Sequence[str]) -> None:
        self.peers: Sequence[str] = tuple(peers)
        self._ips = self._places()
        self._listen = {peer: (ip, free_port(ip)) for peer, ip in self._ips.items()}
        self._metrics = {peer: (ip, free_port(ip)) for peer, ip in self._ips.items()}

    def _places(self) -> dict[str, str]:
        return dict.fromkeys(self.peers, self.host)

    def listen(self, peer: str) -> str:
        return "{}:{}".format(*self._listen[peer])

    def address(self, peer: str) -> str:
        return self.listen(peer)

    def metrics(self, peer: str) -> str:
        return "{}:{}".format(*self._metrics[peer])

    def command(self, peer: str, command: Sequence[str]) -> list[str]:
        return list(command)

    def started(self, peer: str, pid: int) -> None:
        pass

    def cut(self, source: str, target: str) -> None:
        raise NotImplementedError("there is nothing in between")

    def slow(self, source: str, target: str, bytes_s: int) -> None:
        raise NotImplementedError("there is nothing in between")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Proxies(Loopback):
    """A lab on 127.0.0.2, 127.0.0.3, … with a proxy in front of each peer."""

    kind = "loopback addresses and proxies"

    def __init__(self, peers: Sequence[str]) -> None:
        super().__init__(peers)
        self._pids: dict[int, str] = {}
        self._rates: dict[Link, int | None] = {}
        """Bytes a second of each link that is not as at first; None: it is cut."""
        self._changed = threading.Condition()
        self._closed = False
        self._doors = {peer: _Door(self, peer, *self._listen[peer]) for peer in self.peers}

    def _places(self) -> dict[str, str]:
        return {peer: f"127.0.0.{number}" for number, peer in enumerate(self.peers, 2)}

    def address(self, peer: str) -> str:
        return self._doors[peer].address

    def started(self, peer: str, pid: int) -> None:
        self._pids[pid] = peer

    def cut(self, source: str, target: str) -> None:
        self._change((source, target), None)

    def slow(self, source: str, target: str, bytes_s: int) -> None:
        self._change((source, target), bytes_s)

    def _change(self, link: Link, rate: int | None) -> None:
        with self._changed:
            self._rates[link] = rate
            self._changed.notify_all()

    def heal(self) -> None:
        with self._changed:
            self._rates.clear()
            self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        self.heal()
        for door in self._doors.values():
            door.close()

    def hold(self, link: Link, nbytes: int) -> None:
        """Return when so many bytes may go on by that link."""
        with self._changed:
            self._changed.wait_for(lambda: self._rates.get(link, 0) is not None or self._closed)
            rate = self._rates.get(link)
        if rate is not None:
            time.sleep(nbytes / rate)

    def caller(self, near: socket.socket) -> str:
        inode = _inode_of(near.getpeername(), near.getsockname())
        for pid, peer in list(self._pids.items()):
            if inode is not None and _holds(pid, inode):
                return peer
        return HOST


class _Door(Proxy):
    """In front of one peer."""

    def __init__(self, lab: Proxies, peer: str, ip: str, port: int) -> None:
        self._lab = lab
        self._peer = peer
        super().__init__(port, ip, (ip, free_port(ip)))

    def _links(self, near: socket.socket) -> tuple[Link, Link]:
        caller = self._lab.caller(near)
        return (caller, self._peer), (self._peer, caller)

    def _hold(self, link: Link, nbytes: int) -> None:
        self._lab.hold(link, nbytes)


def _inode_of(local: tuple[str, int], remote: tuple[str, int]) -> str | None:
    """The socket at ``local`` that is connected to ``remote``; also one that speaks IPv6 and was
    given an address of IPv4."""
    for table, before in (("tcp", ""), ("tcp6", _MAPPED)):
        wanted = before + _hex(local), before + _hex(remote)
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if (fields[1], fields[2]) == wanted:
                return fields[9]
    return None


def _hex(address: tuple[str, int]) -> str:
    # The kernel prints the four bytes as one number of the machine's own order.
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def _holds(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(handle.readlink()) == wanted:
                    return True
    return False
