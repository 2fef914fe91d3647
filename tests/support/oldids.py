"""What a node and a client that gave out short ids have written: never written again.

A node's data directory (three messages that are pending in slots, two that were delivered, one that
was cancelled, two that are in the journal alone, for the node was killed), the client's receipts of
the first six, and trace events of these messages: as a batch, and in a trace store.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from slotwheel.wheel.ids import MessageId

GOLDEN = Path(__file__).parents[1] / "wheel" / "golden" / "ids-v1"
_SAID = json.loads((GOLDEN / "ids.json").read_text())
FAR, SOON, TAIL = ([*map(MessageId.parse, _SAID[name])] for name in ("far", "soon", "tail"))
CANCELLED = MessageId.parse(_SAID["cancelled"])
STOPPED_MS = int(_SAID["stopped_ms"])
"""When the node was killed."""


def data_directory(to: Path) -> Path:
    """A copy of the data directory."""
    return Path(shutil.copytree(GOLDEN / "data", to / "data"))
