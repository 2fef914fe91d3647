"""The demo's story: a node in a process of its own, a client that sends for some seconds, a kill.

0 s     sending begins; messages are due from 1 s after they are sent up to ``seconds``
20 %    some are cancelled
40 %    SIGKILL, in the middle of sending and of delivering; started again half a second later
60 %    all is sent; some more are cancelled
100 %   the last one is due; the node is stopped cleanly
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..client import Client
from ..wheel.errors import SlotwheelError
from .demo_arrivals import Arrivals
from .demo_node import NodeProcess
from .demo_proof import Arrived, Outage, Sent
from .demo_sending import KEEPING, RECEIPTS, Plan, Sending, Show, now_ms


@dataclass(slots=True)
class Outcome:
    sent: Sent
    arrived: Arrived
    outages: list[Outage]
    cancel_answers: dict[str, int] = field(default_factory=dict)
    slot_seconds: list[int] = field(default_factory=list)
    """Slots of the messages that were kept for later."""


class Scenario:
    """``messages`` due within ``seconds`` of the start of sending, and ``kept`` ones in an hour."""

    def __init__(self, data: Path, messages: int, kept: int, seconds: float, show: Show) -> None:
        self._node = NodeProcess(data, *KEEPING)
        self._plan = Plan(messages, kept, seconds, sent_at=0.6)
        self._show = show

    def run(self) -> Outcome:
        """Errors: ``SlotwheelError`` when the node or the client fails as it should not."""
        arrivals = None
        try:
            self._node.start()
            self._node.wait_ready()
            self._show.event(f"node started on {self._node.address}, data in {self._node.data}")
            arrivals = Arrivals(self._node.data)
            receipts = self._node.data / RECEIPTS
            with Client(self._node.address, timeout_s=60.0, receipts=receipts) as client:
                sending = Sending(client, self._plan, arrivals, self._show)
                outage = self._act(client, sending)
            code = self._node.stop()
            if code != 0:
                raise SlotwheelError(f"the node ended with code {code} when told to stop")
            self._show.event("node stopped")
            # Read anew: the proof is about what stands in the files now.
            found = Arrivals.all(self._node.data)
            answers = sending.ledger.answers
            return Outcome(sending.sent(), found, [outage], answers, sending.slot_seconds)
        finally:
            self._node.stop()
            if arrivals is not None:
                arrivals.close()

    def _act(self, client: Client, sending: Sending) -> Outage:
        sending.begin()
        sending.until(0.2)
        sending.cancel_some()
        sending.until(0.4)
        killed_ms = now_ms()
        pid = self._node.kill()
        self._show.event(f"SIGKILL to the node (process {pid}), in the middle of it all")
        sending.pause("half a second", lambda: now_ms() > killed_ms + 500)
        self._node.start()
        sending.pause("the node comes back", self._node.ready)
        outage = Outage(killed_ms, now_ms())
        self._show.event(f"node started again; it was away for {outage.seconds:.1f} s")
        sending.until(0.6)
        sending.send_the_rest()
        sending.cancel_some()
        sending.until(1.0)
        sending.wait_for_the_rest(lambda: client.status()["slot_rows"] >= self._plan.kept)
        return outage
