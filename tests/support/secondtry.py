"""Runs the few tests that failed among all others again, alone, and names those that pass now.

The suite starts brokers, Spark and hundreds of processes on two cores, and ends many of them by
SIGKILL. A test that fails there and passes alone was surprised by an order or a delay that it, or
the product, did not allow for. That is a defect, which is named at the end of the run; it is no
reason to hold up a change that has nothing to do with it. What is broken fails alone as well, and
more than ``FAILED_MAX`` failures are never taken for accidents.

    python -m pytest … || python tests/support/secondtry.py $?
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED_MAX = 2
"""The most failed tests of a run that are run again."""
_TESTS_FAILED = 1
"""pytest's exit status when all tests ran and some failed."""


def failed_tests(cache: Path) -> list[str]:
    """The node ids of the last run's failed tests, as pytest's cache directory has them."""
    path = cache / "v/cache/lastfailed"
    return list(json.loads(path.read_text("utf-8"))) if path.exists() else []


def main(status: int, root: Path) -> int:
    """Returns the exit status of the whole run, whose first part ended with ``status``."""
    failed = failed_tests(root / ".pytest_cache")
    if status != _TESTS_FAILED or not 0 < len(failed) <= FAILED_MAX:
        return status
    print(f"==> pytest: what failed, alone ({len(failed)})", flush=True)
    alone = subprocess.run(
        [sys.executable, "-m", "pytest", *failed], check=False, cwd=root
    ).returncode
    if alone == 0:
        print("DEFECT: failed among others, passed alone:", *failed, sep="\n  ", flush=True)
    return alone


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(__file__).parents[2]))
