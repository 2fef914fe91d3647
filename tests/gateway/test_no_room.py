"""Where the temporary folder is full, or one more process cannot be started: the gateway goes on,
or says why not."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.gateway.errors import from_slotwheel
from slotwheel.reading.letters.spool import Spool
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.worker import SearchProcess
from slotwheel.wheel.errors import NotRunning
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess

SCHEMA = pa.schema({"value": pa.binary()})


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_few_letters_need_no_file_and_many_name_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    rows = pa.record_batch([[b"x" * 1000] * 100], SCHEMA)
    with Spool(SCHEMA) as spool:
        spool.add(rows)
        assert [one.num_rows for one in spool.batches()] == [100]
    many = pa.record_batch([[b"x" * 1000] * 10_000], SCHEMA)
    with Spool(SCHEMA) as spool, pytest.raises(NotRunning) as caught:
        spool.add(many)
    refused = from_slotwheel(caught.value)
    assert refused.status == 503
    assert "temporary folder" in refused.message
    assert "TMPDIR" in refused.remedy


def test_questions_wait_for_room(monkeypatch: pytest.MonkeyPatch, node: NodeProcess) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        process = SearchProcess(node.data)
        with pytest.raises(NotRunning, match="cannot be started"):
            process.count(Query()).result(60)
    try:
        assert process.count(Query()).result(60).total >= 0
    finally:
        process.close()


_FULL = """
import errno, subprocess, sys
from slotwheel.cli.main import main
def full(*_, **__):
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
subprocess.Popen = full
main(["gateway", *sys.argv[1:]])
"""


class _Crowded(GatewayProcess):
    """Where there is no room for another process."""

    def command(self) -> list[str]:
        command = super().command()
        return [command[0], "-c", _FULL, *command[command.index("gateway") + 1 :]]


def test_a_gateway_without_room_answers(node: NodeProcess) -> None:
    with _Crowded(node) as gateway:
        assert gateway.send(topic="t", value="x", delay_ms=3_600_000)
        assert gateway.request("GET", "/v1/levels").status_code == 200
        for path in ("/v1/messages", "/v1/messages/count"):
            answer = gateway.request("GET", path)
            assert answer.status_code == 503
            error = answer.json()
            assert error["got"] == "Resource temporarily unavailable"
            assert "one more process" in error["remedy"]
        page = gateway.request("GET", "/console/pending?whole=true")
        assert (page.status_code, "cannot be started" in page.text) == (200, True)
