"""Peers on machines of their own: a network namespace each, and links that are cut one way.

Theory: every two peers have a wire of their own, and so has each peer with the test itself, where
the clients and the broker are (``HOST``). What one end sends goes through that end's queue, so a
link has two directions, and each can be changed alone: a queue that swallows everything is a cut,
as silent as a real one; a token bucket is a slow link.

        HOST ─────┬───────┐          10.x.y.15 = HOST, 10.x.y.1 = a, .2 = b, .3 = c
          │       │       │
          a ───── b ───── c ───── a

Rules
- Namespaces, interfaces and disks carry this process's id in their names, and go when the lab is
  closed; those of a process that was killed are known by it (``remove_abandoned``).
- Who is behind a wire is written down and not asked for (no ARP): a cut in one direction must not
  show in the other, and must not become an error.
- Needs root and the tools ``ip`` and ``tc``. `support.proxylab` does the same without.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

HOST = "host"
"""The place of the test itself, beside the peers' names."""
PORT, METRICS_PORT = 7200, 7201
_HOST_NUMBER = 15
_labs = itertools.count()


class NotAllowed(Exception):
    """This machine or this user may not make namespaces; says what was refused."""


class Lab(Protocol):
    """Where peers run, and the links between them. A link is a pair (from, to) of names."""

    peers: Sequence[str]
    host: str
    """An address of the test itself that peers reach."""
    kind: str
    """For people: what the peers are kept apart by."""

    def address(self, peer: str) -> str: ...

    def listen(self, peer: str) -> str: ...

    def metrics(self, peer: str) -> str: ...

    def command(self, peer: str, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on that peer's machine."""

    def started(self, peer: str, pid: int) -> None:
        """Has to be told of each process that was started there."""

    def cut(self, source: str, target: str) -> None:
        """Lose what ``source`` sends to ``target``; the other direction stays as it is. A link that
        was slow is cut, and ``slow`` ends a cut: a link has one condition, the last one set."""

    def slow(self, source: str, target: str, bytes_s: int) -> None: ...

    def heal(self) -> None:
        """All links are as at first."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Namespaces:
    """A lab of network namespaces. Errors: ``NotAllowed``; nothing is left behind then."""

    kind = "network namespaces"

    def __init__(self, peers: Sequence[str]) -> None:
        assert 0 < len(peers) < _HOST_NUMBER
        self.peers: Sequence[str] = tuple(peers)
        lab, pid = next(_labs), os.getpid()
        self._prefix = f"sw{pid}" + ("" if lab == 0 else f"x{lab}")
        self._network = f"10.{64 + (pid >> 8) % 128}.{pid % 256}."
        self._base = lab % 15 * 16
        self.host = self._ip(HOST)
        self._changed: set[tuple[str, str]] = set()
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = getattr(error, "stderr", b"") or str(error).encode()
            raise NotAllowed(said.decode(errors="replace").strip()) from None
        except BaseException:
            self.close()
            raise

    def address(self, peer: str) -> str:
        return f"{self._ip(peer)}:{PORT}"

    listen = address

    def metrics(self, peer: str) -> str:
        return f"{self._ip(peer)}:{METRICS_PORT}"

    def command(self, peer: str, command: Sequence[str]) -> list[str]:
        """``ip netns exec`` becomes the command, so its process id is the command's own."""
        return ["ip", "netns", "exec", self._namespace(peer), *command]

    def started(self, peer: str, pid: int) -> None:
        pass

    def cut(self, source: str, target: str) -> None:
        self._queue(source, target, "blackhole")

    def slow(self, source: str, target: str, bytes_s: int) -> None:
        rate = ["rate", f"{bytes_s * 8}bit", "burst", "16kb", "latency", "400ms"]
        self._queue(source, target, "tbf", *rate)

    def heal(self) -> None:
        for source, target in sorted(self._changed):
            _run("tc", *self._at(source), *_on("del", self._end(source, target)))
        self._changed.clear()

    def close(self) -> None:
        """Remove everything; a wire goes with either of its ends."""
        for peer in self.peers:
            _quietly("ip", "link", "del", self._end(HOST, peer))
            _quietly("ip", "netns", "del", self._namespace(peer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How

    def _build(self) -> None:
        for peer in self.peers:
            _run("ip", "netns", "add", self._namespace(peer))
            _run("ip", *self._at(peer), "link", "set", "lo", "up")
            _run("ip", *self._at(peer), "addr", "add", f"{self._ip(peer)}/32", "dev", "lo")
        for one, other in itertools.combinations((*self.peers, HOST), 2):
            self._wire(one, other)

    def _wire(self, one: str, other: str) -> None:
        far = ["netns", self._namespace(other)] if other != HOST else ["netns", str(os.getpid())]
        near = ["name", self._end(one, other), "address", self._mac(one, other)]
        peer = ["name", self._end(other, one), "address", self._mac(other, one)]
        _run("ip", *self._at(one), "link", "add", *near, "type", "veth", "peer", *peer, *far)
        for here, there in ((one, other), (other, one)):
            at, end = ("ip", *self._at(here)), ("dev", self._end(here, there))
            if here == HOST and there == self.peers[0]:
                _run(*at, "addr", "add", f"{self.host}/32", *end)
            _run(*at, "link", "set", *end, "up")
            _run(*at, "route", "add", f"{self._ip(there)}/32", *end, "src", self._ip(here))
            behind = ("lladdr", self._mac(there, here), "nud", "permanent")
            _run(*at, "neigh", "replace", self._ip(there), *behind, *end)

    def _queue(self, source: str, target: str, *kind: str) -> None:
        on = _on("replace", self._end(source, target))
        _run("tc", *self._at(source), *on, *kind)
        self._changed.add((source, target))

    def _number(self, name: str) -> int:
        return _HOST_NUMBER if name == HOST else self.peers.index(name) + 1

    def _ip(self, name: str) -> str:
        return f"{self._network}{self._base + self._number(name)}"

    def _mac(self, name: str, towards: str) -> str:
        return f"02:00:00:00:{self._number(name):02x}:{self._number(towards):02x}"

    def _namespace(self, peer: str) -> str:
        return f"{self._prefix}-{peer}"

    def _end(self, name: str, towards: str) -> str:
        """The interface at ``name`` on its wire to ``towards``; at most 15 letters."""
        return f"{self._prefix}{self._number(name):x}{self._number(towards):x}"

    def _at(self, name: str) -> list[str]:
        return [] if name == HOST else ["-n", self._namespace(name)]


class SmallDisk:
    """A disk of ``size`` bytes mounted on ``path``, in memory; it can be filled up, and freed.

    Errors: ``NotAllowed``.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={size}", f"sw{os.getpid()}", str(path))
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotAllowed(f"no disk of its own: {error}") from None

    def fill(self) -> int:
        """Leave no byte free; how many were."""
        taken = 0
        with self._ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12):
                with contextlib.suppress(_DiskFull):
                    while True:
                        taken += _write(file.fileno(), bytes(piece))
        return taken

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        # Lazily: what still reads there keeps it for as long as it reads.
        _quietly("umount", "-l", str(self.path))


def remove_abandoned() -> None:
    """Remove the namespaces and disks of processes that are gone: nobody else will."""
    named = re.compile(r"sw(\d+)(?:x\d+-.*|-.*|)")

    def is_abandoned(name: str) -> bool:
        found = named.fullmatch(name)
        return found is not None and not Path("/proc", found[1]).exists()

    spaces = Path("/run/netns")
    for space in spaces.iterdir() if spaces.is_dir() else ():
        if is_abandoned(space.name):
            _quietly("ip", "netns", "del", space.name)
    for line in Path("/proc/mounts").read_text().splitlines():
        source, path, *_ = line.split()
        if is_abandoned(source):
            _quietly("umount", "-l", path)


class _DiskFull(Exception):
    pass


def _write(handle: int, data: bytes) -> int:
    try:
        return os.write(handle, data)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _DiskFull from None
        raise


def _on(verb: str, interface: str) -> list[str]:
    return ["qdisc", verb, "dev", interface, "root"]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def _quietly(*command: str) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _run(*command)
