"""The client in front of a group of peers: it finds the master, follows it, and repeats nothing."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import Future

import pytest

from slotwheel import AsyncClient, Client, Message, NodeUnreachable, NotRunning, UnknownId
from slotwheel.wheel.errors import NotMaster, Unauthenticated, UnsupportedVersion
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from support.echoserver import echoing, refuse
from support.fakegroup import FakeGroup
from support.fakewheel import FakeWheel
from support.stopwatch import Stopwatch
from support.waiting import eventually


def numbers(start: int, count: int) -> list[Message]:
    return [Message("t", b"%d" % n, delay=60) for n in range(start, start + count)]


def test_a_standby_first_in_the_list() -> None:
    with FakeGroup() as group:
        group.elect(2)
        with Client(group.addresses, timeout_s=20) as client:
            client.send("t", b"x", delay=60).result(60)
        assert group.wheels[2].values() == [b"x"]
        assert [len(wheel.early) for wheel in group.wheels] == [0, 0, 1]
        assert group.proxies[1].connections == 0  # the hint led past it


@pytest.mark.parametrize("seed", range(3))
def test_masters_die_in_the_middle_of_a_burst(seed: int) -> None:
    """Nothing lost, nothing twice, and each receipt leads to its own row."""
    random.seed(seed)
    with FakeGroup(commit_s=0.003) as group:
        done = threading.Event()
        deaths = 0

        def kill_masters() -> None:
            nonlocal deaths
            while not done.wait(random.uniform(0.05, 0.3)):
                old = group.master
                assert old is not None
                stored = len(group.log.batches)
                group.die(old)
                deaths += 1
                time.sleep(random.uniform(0.0, 0.15))
                group.elect((old + random.choice([1, 2])) % 3)
                group.come_back(old)
                # A slow host that needs longer than a master lives gets something through now and
                # then: how fast it connects is not asked here.
                while deaths % 4 == 0 and len(group.log.batches) == stored and not done.wait(0.005):
                    pass

        with Client(",".join(group.addresses), timeout_s=60, batch_rows=20) as client:
            killer = threading.Thread(target=kill_masters)
            killer.start()
            receipts = []
            for start in range(0, 5000, 100):
                receipts.append(client.send_many(numbers(start, 100)))
                time.sleep(0.03)
            client.flush(60)
            done.set()
            killer.join()
        stored = group.wheel.values()
        assert sorted(stored) == sorted(b"%d" % n for n in range(5000))
        for start, some in zip(range(0, 5000, 100), receipts, strict=True):
            assert some.errors() == {}
            found = [int(stored[offset]) for offset in some.offsets()]
            assert found == list(range(start, start + 100))
        assert deaths > 3
        repeats = sum(wheel.duplicates for wheel in group.wheels)
        print(f"{deaths} deaths, {repeats} repeats recognised")


def test_an_answer_that_died_with_the_master_is_told_by_the_next() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=30) as client:
        client.send("t", b"warm", delay=60).result(60)
        group.wheels[0].before_append = lambda rows: group.proxies[0].stall()
        receipt = client.send("t", b"once", delay=60)
        eventually(lambda: len(group.log.batches) == 2)
        group.die(0)
        group.elect(1)
        group.proxies[0].go_on()
        receipt.result(60)
        assert group.wheel.values() == [b"warm", b"once"]
        assert group.wheels[1].duplicates == 1


def test_a_deposed_master_sends_the_client_on() -> None:
    """The process lives, the connection too: what it refuses goes to the next one."""
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        for number in range(12):
            client.send("t", b"%d" % number, delay=60).result(60)
            group.elect((number + 1) % 3)
        assert group.wheel.values() == [b"%d" % number for number in range(12)]
        assert all(len(wheel.early) == 4 for wheel in group.wheels)


def test_a_quiet_client_leaves_a_deposed_master() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        client.send("t", b"1", delay=60).result(60)
        assert group.servers[0].server.open == 1
        group.elect(1)
        eventually(lambda: not group.servers[0].server.open)
        client.send("t", b"2", delay=60).result(60)
        assert len(group.wheels[0].early) == 1  # it was not even asked
        assert group.wheel.values() == [b"1", b"2"]


def test_what_waits_for_a_majority_when_the_master_is_deposed_is_sent_to_the_next() -> None:
    class NoMajority(FakeWheel):
        """Takes batches, and never gets them to a peer."""

        def append(self, *args, **named):  # type: ignore[no-untyped-def]
            waiting.append(Future())
            return waiting[-1]

    waiting: list[Future[object]] = []
    with FakeGroup() as group, Client(group.addresses, timeout_s=20, batch_rows=1) as client:
        group.servers[0]._wheel = NoMajority()
        receipts = client.send_many(numbers(0, 8))
        eventually(lambda: len(waiting) == IN_FLIGHT_MAX)
        group.elect(1)
        for future in waiting:
            future.set_exception(NotMaster(master=group.addresses[1]))
        assert receipts.errors(60) == {}
        assert group.wheel.values() == [b"%d" % number for number in range(8)]
        assert receipts.offsets().tolist() == list(range(8))


def test_acks_0_goes_on_to_the_next_master_as_well() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20, acks="0") as client:
        client.send("t", b"first", delay=60)
        eventually(lambda: group.wheel.values() == [b"first"])
        group.elect(1)

        def arrives() -> bool:
            client.send("t", b"more", delay=60)
            time.sleep(0.02)
            return len(group.wheels[1].early) > 0

        eventually(arrives)


def test_a_hint_to_an_address_that_was_not_given() -> None:
    with FakeGroup() as group:
        group.elect(1)
        with Client(group.addresses[0], timeout_s=20) as client:
            client.send("t", b"1", delay=60).result(60)
            group.die(1)
            group.elect(2)
            client.send("t", b"2", delay=60).result(60)
            (answer,) = client.cancel(client.send("t", b"3", delay=60).result(60))
        assert answer == "cancelled"
        assert group.wheel.values() == [b"1", b"2", b"3"]


def test_no_master_for_a_while() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        group.elect(None)
        receipt = client.send("t", b"waits", delay=60)
        said: list[str] = []
        target = client.send("t", b"target", delay=60)
        asking = threading.Thread(target=lambda: said.extend(client.cancel(target)))
        began = time.monotonic()
        asking.start()
        eventually(lambda: sum(group.asked) >= 4)
        time.sleep(1.0)
        assert not receipt.done()
        assert sum(group.asked) <= 120 * (time.monotonic() - began), "a busy loop"
        group.elect(1)
        receipt.result(60)
        asking.join(60)
        assert said == ["cancelled"]


def test_no_master_for_too_long_names_every_address() -> None:
    # On a busy machine it takes some of it to ask all three.
    with FakeGroup() as group, Client(group.addresses, timeout_s=2.0) as client:
        group.elect(None)
        began = Stopwatch()
        with pytest.raises(NodeUnreachable) as caught:
            client.send("t", b"", delay=60).result(60)
        assert began.wall_s > 1.9
        assert began.seconds < 4.3
        for address in group.addresses:
            assert f"{address}: a standby" in str(caught.value)
        assert "not known" not in str(caught.value)  # it was sent to nobody
        with pytest.raises(NodeUnreachable, match="a standby"):
            client.cancel(str(group.wheel.mint.one(5, 5)))


def test_all_down() -> None:
    with Client("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", timeout_s=0.7) as client:
        for ask in (
            lambda: client.send("t", b"", delay=60).result(60),
            client.status,
            lambda: client.cancel("default.1.2.00000000"),
            lambda: client.reschedule("default.1.2.00000000", delay=5),
            lambda: client.step_down(0.7),
        ):
            began = Stopwatch()
            with pytest.raises(NodeUnreachable) as caught:
                ask()
            assert began.wall_s > 0.3
            assert began.seconds < 3
            for port in (1, 2, 3):
                assert f"127.0.0.1:{port}: node not reachable" in str(caught.value)
            assert "not known" not in str(caught.value)  # nothing was sent


def test_peers_that_point_at_each_other() -> None:
    """Flapping: each says that another one is the master. Nobody is hammered; it ends well."""
    with FakeGroup(2) as group, Client(group.addresses, timeout_s=20) as client:
        group.says = {0: group.addresses[1], 1: group.addresses[0]}
        group.elect(None)
        receipt = client.send("t", b"x", delay=60)
        began = time.monotonic()
        eventually(lambda: sum(group.asked) >= 4)
        time.sleep(1.0)
        assert sum(group.asked) <= 60 * (time.monotonic() - began)
        group.says.clear()
        group.elect(1)
        receipt.result(60)


def test_a_master_that_takes_batches_and_refuses_them_is_not_hammered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It serves by what its welcome says, and not by what it does."""

    def refuse_it(*_args: object, **_named: object) -> None:
        raise NotMaster

    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        monkeypatch.setattr(group.wheels[0], "append", refuse_it)
        began = time.monotonic()
        receipt = client.send("t", b"x", delay=60)
        eventually(lambda: group.proxies[0].connections > 1)
        time.sleep(1.0)
        assert not receipt.done()
        assert group.proxies[0].connections <= 30 * (time.monotonic() - began)
        group.elect(1)
        receipt.result(60)


