"""Who may import whom, and what the engine may not touch: docs/design.md, "The rooms"."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rooms import (
    LOADED_LATE,
    MAY_IMPORT,
    NODE,
    OUTSIDE,
    circle,
    graph,
    modules,
    reached,
    violations,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {str(path): (ROOT / path).read_text("utf-8") for path in modules(ROOT)}


def test_every_module_keeps_to_its_room(sources: dict[str, str]) -> None:
    assert {"__init__.py", "wheel/__init__.py"} <= set(sources)
    broken = [line for path, source in sources.items() for line in violations(path, source)]
    assert not broken, "\n".join(broken)


def test_rooms_do_not_import_in_a_circle() -> None:
    assert not circle({room: to for room, to in MAY_IMPORT.items() if room != "cli"})


def test_modules_do_not_import_in_a_circle(sources: dict[str, str]) -> None:
    assert not circle(graph(sources))


def test_a_circle_is_found_wherever_an_import_stands() -> None:
    sources = {
        "wheel/__init__.py": "",
        "wheel/a.py": "def f():\n    from .slots import b",
        "wheel/slots/b.py": "from .c import C",
        "wheel/slots/c.py": "if TYPE_CHECKING:\n    from ..a import f",
    }
    found = circle(graph(sources))
    assert set(found) == {"wheel.a", "wheel.slots.b", "wheel.slots.c"}
    assert not circle(graph(sources | {"wheel/slots/c.py": "from .. import a_name"}))


def test_a_running_node_loads_nothing_that_reads_a_directory_from_outside(
    sources: dict[str, str],
) -> None:
    uses = graph(sources)
    uses["__init__"] -= LOADED_LATE
    loaded = reached(uses, NODE.removesuffix(".py").replace("/", "."))
    assert "wheel.peers.peer" in loaded
    assert not [name for name in loaded if name.startswith(OUTSIDE)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "from slotwheel.client import Client, Message"),
        ("client/client.py", "from ..wheel.errors import SlotwheelError"),
        ("client/client.py", "from .batcher import Batcher"),
        ("client/__init__.py", "from .client import Client"),
        (
            "node/intake/wire.py",
            "from ...wire.server import Server\nfrom ...wheel.errors import Damaged",
        ),
        ("client/link.py", "from ..wire.channel import Channel"),
        ("wire/channel.py", "import socket\nfrom ..wheel.errors import SlotwheelError"),
        ("node/run.py", "from ..delivery import hand"),
        ("cli/node.py", "import os\nfrom ..node.run import Node\nos.environ['HOME']"),
        ("wheel/journal/log.py", "import os\nfrom ..files import Files\nos.path.join('a', 'b')"),
        ("wheel/files.py", "import os\nos.pwrite(1, b'', 0)\nopen('x')"),
        ("wheel/state.py", "import lmdb\nlmdb.open('x')"),
        ("wheel/wheel.py", "from threading import Condition, Lock\nimport threading as t\nt.RLock"),
        ("wheel/slots/slotfile.py", "def f(files):\n    files.open('x').write(b'')"),
        ("wheel/parts/a.py", "from ..mark import Mark"),
        ("client/receipts.py", "from ..wheel.digest import digests"),
        ("wheel/wheel.py", "from .due.due import Due\nfrom .errors import Damaged"),
        ("wheel/peers/peer.py", "from ..wheel import Wheel\nfrom ..slots.storage import Storage"),
        ("delivery/kafka/sink.py", "from ..sink import Answer"),
        ("reading/topics.py", "from ..wheel.topics.topicfile import Block"),
        ("reading/journal.py", "from ..wheel.journal import entry\nfrom .problems import Problem"),
        ("replay/judging/ranges.py", "from ..facts.fact import FACT\nfrom .board import Board"),
        ("replay/following/follow.py", "from ..stream import Stream\nfrom ..judging import judge"),
        ("replay/facts/scan.py", "from ...reading.read import read"),
        ("replay/facts/scan.py", "from pyspark.sql import DataFrame"),
        ("cli/replay.py", "def f():\n    from pyspark.sql import SparkSession"),
        ("tests/wheel/test_mark.py", "from slotwheel.wheel.mark import Mark"),
        ("tests/support/a.py", "from .broker import Broker"),
        ("benchmarks/ingest.py", "import time\nfrom slotwheel.client import Client\ntime.time()"),
    ],
)
def test_what_is_allowed(path: str, source: str) -> None:
    assert violations(path, source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        # Names that belong to other packages, or to none.
        ("cli/main.py", "import wheel"),
        ("node/run.py", "from cli import main"),
        ("tests/test_a.py", "import replication.core"),
        ("benchmarks/a.py", "from node import run"),
        # Rooms that may not know each other.
        ("__init__.py", "from slotwheel.wheel.ids import MessageId"),
        ("client/client.py", "from ..node.intake import wire"),
        ("wire/server.py", "from ..policy.places import who_leaves"),
        ("wire/server.py", "from ..wheel.wheel import Wheel"),
        ("wheel/wheel.py", "from ..wire.frames import Kind"),
        ("client/client.py", "from ..wheel.journal.journal import Journal"),
        ("client/client.py", "from .. import wheel"),
        ("client/client.py", "from ..wheel import Wheel"),
        ("client/client.py", "from ..wheel.state import LmdbState"),
        ("node/intake/wire.py", "from ...wheel.wheel import Wheel"),
        ("node/intake/wire.py", "from ...delivery import hand"),
        ("delivery/hand.py", "def f():\n    from ..node import run"),
        ("wheel/journal/log.py", "from ...node.clock import Clock"),
        ("wheel/parts/a.py", "from ...client import Client"),
        ("node/run.py", "from ..cli import main"),
        ("replay/source.py", "from ..delivery import sinks"),
        ("replay/facts/scan.py", "from ...delivery.sink import Sink"),
        ("reading/topics.py", "from ..delivery.embedded.sink import EmbeddedSink"),
        ("replay/source.py", "from ..node.clock import Clock"),
        # A running node has no use for what reads a directory from outside.
        ("node/opening.py", "from ..reading.layout import find"),
        ("wheel/peers/heal.py", "from ...reading.verify.slots import verify_slot"),
        ("delivery/hand.py", "from ..reading.topicreader import TopicReader"),
        # Inside a room, too, there is one way.
        ("wheel/state.py", "from .journal.entry import Entry"),
        ("wheel/tail/tail.py", "from ..journal.log import Log"),
        ("wheel/journal/log.py", "from ..slots.storage import Storage"),
        ("wheel/slots/storage.py", "from ..due.cancels import Cancels"),
        ("wheel/due/due.py", "from ..wheel import Wheel"),
        ("wheel/wheel.py", "from .peers.peer import PeerWheel"),
        ("replication/rules/core.py", "from ..transport.encoding import encode"),
        ("replication/transport/lane.py", "from ..driver import Driver"),
        ("delivery/hand.py", "from .kafka.sink import KafkaSink"),
        ("reading/files.py", "from .verify.slots import verify_slot"),
        ("reading/read.py", "from ..replay.facts.fact import FACT"),
        ("replay/facts/scan.py", "from ..judging.ranges import judge"),
        ("replay/judging/ranges.py", "from ..proof import prove"),
        ("replay/report/page.py", "from ..following import audit"),
        # Spark is optional, and slow to start.
        ("cli/main.py", "from pyspark.sql import SparkSession"),
        ("delivery/hand.py", "def f():\n    import pyspark"),
        # The form of an import.
        ("__init__.py", "from .client import Client"),
        ("cli/main.py", "from slotwheel.node.run import Node"),
        ("wheel/journal/log.py", "from slotwheel.wheel.files import Files"),
        ("tests/test_a.py", "from ..wheel import mark"),
        # The engine: no threads, no network, no clock.
        ("wheel/a.py", "from threading import Thread"),
        ("wheel/a.py", "import threading\nthreading.Timer(1, print)"),
        ("wheel/a.py", "import socket"),
        ("wheel/a.py", "import asyncio"),
        ("wheel/a.py", "from kafka import KafkaProducer"),
        ("wheel/a.py", "from pyarrow import flight"),
        ("wheel/a.py", "from concurrent.futures import ThreadPoolExecutor"),
        ("wheel/a.py", "import time\ntime.sleep(1)"),
        ("wheel/a.py", "import time as t\nt.monotonic()"),
        ("wheel/a.py", "from time import time_ns as now"),
        ("wheel/a.py", "from datetime import datetime\ndatetime.now()"),
        ("wheel/a.py", "import datetime as dt\ndt.datetime.now(dt.timezone.utc)"),
        ("wheel/files.py", "import time\ntime.time()"),
        # The engine: input and output through the seam only.
        ("wheel/a.py", "open('x')"),
        ("wheel/a.py", "import os\nos.write(1, b'')"),
        ("wheel/a.py", "from os import fdatasync"),
        ("wheel/a.py", "import os\nos.path.exists('x')"),
        ("wheel/a.py", "from pathlib import Path"),
        ("wheel/a.py", "def f(path):\n    return path.read_bytes()"),
        ("wheel/a.py", "import pyarrow as pa\npa.memory_map('x')"),
        ("wheel/a.py", "import lmdb"),
        # The environment is the command line's.
        ("wheel/a.py", "import os\nos.environ['HOME']"),
        ("node/run.py", "from os import environ"),
        ("client/client.py", "import os\nos.getenv('SLOTWHEEL_ADDRESS')"),
    ],
)
def test_what_is_not(path: str, source: str) -> None:
    assert violations(path, source)
