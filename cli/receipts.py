"""Prints the ids of messages as their receipts arrive, in order, while others are still sent."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client import Receipts
from ..client.predecessor import Predecessor
from ..wheel.errors import InvalidMessage, SlotwheelError
from .terminal import echo

PARTS_WAITING_MAX = 16
BAD_MESSAGES_MAX = 100
"""With so many bad messages the input as a whole is wrong."""


@dataclass(slots=True)
class ReceiptPrinter:
    """Prints in its own thread. ``bad``: how many messages were refused."""

    as_json: bool
    routed: bool = False
    """Each message has an id for each topic of its route."""
    named: bool = False
    """Each message has a name, and perhaps a message before it."""
    bad: int = 0
    _printed: int = 0
    _waiting: queue.Queue[Receipts | None] = field(init=False)
    _failure: BaseException | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = queue.Queue(PARTS_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="printer", daemon=True)
        self._thread.start()

    def put(self, receipts: Receipts | None) -> None:
        """Queue receipts; blocks while too many are open. Errors: the one that ended the thread."""
        while True:
            if self._failure is not None:
                raise self._failure
            with contextlib.suppress(queue.Full):
                self._waiting.put(receipts, timeout=0.1)
                return

    def finish(self) -> None:
        """Wait until everything is printed. Errors: the one that ended the thread."""
        self.put(None)
        while self._thread.is_alive():
            self._thread.join(0.1)  # in pieces, so that Ctrl-C is noticed
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (receipts := self._waiting.get()) is not None:
                self._print(receipts)
                sys.stdout.flush()
        except BaseException as error:
            self._failure = error

    def _print(self, receipts: Receipts) -> None:
        errors = receipts.errors()
        if not errors and not self.routed and not self.named:
            self._print_stored(receipts.result(), receipts.due_ms.tolist())
        else:
            for number, receipt in enumerate(receipts):
                if number in errors:
                    self._report_bad(self._printed + number + 1, errors[number])
                else:
                    ids = receipt.ids
                    befores = receipt.befores if self.named else ()
                    self._print_stored(ids, [receipt.due_ms] * len(ids), befores)
        self._printed += len(receipts)

    def _print_stored(
        self, ids: list[str], due_ms: list[int], befores: Sequence[Predecessor | None] = ()
    ) -> None:
        lines = ids
        if self.as_json:
            pairs = zip(ids, due_ms, strict=True)
            fields: list[dict[str, Any]]
            fields = [{"id": message_id, "due_ms": due} for message_id, due in pairs]
            for line, before in zip(fields, befores, strict=False):
                if before is not None:
                    line["before"] = {"what": before.what, "id": before.id}
            lines = list(map(json.dumps, fields))
        else:
            for before in filter(None, befores):
                echo(f"{before.what}: {before.id}", err=True)
        sys.stdout.write("\n".join(lines) + "\n")

    def _report_bad(self, number: int, error: SlotwheelError) -> None:
        if not isinstance(error, InvalidMessage):
            raise error
        self.bad += 1
        print_refused(number, error, self.as_json)
        if self.bad >= BAD_MESSAGES_MAX:
            raise SlotwheelError(
                "too many messages that cannot be sent",
                got=self.bad,
                limit=BAD_MESSAGES_MAX,
                remedy="Mend what the messages above name, and send the rest again",
            )


def print_refused(number: int, error: SlotwheelError, as_json: bool) -> None:
    """Report a message that was refused. ``number``: from 1."""
    if as_json:
        echo(json.dumps({"message": number, "error": error.to_wire()}), err=True)
    else:
        echo(f"error: message {number}: {error}", err=True)
