"""The faults that tests inject: a link is cut in one direction, alone, in silence; a disk fills up.

Each heals, and leaves nothing behind on the machine.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.namespaces import Lab, Namespaces, NotAllowed, SmallDisk
from support.proxylab import Proxies
from support.waiting import eventually

# Answers "name of the peer" to each connection, once it has been sent a line.
_SERVER = """
import os, socket, sys, threading
host, _, port = sys.argv[2].rpartition(":")
door = socket.create_server((host, int(port)))
def serve(end):
    while os.read(end.fileno(), 100):  # this is counted, recv is not
        end.sendall(sys.argv[1].encode())
while True:
    threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()
"""
# Says "yes" for each line it reads if its question is answered in time.
_ASKER = """
import socket, sys
ends = {}
for line in sys.stdin:
    address = line.strip()
    try:
        if address not in ends:
            host, _, port = address.rpartition(":")
            # gRPC's way to call an address of IPv4 is a socket of IPv6.
            before = "::ffff:" if sys.argv[1] == "b" else ""
            ends[address] = socket.create_connection((before + host, int(port)), 1)
        ends[address].settimeout(0.5)
        ends[address].sendall(b"?")
        if ends[address].recv(100):
            print("yes", flush=True)
        else:
            del ends[address]
            print("ended", flush=True)
    except OSError as error:
        if not isinstance(error, TimeoutError):
            ends.pop(address, None)
        print("no", type(error).__name__, flush=True)
"""


class Talkers:
    """On each peer a process that answers, and one that asks when it is told to."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.processes: list[subprocess.Popen[str]] = []
        self.askers: dict[str, subprocess.Popen[str]] = {}
        for peer in lab.peers:
            self._run(peer, _SERVER, peer, lab.listen(peer))
            self.askers[peer] = self._run(peer, _ASKER, peer)
        for one, other in itertools.permutations(lab.peers, 2):
            eventually(lambda way=(one, other): self.ask(*way) == "yes")  # type: ignore[misc]

    def _run(self, peer: str, code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.lab.command(peer, [sys.executable, "-uc", code, *arguments]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lab.started(peer, process.pid)
        self.processes.append(process)
        return process

    def ask(self, one: str, other: str) -> str:
        asker = self.askers[one]
        assert asker.stdin is not None
        assert asker.stdout is not None
        print(self.lab.address(other), file=asker.stdin, flush=True)
        return asker.stdout.readline().strip()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(params=[Namespaces, Proxies])
def talkers(request: pytest.FixtureRequest) -> Iterator[Talkers]:
    make: Callable[[list[str]], Lab] = request.param
    try:
        lab = make(["a", "b", "c"])
    except NotAllowed as error:
        pytest.skip(f"no network namespaces here: {error}")
    with lab:
        found = Talkers(lab)
        try:
            yield found
        finally:
            found.close()


def test_a_cut_stops_one_direction_and_nothing_else(talkers: Talkers) -> None:
    lab = talkers.lab
    lab.cut("a", "b")
    # A question needs both directions. What was asked is held or lost, and nobody is told.
    assert talkers.ask("a", "b") == "no TimeoutError"
    assert talkers.ask("b", "a") == "no TimeoutError"
    assert talkers.ask("a", "c") == talkers.ask("c", "a") == "yes"
    assert talkers.ask("b", "c") == talkers.ask("c", "b") == "yes"
    lab.slow("a", "b", 1 << 20)  # a link has one condition: it is not cut any more
    eventually(lambda: (talkers.ask("a", "b"), talkers.ask("b", "a")) == ("yes", "yes"))
    lab.cut("a", "b")
    # Answers to questions that were held come first.
    eventually(lambda: talkers.ask("a", "b") == "no TimeoutError")
    lab.heal()
    eventually(lambda: (talkers.ask("a", "b"), talkers.ask("b", "a")) == ("yes", "yes"))


def test_what_is_sent_arrives_also_when_its_answer_cannot(talkers: Talkers) -> None:
    """One direction alone: the question of b gets through to a, which cannot answer."""
    lab = talkers.lab
    received = _bytes_received(lab, talkers, "a")
    lab.cut("a", "b")
    assert talkers.ask("b", "a") == "no TimeoutError"
    assert _bytes_received(lab, talkers, "a") > received
    received = _bytes_received(lab, talkers, "b")
    assert talkers.ask("a", "b") == "no TimeoutError"
    assert _bytes_received(lab, talkers, "b") == received


def _bytes_received(lab: Lab, talkers: Talkers, peer: str) -> int:
    """What the process that answers there has read from its connections, in bytes."""
    server = talkers.processes[2 * list(lab.peers).index(peer)]
    time.sleep(0.1)
    fields = dict(
        line.split(": ") for line in Path(f"/proc/{server.pid}/io").read_text().splitlines()
    )
    return int(fields["rchar"])


def test_the_namespaces_are_gone_afterwards() -> None:
    try:
        lab = Namespaces(["a", "b"])
    except NotAllowed as error:
        pytest.skip(str(error))
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert f"sw{os.getpid()}" in names
    lab.close()
    for command in (["ip", "netns"], ["ip", "-br", "link"]):
        left = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"sw{os.getpid()}" not in left


def test_a_small_disk_is_filled_and_freed(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "small", 4 << 20)
    except NotAllowed as error:
        pytest.skip(str(error))
    try:
        assert disk.fill() == 4 << 20
        with pytest.raises(OSError, match="No space"):
            (disk.path / "file").write_bytes(b"x")
        disk.free()
        (disk.path / "file").write_bytes(bytes(1 << 20))
    finally:
        disk.close()
    assert not (tmp_path / "small/file").exists()
