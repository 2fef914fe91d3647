"""The findings of the running audit, durable before they are reported.

``findings.jsonl`` has a line for each, and its valid length is in the audit's state;
``findings.told`` says how many bytes of it were reported. So after a crash nothing is left out, and
only what was being reported at that moment is reported again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .audit_state import write_whole

FINDINGS_NAME = "findings.jsonl"
TOLD_NAME = "findings.told"
ReportFinding = Callable[[Mapping[str, Any]], None]


class Findings:
    """``length``: valid bytes; what is behind them was not committed."""

    def __init__(self, folder: Path, length: int, report: ReportFinding) -> None:
        self._path = folder / FINDINGS_NAME
        self._told = folder / TOLD_NAME
        self._report = report
        self._new: list[Mapping[str, Any]] = []
        with self._path.open("ab") as out:
            out.truncate(length)
        self.report(length)

    def add(self, finding: Mapping[str, Any]) -> None:
        self._new.append(finding)

    def write(self, length: int) -> int:
        """Write new findings behind ``length`` and sync. Returns the new length, which must be in
        the durable state before ``report``."""
        lines = "".join(json.dumps(finding) + "\n" for finding in self._new).encode()
        self._new = []
        with self._path.open("ab") as out:
            out.truncate(length)
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
        return length + len(lines)

    def report(self, length: int) -> None:
        """Report the findings up to ``length`` that were not reported yet."""
        told = int(self._told.read_text()) if self._told.exists() else 0
        if told >= length:
            return
        with self._path.open("rb") as source:
            source.seek(told)
            lines = source.read(length - told).splitlines()
        for line in lines:
            self._report(json.loads(line))
        write_whole(self._told, str(length))
