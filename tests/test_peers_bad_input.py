"""What a group does with a node that does not belong to it, or says so wrongly: real processes.

Both sides tell it, in their logs, with what to do; the group goes on. `tests/replication` has the
same for the transport alone, with every field of the greeting.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotwheel.client import Client
from support.nodeprocess import NodeProcess
from support.peers import PEERS, Peers
from support.ports import free_address
from support.waiting import PATIENCE_S

ELECTION = ("--election", "6s")
"""Long enough that a busy machine elects nobody: then only a stranger could have had it done."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    path = tmp_path_factory.mktemp("group")
    with Peers(path, *ELECTION) as peers:
        peers.wait_until_whole()
        yield peers
        # Whatever came in between, all are as they were.
        master = peers.wait_until_whole()
        assert peers[master].hello()["epoch"] == 1
        peers.stop()
        assert peers.disagreements() == []


def list_of(group: Peers, **more: str) -> list[str]:
    """The options that say who the peers are."""
    addresses = {name: group.lab.address(name) for name in PEERS} | more
    return [word for name, at in addresses.items() for word in ("--peer", f"{name}={at}")]


@contextmanager
def stray(path: Path, *options: str) -> Iterator[NodeProcess]:
    """A node that wants to be one of them."""
    with NodeProcess(path / "stray", *ELECTION, *options) as node:
        yield node


def told(log: Callable[[], str], pattern: str) -> str:
    """Wait for a line in a log; all of it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (lines := [line for line in log().splitlines() if re.search(pattern, line)]):
        assert time.monotonic() < deadline, f"no {pattern!r} in\n{log()[-3000:]}"
        time.sleep(0.1)
    return lines[0]


def check_unharmed(group: Peers) -> None:
    with Client(group.addresses, timeout_s=60) as client:
        client.send("topic", b"value", delay=60).result(60)
    assert group.wait_until_whole()


def log_of(group: Peers) -> Callable[[], str]:
    """What all of them say from now on."""
    lengths = {name: len(node.log_text()) for name, node in group.nodes.items()}
    return lambda: "\n".join(node.log_text()[lengths[name] :] for name, node in group.nodes.items())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--group", "other"), "belongs to another wheel group"),
        (("--peer", "d=127.0.0.1:19"), "different lists of peers"),
    ],
    ids=["another group", "another list of peers"],
)
def test_a_peer_that_was_set_up_differently(
    group: Peers, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    """Peer c is replaced by a machine with another configuration."""
    group.wait_until_whole()
    # A hand-over would be a new epoch, so it is one that stands by.
    name = group.standbys(group.master())[0]
    theirs = log_of(group)
    group[name].kill()
    own = ("--node-id", name, "--listen", group.lab.listen(name))
    try:
        with stray(tmp_path, *own, *list_of(group), *options) as node:
            line = told(node.log_text, rf"error.*{says}")
            assert told(theirs, rf"error.*{says}")
            assert len(line) < 2000
            time.sleep(1.0)
            assert node.log_text().count("\n") < 60, "it is told now and then, not all the time"
    finally:
        group.start()
    check_unharmed(group)


def test_a_second_node_under_the_same_name(group: Peers, tmp_path: Path) -> None:
    name = group.standbys(group.wait_until_whole())[0]
    theirs = log_of(group)
    own = ("--node-id", name, "--listen", free_address())
    with stray(tmp_path, *own, *list_of(group)) as node:
        told(node.log_text, "error.*same node id")
        told(theirs, "error.*same node id")
        check_unharmed(group)
    check_unharmed(group)


def test_an_even_number_of_peers_is_warned_about(tmp_path: Path) -> None:
    with Peers(tmp_path, names=("a", "b")) as peers:
        peers.wait_until_whole()
        for node in peers.nodes.values():
            told(node.log_text, r"warning.*(even|odd|2)")
        check_unharmed(peers)
