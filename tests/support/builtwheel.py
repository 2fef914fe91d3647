"""The package as it is built from the checkout, for tests that must not find the checkout itself.

An editable install finds a sub-package that setup.cfg does not list, and a stale build/ puts
removed modules into a wheel: so this builds from a copy of the files git knows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.broker import ROOT


def run(*command: str | Path, cwd: Path, timeout_s: float = 300, **variables: str) -> str:
    """Run a command that must succeed; what it printed."""
    # PYTHONPATH would let the checkout answer for what the wheel should hold.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(directory: Path) -> Path:
    """Build it below ``directory``; the path of the wheel."""
    source, output = directory / "source", directory / "dist"
    # What is committed, and what is about to be; not what .gitignore names.
    known = run("git", "ls-files", "-z", "-co", "--exclude-standard", cwd=ROOT)
    for name in filter(None, known.split("\0")):
        if not (ROOT / name).exists():
            continue  # deleted, and not committed yet
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    output.mkdir()
    run(sys.executable, "-m", "build", "--wheel", "--outdir", output, source, cwd=output)
    (built,) = output.glob("slotwheel-*.whl")
    return built