def test_a_master_that_stands_still_is_left_for_the_next() -> None:
    """Paused or cut off: it says nothing, its connection stays. The others know better."""
    with FakeGroup() as group, Client(group.addresses, timeout_s=30) as client:
        client.send("t", b"0", delay=60).result(60)
        group.proxies[0].stall()
        receipt = client.send("t", b"1", delay=60)
        time.sleep(1.5)
        assert not receipt.done()
        group.elect(1)
        began = Stopwatch()
        receipt.result(60)
        assert began.seconds < 4
        assert client.cancel(receipt.result()) == ["cancelled"]
        group.proxies[0].go_on()
        assert group.wheel.values() == [b"0", b"1"]


def test_a_slow_master_is_not_left() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=30) as client:
        client.send("t", b"0", delay=60).result(60)
        before = [proxy.connections for proxy in group.proxies]
        for wheel in group.wheels:
            wheel.commit_s = 2.5
        client.send("t", b"1", delay=60).result(60)
        assert group.proxies[0].connections == before[0]
        assert sum(group.asked[1:]) > 0  # the others were asked, and said that it still is
        assert group.wheels[0].duplicates == 0


def test_actions_follow_the_master() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        first = client.send("t", b"1", delay=60)
        assert client.cancel(first) == ["cancelled"]
        group.elect(2)
        answer, moved = client.reschedule(client.send("t", b"2", delay=60), delay=90)
        assert (answer, moved is None) == ("cancelled", False)
        group.die(2)
        group.elect(1)
        assert client.reschedule(client.send("t", b"3", delay=60), delay=90)[0] == "cancelled"
        with pytest.raises(UnknownId):
            client.cancel("default.1.2.00000000")
        assert client.cancel([first] * 3) == ["cancelled"] * 3


