"""Search beside a standby: it sees what the master has acknowledged, or says that it does not."""

from __future__ import annotations

from pathlib import Path

from support.gatewayprocess import GatewayProcess
from support.peers import PEERS, Peers

HOUR_MS = 3_600_000


def test_a_standby_shows_what_the_master_has_stored(tmp_path: Path) -> None:
    with Peers(tmp_path) as peers:
        master = peers.wait_until_whole()
        standby = peers[next(name for name in PEERS if name != master)]
        others = [peers[name].address for name in PEERS if peers[name] is not standby]
        nodes = ",".join([standby.address, *others])
        with GatewayProcess(standby, "--node", nodes) as gateway:
            for number in range(10):
                own = gateway.send(topic="t", value=str(number), delay_ms=HOUR_MS)
                assert gateway.get(f"/v1/messages/{own}")["state"] == "pending"
                counted = gateway.get("/v1/messages/count?topic=t")
                assert (counted["messages"], counted["complete"]) == (number + 1, True), counted
            assert gateway.get("/v1/peers")["master"] == master
            standby.pause()
            try:
                gateway.send(topic="t", value="behind", delay_ms=HOUR_MS)
                known = gateway.get(f"/v1/messages/{own}")
                behind = gateway.get("/v1/messages/count?topic=t")
            finally:
                standby.resume()
            assert (behind["messages"], behind["complete"]) == (10, False)
            assert behind["problems"]
            assert known["state"] == "unknown"
