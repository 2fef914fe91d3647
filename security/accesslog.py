"""The access log: a line of JSON for each denial, login, read and administrative action.

    {"time": "2026-11-20T18:00:00.123Z", "event": "denied", "principal": "token:billing",
     "operation": "append", "topic": "payments", "host": "10.0.0.7"}

Events are ``login``, ``stranger`` (who did not prove who it is, and why), ``denied``, ``read``,
``admin`` and ``writes``: how many rows and bytes a principal has sent since its last such line.

Rules
- Writes are counted, and not logged one by one: a line for each message would cost more than the
  message.
- A line is one write to a file opened for appending, so a node and its gateway may share a file.
- The log is bounded in what it writes a second: a stranger who connects ten thousand times a second
  must not fill the disk. The next line that is written says how many were left out.
- A full disk stops no caller: the lines are lost, and ``failed`` is called, once until it works
  again.
- A file that was renamed is made anew at the next look, as tools that rotate logs expect.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .quotas import Meter
from .rights import Right

LINES_A_SECOND_MAX = 1000
STDOUT = "-"
_TEXT_MAX = 300
_STRANGERS_EVERY_S = 1.0
EVENT_OF: Mapping[Right, str] = {
    Right.READ: "read",
    Right.CONSUME: "read",
    Right.OBSERVE: "read",
    Right.CANCEL: "cancel",
    Right.REDRIVE: "admin",
    Right.POLICIES: "admin",
    Right.ADMIN: "admin",
}
"""The event for what was allowed, by its right. Messages that are sent are
counted."""


class AccessLog:
    """Writes to a file (``STDOUT``: to standard output); None: nowhere. Thread-safe. ``failed``:
    called with the error when a line cannot be written. ``clock``: seconds since the epoch. Errors
    on construction: ``OSError``."""

    def __init__(
        self,
        path: str | None,
        failed: Callable[[OSError], None] = lambda _error: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = None if path in (None, STDOUT) else Path(str(path))
        self._failed = failed
        self._clock = clock
        self._lock = threading.Lock()
        self._fails = False
        self._second = self._lines = self._left_out = 0
        self._written: dict[str, tuple[int, int]] = {}
        self._descriptor = -1
        if self._path is not None:
            self._descriptor = _opened(self._path)
        elif path == STDOUT:
            self._descriptor = sys.stdout.fileno()

    @property
    def is_on(self) -> bool:
        return self._descriptor >= 0

    def note(self, event: str, principal: str, **fields: object) -> None:
        """Write a line. Fields that are empty are left out; long texts are cut."""
        if self._descriptor < 0:
            return
        with self._lock:
            now_s = self._clock()
            if int(now_s) != self._second:
                self._second, self._lines = int(now_s), 0
            if self._lines >= LINES_A_SECOND_MAX:
                self._left_out += 1
                return
            self._lines += 1
            content: dict[str, object] = {
                "time": _time(now_s),
                "event": event,
                "principal": principal,
            }
            for name, value in fields.items():
                if value not in ("", None):
                    content[name] = value[:_TEXT_MAX] if isinstance(value, str) else value
            if self._left_out:
                content["left_out"], self._left_out = self._left_out, 0
            self._write(json.dumps(content).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            os.write(self._descriptor, line)
            self._fails = False
        except OSError as error:
            if not self._fails:
                self._fails = True
                self._failed(error)

    def look(self, meters: Iterable[Meter] = ()) -> None:
        """Write what principals have sent since the last look, and open the file anew if it was
        renamed or deleted. Called every few seconds, by one thread."""
        for meter in meters:
            sent = meter.rows, meter.nbytes
            rows, nbytes = self._written.get(meter.principal, (0, 0))
            if sent != (rows, nbytes):
                self._written[meter.principal] = sent
                more = {"rows": sent[0] - rows, "bytes": sent[1] - nbytes}
                self.note("writes", meter.principal, **more)
        if self._path is None:
            return
        with self._lock:
            try:
                if _is_there(self._path, self._descriptor):
                    return
                old, self._descriptor = self._descriptor, _opened(self._path)
                os.close(old)
            except OSError as error:
                self._failed(error)

    def close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if self._path is not None and descriptor >= 0:
                os.close(descriptor)


class StrangerNotes:
    """Notes who did not prove who it is: each in the access log, and once a second at most in the
    server's own, by ``report``, which gets the last one's host and reason, and how many there were
    since the last report. Thread-safe. ``clock``: monotonic, s."""

    def __init__(
        self,
        log: AccessLog,
        report: Callable[[str, str, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._count, self._next_s = 0, -math.inf

    def note(self, host: str, reason: str) -> None:
        self._log.note("stranger", "", host=host, reason=reason)
        with self._lock:
            self._count += 1
            now_s = self._clock()
            if now_s < self._next_s:
                return
            self._next_s = now_s + _STRANGERS_EVERY_S
            count, self._count = self._count, 0
        self._report(host, reason, count)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _is_there(path: Path, descriptor: int) -> bool:
    """Returns True when the open file still has that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _time(now_s: float) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
    return f"{seconds}.{int(now_s * 1000) % 1000:03d}Z"
