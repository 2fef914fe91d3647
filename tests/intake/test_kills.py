"""A node that is killed while callers wait for receipts: nothing is lost, and nothing is stored
twice."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path

from slotwheel.client import Client, Message
from support.nodeprocess import NodeProcess
from support.ports import free_port
from support.waiting import eventually

CALLERS = 4
EACH = 60
KILLS = 3


def test_each_message_is_stored_once_whenever_the_node_is_killed(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    node = NodeProcess(tmp_path / "data", "--listen", address).start()
    ids: list[str] = []

    def send(client: Client, caller: int) -> None:
        for number in range(EACH):
            value = b"%d-%d" % (caller, number)
            ids.append(client.send(Message("t", value, delay=600)).result())

    def has(count: int) -> bool:
        return len(ids) >= count

    try:
        with Client(address, timeout_s=120) as client:
            client.send(Message("t", b"first", delay=600)).result()
            callers = [
                threading.Thread(target=send, args=(client, caller), daemon=True)
                for caller in range(CALLERS)
            ]
            for thread in callers:
                thread.start()
            for kill in range(1, KILLS + 1):
                eventually(partial(has, CALLERS * EACH * kill // (KILLS + 1)))
                node.kill()
                node.start()
            for thread in callers:
                thread.join(120)
            assert len(ids) == CALLERS * EACH
            assert Counter(ids).most_common(1)[0][1] == 1
            assert client.status()["pending"] == CALLERS * EACH + 1
    finally:
        node.kill()