def test_a_reschedule_is_not_asked_twice_when_it_may_have_been_heard() -> None:
    class Counting(FakeWheel):
        moves = 0

        def reschedule(self, *given, **more):  # type: ignore[no-untyped-def]
            self.moves += 1
            group.proxies[0].cut()
            return super().reschedule(*given, **more)

    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        target = client.send("t", b"1", delay=60).result(60)
        group.servers[0].actions._wheel = counting = Counting(log=group.log)
        with pytest.raises(NodeUnreachable) as caught:
            client.reschedule(target, delay=90)
        assert counting.moves == 1
        assert caught.value.uncertain


def test_what_no_node_has_heard_was_certainly_not_done() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        target = client.send("t", b"1", delay=60).result(60)
        address = group.addresses[0]
    with Client(address, timeout_s=0.3) as client:
        with pytest.raises(NodeUnreachable) as caught:
            client.reschedule(target, delay=90)
        assert not caught.value.uncertain


def test_status_is_answered_by_a_standby_too() -> None:
    with FakeGroup() as group:
        with Client(group.addresses[1], timeout_s=20) as client:
            seen = client.status()["replication"]
            assert (seen["role"], seen["master"]) == ("standby", "n0")
        with Client(group.addresses, timeout_s=20) as client:
            assert client.status()["replication"]["role"] == "master"
            group.die(0)
            assert client.status()["replication"]["role"] == "standby"


def test_step_down() -> None:
    with FakeGroup() as group:
        with Client(group.addresses[1], timeout_s=20) as client:
            assert client.step_down(5) == group.addresses[1]
            assert client.step_down(5) == group.addresses[2]
        assert group.stepped_down == [0, 1]
        group.servers[2].actions._hand_over = lambda timeout_s: False
        with (
            Client(group.addresses, timeout_s=20) as client,
            pytest.raises(NotRunning, match="the master goes on"),
        ):
            client.step_down(5)


def test_a_peer_of_another_version_does_not_stop_the_others() -> None:
    other_version = refuse(UnsupportedVersion("unknown version of the wire"))
    with FakeGroup() as group, echoing(other_version) as other:
        addresses = [f"127.0.0.1:{other.port}", group.addresses[1]]
        with Client(addresses, timeout_s=20) as client:
            target = client.send("t", b"x", delay=60)
            assert client.cancel(target.result(60)) == ["cancelled"]
        assert MessageId.parse(target.id).offset == 0


def test_whom_nobody_knows_is_told_so_though_a_peer_is_down() -> None:
    """At once, whatever is asked for: with the time that this client has, another error would be
    the end of the run."""
    unknown = refuse(Unauthenticated())
    with echoing(unknown) as first, echoing(unknown) as second:
        addresses = ["127.0.0.1:1", *(f"127.0.0.1:{peer.port}" for peer in (first, second))]

        async def send() -> str:
            async with AsyncClient(addresses, timeout_s=3600) as client:
                return await client.send("t", b"x", delay=60)

        with Client(addresses, timeout_s=3600) as client:
            for ask in (
                lambda: client.send("t", b"x", delay=60).result(),
                lambda: client.store("t", b"x", delay=60),
                client.status,
                lambda: client.cancel("default.1.2.00000000"),
                lambda: asyncio.run(send()),
            ):
                for _ in range(2):  # what the first one has learnt changes nothing
                    with pytest.raises(Unauthenticated) as refused:
                        ask()
                    assert refused.value.remedy == Unauthenticated().remedy
                    assert "127.0.0.1:1: node not reachable" in str(refused.value)


def test_nothing_is_asked_before_there_is_something_to_send() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20):
        time.sleep(0.3)
        assert [proxy.connections for proxy in group.proxies] == [0, 0, 0]
