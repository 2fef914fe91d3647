"""Whatever is wrong with a file or a folder, every reader says so and goes on.

All places and defects: ``python -m pytest -m soak tests/reading/test_every_place.py``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support import everyplace
from support.everyplace import CASES, name_of, without_power

SOME = (
    "journal is a file",
    "topics has a stray file",
    "topics has a stray folder",
    "topics has a name that is no text",
    "a topic is empty",
    "a segment is a pipe",
    "a slot file is a pipe",
    "the state has a forged page",
    "LOCK is a pipe",
    "an index is a link to itself",
    "a kept segment cannot be read",
    "what has left is a folder",
    "receipts has a flipped bit at 30%",
    "events has a flipped bit at 30%",
    "index of events is missing",
)
EVERY = tuple(name_of(*case) for case in CASES)
UNNAMED = ("LOCK is a pipe", "what has left is a folder", "receipts has a flipped bit at 30%")
"""The proof does not read it; or names the message, as its receipt is another one."""
TIME_S = 1_800


@pytest.mark.parametrize("cases", [SOME, pytest.param(EVERY, marks=pytest.mark.soak)])
def test_every_reader_says_what_is_wrong_and_goes_on(tmp_path: Path, cases: Sequence[str]) -> None:
    assert set(SOME) <= set(EVERY)
    done = subprocess.run(
        [sys.executable, everyplace.__file__, tmp_path, *cases],
        env=os.environ | {"PYTHONPATH": str(Path(everyplace.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=TIME_S,
        preexec_fn=without_power,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["case"] for one in found} == set(cases)
    # Usage errors: --redeliver has read everything, and may not ask; the store is an argument.
    usage = ("there is nobody to ask", "Invalid value for '--store'")
    defects = [
        one
        for one in found
        if one["code"] not in (0, 1) and not any(text in one["shown"] for text in usage)
    ]
    assert not defects, defects[:3]
    for one in found:
        name = one["file"].replace("data.mdb", "state").split(".")[0]
        names = (name, "notes", "begun", "\\udcff")
        if one["reader"] == "replay" and one["case"] in SOME and one["case"] not in UNNAMED:
            assert any(name in one["shown"] for name in names), one
        if one["reader"] == "replay" and not one["case"].startswith(("receipts", "traces")):
            assert "proven" in one["shown"], one
        if one["reader"] == "verify":
            assert json.loads(one["shown"].splitlines()[-1])["kinds"], one
