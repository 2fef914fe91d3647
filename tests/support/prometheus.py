"""A real Prometheus that scrapes a node, and answers questions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from support.ports import free_port
from support.waiting import eventually


class Prometheus:
    """Scrapes ``targets``, host and port of each, every second, as the job ``slotwheel``; ready
    when the ``with`` block is entered. ``rules``: files of rules."""

    def __init__(self, folder: Path, targets: list[str], *rules: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        job = {"job_name": "slotwheel", "static_configs": [{"targets": targets}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [job],
        }
        self._config = folder / "prometheus.yml"
        self._config.write_text(json.dumps(config))  # JSON is YAML, too

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer. Raises ``AssertionError`` for an error."""
        answer = httpx.get(f"http://127.0.0.1:{self._port}/api/v1/{path}", params=query)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def names(self) -> set[str]:
        """Of all figures that were scraped."""
        return set(self.get("label/__name__/values"))

    def __enter__(self) -> Self:
        program = shutil.which("prometheus")
        assert program is not None, "make kafka fetches it"
        command = [
            *(program, f"--config.file={self._config}", "--log.level=error"),
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._process = subprocess.Popen(command)
        eventually(self._answers)
        return self

    def _answers(self) -> bool:
        try:
            if httpx.get(f"http://127.0.0.1:{self._port}/-/ready").status_code != httpx.codes.OK:
                return False
            return bool(self.get("query", query="min(up)")["result"])
        except httpx.TransportError:
            return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
