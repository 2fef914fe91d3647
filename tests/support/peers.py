"""A group of peers as processes: started, killed, paused, wiped, and asked what they are.

Each runs in its place of a lab (`support.namespaces`, `support.proxylab`), on a data directory of
its own below ``directory``. A group of one is a node without peers. Processes are ended by their
own process ids, and all of them when the group is closed. Peers answer for themselves here; a
client would go to the master.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from slotwheel.client.link import Caller
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.journal.segment import is_segment_name
from slotwheel.wheel.protocol import HELLO, STATUS, STEP_DOWN
from slotwheel.wire.channel import Secure
from support.namespaces import Lab, Namespaces, NotAllowed, SmallDisk
from support.nodeprocess import NodeProcess, run_cli
from support.promises import Fault
from support.proxylab import Loopback, Proxies
from support.waiting import PATIENCE_S, eventually

PEERS = ("a", "b", "c")
_ASK_S = 2.0
_POLL_S = 0.05
_PROMISE_MS = 800
_DEPOSED = re.compile(r"^(\S+) info replication-deposed ", re.MULTILINE)


def lab_of(peers: Sequence[str]) -> Lab:
    """Network namespaces; loopback addresses and proxies where those are not allowed."""
    try:
        return Namespaces(peers)
    except NotAllowed:
        return Proxies(peers)


class PeerProcess(NodeProcess):
    """One peer, on the same addresses whenever it is started."""

    def __init__(self, name: str, data: Path, lab: Lab, *options: str, **variables: str) -> None:
        own = ["--node-id", name, "--listen", lab.listen(name), "--metrics", lab.metrics(name)]
        for peer in lab.peers if len(lab.peers) > 1 else ():
            own += ["--peer", f"{peer}={lab.address(peer)}"]
        if not lab.listen(name).startswith("127."):
            own.append("--allow-insecure")  # in a network of its own
        super().__init__(data, *own, *options, **variables)
        self.name = name
        self.listen = lab.listen(name)
        self._lab = lab
        self.paused = False
        self.secure: Secure | None = None
        """Begins TLS to its port for clients; None: that is plain."""

    def command(self) -> list[str]:
        return self._lab.command(self.name, super().command())

    def start(self, *, wait: bool = True) -> Self:
        super().start(wait=False)
        self._lab.started(self.name, self.running.pid)
        self.paused = False
        if wait:
            self.wait_until_it_listens()
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        self.running.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.running.send_signal(signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        super().kill()
        self.paused = False

    def ask(
        self, action: str, fields: dict[str, Any] | None = None, timeout_s: float = _ASK_S
    ) -> dict[str, Any] | None:
        """What this very peer answers; None if it does not."""
        if not self.alive or self.paused:
            return None
        with contextlib.suppress(SlotwheelError):
            caller = Caller(self.listen, self.secure)
            try:
                return caller.call(action, fields or {}, timeout_s)
            finally:
                caller.close()
        return None

    def hello(self) -> dict[str, Any]:
        return self.ask(HELLO) or {}

    def status(self) -> dict[str, Any]:
        """What the wheel holds, and under ``replication`` how it sees its group."""
        answer = self.ask(STATUS) or {}
        return {**answer.get("status", {}), "replication": answer.get("replication", {})}

    def oldest_segment(self) -> str:
        """The name of the first segment of its journal; the entries before it are no more."""
        names = (path.name for path in (self.data / "journal").iterdir())
        return min(name for name in names if is_segment_name(name))

    def slot_files(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in (self.data / "slots").iterdir())
        return []


class Peers:
    """Started when the ``with`` block is entered; everything is gone when it is left."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        names: Sequence[str] = PEERS,
        small_disk: tuple[str, int] | None = None,
        lab: Lab | None = None,
        variables: Mapping[str, Mapping[str, str]] | None = None,
        own: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """``lab``: without one the links cannot be cut. ``small_disk``: which peer has a disk of
        its own, and of how many bytes. ``variables``: of each peer's environment, by name; ``own``:
        options besides those of all."""
        self.lab = lab or Loopback(names)
        self.disk: SmallDisk | None = None
        self.disk_of = ""
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.lab.close)
        try:
            if small_disk is not None:
                self._mount(directory / small_disk[0], *small_disk)
        except BaseException:
            self.close()
            raise
        self.nodes = {
            name: PeerProcess(
                name,
                directory / name,
                self.lab,
                *(*options, *(own or {}).get(name, ())),
                **(variables or {}).get(name, {}),
            )
            for name in names
        }
        self.addresses = ",".join(self.lab.address(name) for name in names)

    def _mount(self, path: Path, name: str, size: int) -> None:
        with contextlib.suppress(NotAllowed):
            self.disk = SmallDisk(path, size)
            self.disk_of = name
            self._closing.callback(self.disk.close)

    def __getitem__(self, name: str) -> PeerProcess:
        return self.nodes[name]

    @property
    def names(self) -> list[str]:
        return list(self.nodes)

    def start(self) -> Self:
        """Start those that do not run, all at once, and wait until they listen."""
        fresh = [node for node in self.nodes.values() if not node.alive]
        for node in fresh:
            node.start(wait=False)
        for node in fresh:
            node.wait_until_it_listens()
        return self

    def master(self, within_s: float = PATIENCE_S, *, other_than: str = "") -> str:
        """The one that serves, and of several that think so (one is paused or cut off) the one of
        the highest epoch. Waits for it."""
        if len(self.nodes) == 1:
            return self.names[0]
        deadline = time.monotonic() + within_s
        while True:
            seen = {name: node.hello() for name, node in self.nodes.items()}
            serving = [
                (int(hello["epoch"]), name) for name, hello in seen.items() if hello.get("serving")
            ]
            if serving and max(serving)[1] != other_than:
                return max(serving)[1]
            assert time.monotonic() < deadline, f"no master: {seen}\n{self.log_ends()}"
            time.sleep(_POLL_S)

    def standbys(self, master: str) -> list[str]:
        return [name for name in self.nodes if name != master]

    def wipe(self, name: str) -> None:
        """Its disk is new: kill it, and remove everything it had."""
        self[name].kill()
        for path in self[name].data.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def peer_states(self, master: str) -> dict[str, dict[str, Any]]:
        """How the master sees each of the others, by name."""
        found = self[master].status()["replication"].get("peers", [])
        return {one["id"]: one for one in found if one["id"] != master}

    def wait_until_whole(self, within_s: float = PATIENCE_S) -> str:
        """Until there is a master, and every other peer is admitted and keeps up; the master."""
        deadline = time.monotonic() + within_s
        while True:
            master = self.master(within_s)
            states = self.peer_states(master) if len(self.nodes) > 1 else {}
            behind = {
                name: states.get(name)
                for name in self.standbys(master)
                if not _keeps_up(states.get(name, {}))
            }
            if not behind and (states or len(self.nodes) == 1):
                return master
            assert time.monotonic() < deadline, f"{master} sees {behind}\n{self.log_ends()}"
            time.sleep(0.1)

    def wait(self, what: str, check: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        failed = lambda: f"not {what} in {within_s} s\n{self.log_ends()}"  # noqa: E731
        eventually(check, within_s, every_s=0.1, otherwise=failed)

    def step_down(self, master: str, timeout_s: float = 5.0) -> dict[str, Any] | None:
        return self[master].ask(STEP_DOWN, {"timeout_s": timeout_s}, timeout_s + 2)

    def stop(self) -> None:
        """SIGTERM to all, and their ends."""
        for node in self.nodes.values():
            node.running.send_signal(signal.SIGTERM)
        for node in self.nodes.values():
            node.running.wait(60)

    def disagreements(self) -> list[str]:
        """Of stopped peers: what ``verify`` finds in each, and between the first and the others."""
        found = []
        first, *others = (node.data for node in self.nodes.values())
        calls: list[list[str | Path]] = [[first]]
        calls += [[other, "--against", first] for other in others]
        for arguments in calls:
            done = run_cli("verify", *arguments)
            if done.returncode != 0:
                found.append(f"verify {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}")
        return found

    def turns(self) -> list[Fault]:
        """When a master found out that it is none any more, by the logs. It had lost touch with
        its majority for a promise (800 ms) by then."""
        found = []
        for name, node in self.nodes.items():
            for moment in _DEPOSED.findall(node.log_text()):
                at_ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
                found.append(Fault(f"{name} deposed", at_ms - _PROMISE_MS, at_ms))
        return sorted(found, key=lambda turn: turn.begin_ms)

    def log_ends(self, lines: int = 15) -> str:
        """For the report of a failure."""
        found = []
        for name, node in self.nodes.items():
            text = node.log_text().splitlines() if node.log.exists() else []
            found += [f"--- {name}", *text[-lines:]]
        return "\n".join(found)

    def close(self) -> None:
        for node in getattr(self, "nodes", {}).values():
            if node.alive:
                node.kill()
        self._closing.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _keeps_up(seen: dict[str, Any]) -> bool:
    """Whether a master that sees a peer so could lose another one."""
    return bool(seen.get("admitted")) and seen.get("state") == "replicate"
