"""A node's end of the wire, with the thread that turns it."""

from __future__ import annotations

import threading
from typing import Any

from slotwheel.node.intake.wire import WireIntake


class ServedIntake(WireIntake):
    """Serves from construction until ``close``; takes what ``WireIntake`` takes. ``alone``: while a
    test holds it, nothing turns."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.alone = threading.Lock()
        self._served = True
        self._thread = threading.Thread(target=self._serve, name="wire", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._served:
            with self.alone:
                self.turn()

    def close(self, grace_s: float = 1.0) -> None:
        super().close(grace_s)
        self._served = False
        self._thread.join(60)
