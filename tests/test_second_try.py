"""A failed run counts as an accident only when few tests failed and each of them passes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.secondtry import FAILED_MAX, main

TESTS = """
def test_passes(): pass
def test_also_passes(): pass
def test_passes_too(): pass
def test_fails(): assert False
"""
MANY = ["test_passes", "test_also_passes", "test_passes_too"]


@pytest.mark.parametrize(
    ("status", "failed", "expected"),
    [
        (1, MANY[:1], 0),
        (1, MANY[:FAILED_MAX], 0),
        (1, ["test_fails"], 1),
        (1, ["test_passes", "test_fails"], 1),
        (1, MANY[: FAILED_MAX + 1], 1),
        (1, [], 1),  # the run failed by something else
        (2, MANY[:1], 2),  # interrupted: not all tests ran
        (3, MANY[:1], 3),
    ],
)
def test_what_failed_decides(
    status: int,
    failed: list[str],
    expected: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (tmp_path / "test_it.py").write_text(TESTS)
    names = [f"test_it.py::{name}" for name in failed]
    (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(names, True)))
    assert main(status, tmp_path) == expected
    named = [line.strip() for line in capfd.readouterr().out.partition("DEFECT")[2].splitlines()]
    assert named[1:] == (names if not expected else [])


def test_a_run_without_a_record_stays_failed(tmp_path: Path) -> None:
    assert main(1, tmp_path) == 1
