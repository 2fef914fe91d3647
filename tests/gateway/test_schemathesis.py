"""Requests that are made of the description with all that is taken, and others that break it: each
answer is one that the description has, and none is 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slotwheel.gateway.description import describe
from slotwheel.gateway.table import ENDPOINTS
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import environment

CONFIG = Path(__file__).with_name("schemathesis.toml")
SHORT, LONG = 2, 1_000


@pytest.mark.parametrize("examples", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
def test_the_gateway_does_what_its_description_says(
    gateway: GatewayProcess, examples: int, tmp_path: Path
) -> None:
    described = tmp_path / "openapi.json"
    described.write_bytes(msgspec.json.encode(describe(ENDPOINTS, "1", narrow=False)))
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG)),
        *("run", str(described), "--url", f"http://{gateway.address}", "--mode", "all"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)),
        *("--continue-on-failure", "--no-color", "--seed", "1"),
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr
    assert "a request failed" not in gateway.log_text()
