"""Policies on the nodes of a group: the file of the master counts, and each change is a version."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from slotwheel import Client, InvalidMessage, Message
from slotwheel.node import policies as policies_module
from slotwheel.node.policies import GroupPolicies
from slotwheel.node.registrants import CHANGES_MAX, GROUPS_OF_ONE_MAX, SETTLED_S, Registrants
from slotwheel.policy.policyset import PolicySet
from slotwheel.policy.rule import Rule, parse_rule
from slotwheel.wheel.errors import InvalidConfiguration, NotMaster, NotRunning, Overloaded
from support.nodeprocess import NodeProcess, run_process
from support.peers import Peers
from support.proxylab import Proxies
from support.waiting import eventually

EU = parse_rule({"header": "region", "equals": "eu"})
US = parse_rule({"header": "region", "equals": "us"})
FILE = PolicySet.from_toml("levels = ['1s']", "file")


class Engine:
    """Settings in memory. ``pending``: a change waits there for its commit if ``slow``."""

    def __init__(self) -> None:
        self._settings: Mapping[str, Any] = {}
        self.changes = 0
        self.failures: list[Exception] = []
        self.slow = False
        self.pending: Future[Any] | None = None
        self._lock = threading.Lock()

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def change_settings(self, known: Mapping[str, Any], settings: Mapping[str, Any]) -> Future[Any]:
        with self._lock:
            if known != self._settings:
                raise Overloaded("changing")
            future: Future[Any] = Future()
            if self.failures:
                future.set_exception(self.failures.pop(0))
            elif self.slow:
                self.pending = future
            else:
                self.changes += 1
                self._settings = dict(settings)
                future.set_result(None)
            return future


class Events:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def event(self, name: str, *, version: int) -> None:
        assert name == "policies-changed"
        self.versions.append(version)


def made(engine: Engine, written: PolicySet | None = None) -> tuple[GroupPolicies, Events]:
    events = Events()
    return GroupPolicies(engine, written, cast(Any, events)), events


def test_a_node_without_a_file_changes_nothing() -> None:
    engine = Engine()
    policies, events = made(engine)
    policies.turn()
    assert policies.current == PolicySet()
    assert (engine.changes, events.versions) == (0, [])


def test_a_file_becomes_the_groups_once() -> None:
    engine = Engine()
    policies, events = made(engine, FILE)
    for _ in range(3):
        policies.turn()
    assert policies.current.version == 1
    assert list(policies.current.levels) == ["1s"]
    assert (engine.changes, events.versions) == (1, [1])
    again, events = made(engine, FILE)
    again.turn()
    assert (engine.changes, events.versions, again.current.version) == (1, [], 1)


def test_what_another_master_changed_meanwhile_is_set_right_again() -> None:
    engine = Engine()
    policies, events = made(engine, FILE)
    policies.turn()
    other, _ = made(engine, PolicySet())
    other.turn()
    policies.turn()
    assert events.versions == [1, 3]
    assert list(policies.current.levels) == ["1s"]


def test_a_group_registers_beside_a_file() -> None:
    engine = Engine()
    policies, events = made(engine, FILE)
    policies.turn()
    assert policies.register("g", EU).version == 2
    assert policies.register("g", EU).version == 2
    with pytest.raises(InvalidMessage, match="another rule"):
        policies.register("g", US)
    policies.turn()
    assert policies.forget("g").version == 3
    assert policies.forget("g").version == 3
    assert policies.register("g", US).groups == {"g": US}
    assert (engine.changes, events.versions) == (4, [1])


def test_one_address_fills_no_table_and_no_journal() -> None:
    engine = Engine()
    policies, _ = made(engine)
    large = parse_rule({"header": "h", "equals": "x" * 3_000})
    written = 0

    def tries(wish: Callable[[], object]) -> bool:
        nonlocal written
        before = engine.changes
        try:
            wish()
        except (InvalidConfiguration, Overloaded):
            assert engine.changes == before
            return False
        if engine.changes > before:
            written += len(json.dumps(policies.current.to_dict()))
        return True

    def registered(prefix: str, count: int, rule: Rule, host: str) -> int:
        names = [f"{prefix}{number}" for number in range(count)]
        return sum(tries(partial(policies.register, name, rule, host)) for name in names)

    assert 5 < registered("g", 100, large, "10.0.0.66") < 20
    assert registered("g", 1, large, "10.0.0.66"), "equal: nothing is stored"
    assert registered("another's", 1, EU, "10.0.0.7")
    assert registered("h", GROUPS_OF_ONE_MAX + 50, EU, "10.0.0.8") == GROUPS_OF_ONE_MAX
    assert written < 12 << 20
    changes = engine.changes
    for _ in range(CHANGES_MAX):
        tries(partial(policies.forget, "g0", "10.0.0.66"))
        registered("g", 1, large, "10.0.0.66")
    assert engine.changes - changes < CHANGES_MAX + 50, "the same one, again and again"
    assert policies.forget("another's0", "10.0.0.7").groups


def test_groups_that_come_at_once_share_the_quarter_of_their_address() -> None:
    """Also while none of them is committed yet."""
    registrants = Registrants(lambda: now[-1])
    now, stored = [0.0], {"forgotten"}
    registrants.registers("10.0.0.8", "forgotten", 10, ())
    registrants.forgets("10.0.0.8", "forgotten")
    stored.clear()
    for number in range(GROUPS_OF_ONE_MAX):
        now.append(now[-1] + SETTLED_S / 2 / GROUPS_OF_ONE_MAX)
        with contextlib.suppress(Overloaded):
            registrants.registers("10.0.0.8", f"g{number}", 10, stored)
    now.append(now[-1] + 5)
    with pytest.raises(InvalidConfiguration, match="too many"):
        registrants.registers("10.0.0.8", "one more", 10, stored)
    registrants.registers("10.0.0.9", "another's", 10, stored)
    now.append(now[-1] + SETTLED_S)
    registrants.registers("10.0.0.8", "none was committed", 10, stored)


def test_members_that_come_at_once_are_all_registered_or_told() -> None:
    engine = Engine()
    policies, _ = made(engine)

    def register(number: int) -> str:
        try:
            policies.register(f"g{number % 5}", EU if number % 2 else US)
        except InvalidMessage:
            return "refused"
        return "registered"

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(register, range(40)))
    assert policies.current.version == 5
    assert (answers.count("registered"), answers.count("refused")) == (20, 20)


def test_a_full_disk_is_waited_for_and_a_lost_epoch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies_module, "_AGAIN_S", 0.001)
    engine = Engine()
    policies, events = made(engine, FILE)
    engine.failures = [Overloaded("no room"), Overloaded("no room")]
    assert policies.register("g", EU).version == 1
    engine.failures = [NotMaster()]
    with pytest.raises(NotMaster):
        policies.register("h", EU)
    engine.failures = [NotMaster()]
    policies.turn()
    assert events.versions == []
    policies.turn()
    assert events.versions == [2]


def test_a_change_that_is_not_committed_in_time_is_not_called_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies_module, "CHANGE_S", 0.1)
    monkeypatch.setattr(policies_module, "_TURN_S", 0.1)
    engine = Engine()
    engine.slow = True
    policies, _ = made(engine, FILE)
    with pytest.raises(NotRunning, match="not known") as caught:
        policies.register("g", EU)
    assert "slotwheel policies" in caught.value.remedy
    policies.turn()
    assert policies.current.version == 0


def test_who_needs_the_file_waits_for_it() -> None:
    engine = Engine()
    engine.failures = [NotMaster(), Overloaded("no room"), NotRunning("closed")]
    policies, events = made(engine, FILE)
    stop = threading.Event()
    policies.settle(stop)
    assert (list(policies.current.levels), events.versions) == (["1s"], [1])
    for written in (None, PolicySet()):
        made(Engine(), written)[0].settle(stop)
    engine.failures = [NotMaster()] * 1000
    waiting = threading.Thread(target=made(engine, PolicySet())[0].settle, args=[stop])
    waiting.start()
    stop.set()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_file_that_cannot_be_the_groups_keeps_nobody() -> None:
    engine = Engine()
    values = [f"{n:04}" * 500 for n in range(100)]
    rule = {"header": "h", "in": values}
    engine.change_settings({}, {"version": 1, "groups": {"g": rule}})  # of an older version
    routes = {"routes": {"r": [{"where": rule, "to": ["t"]}]}}
    policies, _ = made(engine, PolicySet.from_dict(routes))
    with pytest.raises(InvalidConfiguration, match="too large"):
        policies.settle(threading.Event())


# -- as processes


def levels_of(address: str) -> tuple[int, list[str]]:
    with Client(address, timeout_s=20) as client:
        found = client.policies()
    return found["version"], found["levels"]


def test_a_changed_file_at_a_restart_is_the_next_version(tmp_path: Path) -> None:
    path = tmp_path / "policies.toml"
    path.write_text("levels = ['1s']")
    node = NodeProcess(tmp_path / "data", SLOTWHEEL_POLICIES=str(path))
    with node:
        eventually(lambda: levels_of(node.address) == (1, ["1s"]))
        with Client(node.address) as client:
            assert client.register("g", EU.to_dict())["version"] == 2
            assert client.status()["policies"] == 2
        node.kill()
        with node.start():
            assert levels_of(node.address) == (2, ["1s"])
            node.signal()
        path.write_text("levels = ['2s', '3s']")
        with node.start():
            eventually(lambda: levels_of(node.address) == (3, ["2s", "3s"]))
            eventually(lambda: "policies-changed" in node.log_text())
            node.signal()
    with NodeProcess(tmp_path / "data") as without:
        assert levels_of(without.address) == (3, ["2s", "3s"])
        with Client(without.address) as client:
            assert client.policies()["groups"] == {"g": EU.to_dict()}
            with pytest.raises(InvalidMessage, match="another rule"):
                client.register("g", US.to_dict())
            assert client.forget("g")["version"] == 4


def test_a_node_does_not_start_with_a_file_that_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "policies.toml").write_text("levels = ['9h']")
    done = run_process(
        *("node", "--data", tmp_path / "data", "--listen", "127.0.0.1:0"),
        *("--policies", tmp_path / "policies.toml"),
    )
    assert done.returncode == 1
    assert "beyond the horizon" in done.stderr
    assert "or run the nodes with a longer --horizon" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_among_peers_the_file_of_the_master_counts(tmp_path: Path) -> None:
    """a and b have files of their own, c has none."""
    names = ("a", "b", "c")
    files = {name: tmp_path / f"{name}.toml" for name in "ab"}
    for number, path in enumerate(files.values(), 1):
        path.write_text(f"levels = ['{number}s']")
    variables = {name: {"SLOTWHEEL_POLICIES": str(path)} for name, path in files.items()}
    written = {"a": ["1s"], "b": ["2s"]}
    with Peers(tmp_path, names=names, lab=Proxies(names), variables=variables) as peers:
        expected: list[str] | None = None
        last = 0
        with Client(peers.addresses, timeout_s=30) as client:
            assert client.register("g", None)["groups"] == {"g": None}
        for _ in range(2):
            master = peers.wait_until_whole()
            expected = written.get(master, expected)

            def agreed(expected: list[str] | None = expected) -> int:
                """The version, once all peers have the same one with these levels."""
                found = [levels_of(peers[name].listen) for name in names]
                same = len({version for version, _ in found}) == 1
                right = expected is None or all(levels == expected for _, levels in found)
                return found[0][0] if same and right else 0

            version = eventually(agreed)
            assert version >= last
            last = version
            with Client(peers.addresses, timeout_s=30) as client:
                assert client.policies()["groups"] == {"g": None}
                message = Message("t", b"x", level=(expected or ["5s"])[0])
                client.send(message).result(60)
            peers[master].kill()
            peers.master(other_than=master)
            peers[master].start()
        assert last >= 1
        peers.wait_until_whole()
        peers.stop()
        assert peers.disagreements() == []
