"""What a program loads that uses only a part of the package.

Each library here is large: whoever does without it would pay for it with every start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from slotwheel.client import Client, Message
from support.nodeprocess import NodeProcess
from support.waiting import eventually

_CLIENTS_OF_KAFKA = ("kafka", "confluent_kafka")
_OF_THE_GATEWAY = ("jinja2", "starlette", "slotwheel.gateway.server")
# Of pandas the name alone is there: a process of ours refuses to load it.
_COMMON = ("pandas.core", "pyspark", *_CLIENTS_OF_KAFKA, *_OF_THE_GATEWAY)
_ARROW = ("numpy", "pyarrow", "crc32c")
_NETWORK = ("asyncio", "http.client", "ssl", "prometheus_client")
_OTHERS = (
    "lmdb",
    "rich",
    "msgspec",
    "slotwheel.node",
    "slotwheel.reading",
    "slotwheel.replication",
)
_OF_OTHER_NODES = (
    "slotwheel.client.client",
    "slotwheel.replication.driver",
    "slotwheel.wheel.peers",
)
_CALL = """
from slotwheel.cli.main import main
try:
    main({})
except SystemExit:
    pass
"""
_CLIENT = "from slotwheel import Client\nClient('127.0.0.1:1').close()"
_PROGRAMS = {
    # What runs: what it uses, and what it must not load.
    "import slotwheel": (
        "import slotwheel",
        "slotwheel.wheel.errors",
        (*_COMMON, *_ARROW, *_NETWORK, *_OTHERS, "click", "slotwheel.client"),
    ),
    "slotwheel --help": (
        _CALL.format(["--help"]),
        "click",
        (*_COMMON, *_ARROW, *_NETWORK, *_OTHERS, "slotwheel.client"),
    ),
    "slotwheel --version": (
        _CALL.format(["--version"]),
        "click",
        (*_COMMON, *_ARROW, *_NETWORK, *_OTHERS, "slotwheel.client", "importlib.metadata"),
    ),
    "a client": (
        _CLIENT,
        "pyarrow.lib",
        (*_COMMON, *_NETWORK, *_OTHERS, "click", "pyarrow.compute", "slotwheel.consumer"),
    ),
    "every command": (
        "from slotwheel.cli import main\nfor one in main.COMMANDS: main.cli.get_command(None, one)",
        "slotwheel.reading.letters.source",
        _COMMON,
    ),
    "a gateway of a node without Kafka": (
        "import slotwheel.gateway.server",
        "starlette.requests",
        ("pandas.core", "pyspark", *_CLIENTS_OF_KAFKA, "rich", "slotwheel.replication"),
    ),
    "slotwheel send": (
        _CALL.format(["send", "--help"]),
        "slotwheel.client.client",
        (*_COMMON, *_NETWORK, *_OTHERS, "pyarrow.compute", "slotwheel.consumer"),
    ),
}


@pytest.mark.parametrize(("program", "used", "never"), _PROGRAMS.values(), ids=_PROGRAMS)
def test_a_program_loads_no_library_that_it_does_not_use(
    program: str, used: str, never: tuple[str, ...]
) -> None:
    program += "\nimport json, sys\nprint(json.dumps(list(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    loaded = json.loads(done.stderr.splitlines()[-1])
    assert used in loaded
    assert not _within(loaded, never)


def test_a_node_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """All of them are installed here, and pyarrow imports pandas where it finds it."""
    with NodeProcess(tmp_path / "data", PYTHONPROFILEIMPORTTIME="1") as node:
        eventually(lambda: "pyarrow._compute" in _imported(node.log_text()))  # nobody waits for it
        started, _, _ = node.log_text().partition(" info listening ")
        with Client(node.address) as client:
            client.send_many(_MESSAGES).result(60)
        node.wait_for("load", len(_MESSAGES))
        node.signal()
        everything = _imported(node.log_text())
    assert "pyarrow.lib" in _imported(started)
    assert "pyarrow._compute" not in _imported(started)
    assert not _within(everything, (*_COMMON, *_OF_OTHER_NODES, "msgspec"))


def test_no_module_of_a_node_takes_arrows_memory_before_the_node_has_chosen_an_allocator() -> None:
    """The first allocation takes 4 MB, and the allocator that is chosen later does not give them
    back."""
    program = (
        "import pyarrow as pa, slotwheel.cli.node\n"
        "before = pa.default_memory_pool().max_memory()\n"
        "kept = pa.allocate_buffer(1)\n"
        "print(before, pa.default_memory_pool().max_memory() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.split() == [b"0", b"True"]


def test_a_library_that_is_loaded_is_found() -> None:
    assert _within(["numpy", "kafka.errors", "slotwheel.nodes"], ("kafka", "slotwheel.node")) == [
        "kafka.errors"
    ]


_MESSAGES = [Message("load", str(number).encode(), delay=0.1) for number in range(10)]


def _imported(log: str) -> set[str]:
    lines = log.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def _within(loaded: Iterable[str], libraries: tuple[str, ...]) -> list[str]:
    return [one for one in loaded if f"{one}.".startswith(tuple(f"{name}." for name in libraries))]
