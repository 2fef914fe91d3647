"""Callers who wait for receipts from three peers whose master is killed: each goes on at the next
master, and each message is stored once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from slotwheel import Client, Message
from support.peers import Peers
from support.proxylab import Loopback
from support.waiting import PATIENCE_S, eventually

NAMES = ("a", "b", "c")
CALLERS = 3
EACH = 60


def test_waiting_callers_go_on_and_each_message_is_stored_once(tmp_path: Path) -> None:
    ids: list[str] = []

    def send(client: Client, caller: int) -> None:
        for number in range(EACH):
            value = b"%d-%d" % (caller, number)
            ids.append(client.send(Message("t", value, delay=600)).result())

    with Peers(tmp_path, names=NAMES, lab=Loopback(NAMES)) as peers:
        killed = peers.wait_until_whole()
        with Client(peers.addresses, timeout_s=PATIENCE_S) as client:
            callers = [
                threading.Thread(target=send, args=(client, caller), daemon=True)
                for caller in range(CALLERS)
            ]
            for thread in callers:
                thread.start()
            eventually(lambda: len(ids) > EACH)
            peers[killed].kill()
            for thread in callers:
                thread.join(2 * PATIENCE_S)
        assert len(ids) == CALLERS * EACH
        assert Counter(ids).most_common(1)[0][1] == 1
        peers[killed].start()
        master = peers.wait_until_whole()
        assert peers[master].status()["accepted"] == CALLERS * EACH
        peers.stop()
        assert peers.disagreements() == []
