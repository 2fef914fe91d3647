"""docs/http-rest.md is run as it stands: each command, and the JSON that it says is the answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.gatewayprocess import NodeWithGateway

PAGE = Path(__file__).resolve().parents[2] / "docs/http-rest.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:8082"
ANYTHING = "…"


def masked(expected: Any, got: Any) -> Any:
    """``got``, but what the page leaves open."""
    if expected == ANYTHING:
        return ANYTHING
    if isinstance(expected, dict) and isinstance(got, dict):
        return {name: masked(expected.get(name), value) for name, value in got.items()}
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return [masked(one, other) for one, other in zip(expected, got, strict=True)]
    return got


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    blocks: list[tuple[str, str]] = FENCE.findall(PAGE.read_text("utf-8"))
    assert blocks[0][1].startswith("slotwheel node ")
    with NodeWithGateway(tmp_path / "wheel-data") as node:
        # One shell for all of it, as variables go from block to block; a line between the answers.
        script = "set -euo pipefail\n"
        expected = []
        for kind, text in blocks[1:]:
            own = text.replace(ADDRESS, node.metrics)
            if kind == "sh":
                script += f"{own}\necho; echo ----\n"
                expected.append("")
            else:
                expected[-1] = own
        script = script.replace("| python ", f"| {sys.executable} ")
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        answers = done.stdout.split("----\n")[:-1]
    assert len(answers) == len(expected)
    for wanted, answer in zip(expected, answers, strict=True):
        if wanted:
            page = json.loads(wanted)
            assert masked(page, json.loads(answer)) == page
        else:
            assert "error_code" not in answer
            assert '"offset": 2' in answer
