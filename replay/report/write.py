"""Writes a verdict to files: ``report.json`` for programs, ``report.html`` for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .page import page
from .verdict import Verdict


def write_report(verdict: Verdict, directory: Path, made_ms: int) -> list[Path]:
    """Write both files, each whole or not at all; returns their paths. Errors: ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.json": json.dumps({"made_ms": made_ms, **verdict.to_dict()}, indent=1) + "\n",
        "report.html": page(verdict, made_ms),
    }
    written = []
    for name, text in texts.items():
        path, part = directory / name, directory / f".{name}.part"
        part.write_text(text, "utf-8")
        os.replace(part, path)  # noqa: PTH105 - an atomic change of name
        written.append(path)
    return written
