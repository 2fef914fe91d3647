"""What `slotwheel status` prints of delay topics, and what it forgets."""

from __future__ import annotations

import threading
from pathlib import Path

from slotwheel.broker.sources import MADE_ANEW, MISSED, Note, SourceTable, Unread
from slotwheel.node.config import NodeConfig
from slotwheel.node.intake.agreeing import agree
from slotwheel.node.node import Node
from support.nodeprocess import run_cli


def test_what_is_not_read_is_shown_until_it_is_acknowledged(tmp_path: Path) -> None:
    # Nobody listens on port 1: the topic cannot be read, and the status says so.
    config = NodeConfig(
        tmp_path / "data",
        listen="127.0.0.1:0",
        metrics=None,
        bootstrap="127.0.0.1:1",
        delay_topics=("delays",),
    )
    node = Node(config)
    node.start()
    try:

        def change(table: SourceTable) -> SourceTable:
            gone = Note(MADE_ANEW, 1, "delays", "an-id", (Unread(1, 7, None),))
            missed = Note(MISSED, 2, "delays", "an-id", (Unread(0, 3, 9),))
            return table.with_note(gone).with_note(missed)

        agree(node.wheel, change, threading.Event())
        shown = run_cli("status", "--node", node.listening, "--acknowledge").stdout
        assert "delays/0: offsets 3 to 9" in shown
        assert "delays/1: offset 7, and what came behind it of the topic an-id" in shown
        assert "Kafka" in shown
        assert any("'delays' is not read" in reason for reason in node.unready())
        again = run_cli("status", "--node", node.listening).stdout
        assert "offsets 3 to 9" not in again
    finally:
        node.stop()
