"""Messages that were replaced, kept out or refused for their name are no loss, and no surplus."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel import Client, Message
from slotwheel.account.vocabulary import AuditVerdict, Boundary
from slotwheel.audit import AUDIT_TOPIC, Auditor
from slotwheel.audit.watch.watching import AuditSettings, AuditWatch
from slotwheel.trace import WheelTarget
from slotwheel.wheel.errors import NameTaken
from support.nodeprocess import NodeProcess
from support.waiting import eventually, now_ms

_NAMES = 20


def test_names_are_no_loss_and_no_surplus_of_the_audit(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        settings = AuditSettings(node.data, interval_ms=1_000, grace_ms=3_000, late_ms=20_000)
        auditor = Auditor(WheelTarget(node.address, AUDIT_TOPIC), interval_s=1.0, every_s=0.5)
        with AuditWatch(settings) as watch, Client(node.address, observer=auditor) as client:
            due_ms = (now_ms() // 1000 + 12) * 1000 + 100
            for rule in ("replace", "replace", "keep"):
                client.send_many(
                    Message("t", b"x", due=due_ms, name=f"n{number}", if_exists=rule)
                    for number in range(_NAMES)
                ).result(60)
            client.store("t", b"x", due=due_ms, name="n0")
            client.store("t", b"x", due=due_ms, name="n1", if_exists="keep")
            with pytest.raises(NameTaken):
                client.store("t", b"x", due=due_ms, name="n2", if_exists="refuse")
            assert client.cancel(topic="t", name="n3")[0] == "cancelled"

            def verdicts() -> list[tuple[Boundary, AuditVerdict, int]]:
                report = watch.step()
                assert report.problem == ""
                cells = [each for cell in report.cells for each in cell.comparisons]
                assert not any(each.fault for each in cells), cells
                return [
                    (each.boundary, each.verdict, each.count)
                    for cell in report.cells
                    if cell.topic == "t"
                    for each in cell.comparisons
                ]

            client_side, wheel_side, _ = Boundary
            done = {(client_side, AuditVerdict.EQUAL), (wheel_side, AuditVerdict.EQUAL)}
            eventually(
                lambda: {each[:2] for each in verdicts()} >= done, every_s=0.2, otherwise=verdicts
            )
            auditor.close()
