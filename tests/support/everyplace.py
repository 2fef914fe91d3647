"""A data directory and a trace store with every kind of file, what may be wrong with a file or a
folder, and every reader of them: ``python everyplace.py ROOT CASE...`` prints a line of JSON for
each reader of each case.

Theory: a reader says what is wrong and goes on, whatever it meets. It is tried in a process of its
own, which must not end, hang or raise anything but the errors that the command line knows.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

from slotwheel.audit.watch.watching import AuditSettings, AuditWatch
from slotwheel.cli.main import run
from slotwheel.reading import layout, state
from slotwheel.reading.growing.journal import look_at_journal
from slotwheel.reading.growing.parts import JournalPart, TopicPart, read_part
from slotwheel.reading.growing.topics import look_at_topic
from slotwheel.reading.layout import find
from slotwheel.reading.listing import topic_folders
from slotwheel.reading.problems import Problem
from slotwheel.replay.datasource.columns import SCHEMAS
from slotwheel.replay.datasource.options import parse, parse_trace
from slotwheel.replay.judging.context import Options
from slotwheel.replay.source import Reader, TraceSourceReader
from slotwheel.wheel.departurefile import How, encode, file_header, path_of
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.state import STATE_DIRECTORY, StoredState
from support import replayrun
from support.damage import cut, flip, forge_page
from support.plainproof import prove_here
from support.planting import cancel_rows, write_receipts
from support.tracestore import event, table_of, write_segment

LIMIT_S = 20
Plant = Callable[[Path], object]
Ask = Callable[[Path], int | None]
RUN = replayrun.made(900, 3, ("one",))
RUN.segment_bytes, RUN.topic_blocks = 16 << 10, 1
ID = RUN.id_of(1)


def write(root: Path) -> None:
    """``one/``: the data directory; ``traces/``: the store; ``receipts.arrow``."""
    RUN.write(root)
    messages = np.setdiff1d(np.arange(RUN.rows.num_rows), cancel_rows(RUN))
    write_receipts(RUN, root / "receipts.arrow", messages.tolist())
    due, offset = RUN.due[:50], np.arange(50)
    how, topic = np.full(50, How.DELIVERED, np.uint8), pa.array(["orders"] * 50)
    frame = encode(due, offset, due, how, topic, np.zeros(50, np.uint64), int(due.max()))
    path = root / "one" / path_of(int(due.min()))
    path.parent.mkdir()
    path.write_bytes(file_header() + frame)
    (root / "one/LOCK").write_bytes(b"1\n")
    for number in range(1, 4):
        rows = [
            event(100 * number + at, "produced", replayrun.START_MS + at, topic="orders")
            for at in range(100)
        ]
        write_segment(root / "traces", number, number, table_of(rows))


FOLDERS = {
    "journal": "one/journal",
    "slots": "one/slots",
    "state": "one/state",
    "topics": "one/topics",
    "a topic": "one/topics/orders",
    "archive": "one/archive",
    "a day": "one/archive/*",
    "kept journal": "one/archive/*/journal",
    "kept slots": "one/archive/*/slots",
    "departures": "one/departures",
    "traces": "traces",
}
FILES = {
    "a segment": "one/journal/*.journal",
    "a slot file": "one/slots/*.arrows",
    "the state": "one/state/data.mdb",
    "LOCK": "one/LOCK",
    "an index": "one/topics/orders/*250.index",
    "a stream": "one/topics/orders/*250.arrows",
    "the last index": "one/topics/slotwheel-dead-letters/*.index",
    "the last stream": "one/topics/slotwheel-dead-letters/*.arrows",
    "a kept segment": "one/archive/*/journal/*1.journal",
    "a kept slot file": "one/archive/*/slots/*.arrows",
    "what has left": "one/departures/*",
    "receipts": "receipts.arrow",
    "events": "traces/000000000002-*.arrow",
    "index of events": "traces/000000000002-*.index",
}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _instead(make: Plant) -> Plant:
    def plant(path: Path) -> None:
        _remove(path)
        make(path)

    return plant


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its path has a limit
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def _flip(part: float) -> Plant:
    return lambda path: flip(path, int((path.stat().st_size - 1) * part))


def _undecodable(path: Path) -> None:
    os.close(os.open(os.fsencode(path) + b"/\xff\xfe", os.O_CREAT))


WRONG: dict[str, Plant] = {
    "is missing": _remove,
    "is a pipe": _instead(os.mkfifo),
    "is a socket": _instead(_socket),
    "is a dangling link": _instead(lambda path: path.symlink_to("nowhere")),
    "is a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "is a link to a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "cannot be read": lambda path: path.chmod(0),
}
OF_A_FOLDER: dict[str, Plant] = WRONG | {
    "is a file": _instead(lambda path: path.write_text("of somebody")),
    "is empty": _instead(lambda path: path.mkdir()),
    "has a stray file": lambda path: (path / "notes.txt").write_text("of somebody"),
    "has a stray folder": lambda path: (path / "begun").mkdir(),
    "has a stray pipe": lambda path: os.mkfifo(path / "notes.pipe"),
    "has a stray link": lambda path: (path / "notes.link").symlink_to("notes.link"),
    "has a name that is no text": _undecodable,
}
OF_A_FILE: dict[str, Plant] = WRONG | {
    "is a folder": _instead(lambda path: path.mkdir()),
    "is empty": lambda path: os.truncate(path, 0),
    "is cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "lacks its last byte": cut,
    "is all zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    **{f"has a flipped bit at {part:.0%}": _flip(part) for part in (0, 0.01, 0.3, 0.6, 0.97, 1)},
}
FORGED = "has a forged page"
CASES = [
    *((place, defect) for place in FOLDERS for defect in OF_A_FOLDER),
    *((place, defect) for place in FILES for defect in OF_A_FILE),
    ("the state", FORGED),
]


def name_of(place: str, defect: str) -> str:
    return f"{place} {defect}"


def _command(*arguments: str) -> Ask:
    return lambda root: run([one.format(root=root) for one in arguments])


def _replay(root: Path) -> int:
    found = find([str(root / "one")], receipts=[str(root / "receipts.arrow")])
    verdict = prove_here(found, Options(), str(root / "traces"))
    print(verdict.outcome, *verdict.problems, *verdict.open_points, *verdict.notes, sep="\n")
    return 0 if verdict.proven else 1


def _views(root: Path) -> None:
    for view in SCHEMAS:
        path = str(root / ("receipts.arrow" if view == "receipts" else "one"))
        topics = {} if view == "receipts" else {"topics": "true"}
        chosen = parse({"path": path, "view": view, **topics})
        reader = Reader(replace(chosen, columns=tuple(SCHEMAS[view].names)))
        for part in reader.partitions():
            for batch in reader.read(part):
                if view == "problems":
                    print(*batch.to_pylist(), sep="\n")


def _followed(root: Path) -> None:
    one = root / "one"
    parts: list[JournalPart | TopicPart] = []
    end, _ = look_at_journal(one, None, archive=True)
    if end is not None:
        parts.append(JournalPart(0, "one", str(one), None, end))
    for topic in topic_folders(one):
        here, _ = look_at_topic(one, topic, None)
        if here is not None:
            parts.append(TopicPart(0, "one", str(one), topic, None, here))
    print(*(found for part in parts for found in read_part(part) if isinstance(found, Problem)))


def _events(root: Path) -> None:
    reader = TraceSourceReader(parse_trace({"trace": str(root / "traces")}))
    for part in reader.partitions():
        print(sum(batch.num_rows for batch in reader.read(part)))


def _audit(root: Path) -> None:
    with AuditWatch(AuditSettings(root / "one")) as watch:
        print(watch.step().problem)


_DATA, _STORE = ("--data", "{root}/one"), ("--store", "{root}/traces")
READERS: dict[str, Ask] = {
    "replay": _replay,
    "the source": _views,
    "the stream": _followed,
    "the source of events": _events,
    "audit": _audit,
    "verify": _command("verify", "{root}/one", "--json"),
    "verify --against": _command("verify", "{root}/one", "--against", "{root}/../whole/one"),
    "inspect slots": _command("inspect", "slots", "{root}/one", str(min(RUN.peers[0].live))),
    "inspect journal": _command("inspect", "journal", "{root}/one", "--rows"),
    "inspect state": _command("inspect", "state", "{root}/one"),
    "inspect topic": _command("inspect", "topic", "{root}/one"),
    "inspect topic orders": _command("inspect", "topic", "{root}/one", "orders", "--rows"),
    "search": _command("search", "{root}/one", "--limit", "3", "--json"),
    "search --id": _command("search", "{root}/one", "--id", ID),
    "trace": _command("trace", *_STORE, "--limit", "3"),
    "trace id": _command("trace", *_STORE, *_DATA, ID),
    "trace --show": _command(
        *("trace", *_STORE, *_DATA, "--show", "latency"),
        *("--from", "2026-09-01T00:00:00Z", "--to", "2026-10-01T00:00:00Z"),
    ),
    "replay --redeliver": _command(
        *("replay", "{root}/one", "--redeliver", "--topic", "orders", "--to-topic", "again"),
        *("--from", "2026-09-01T00:00:00Z", "--to", "2026-10-01T00:00:00Z"),
        *("--node", "127.0.0.1:1"),
    ),
}


class Hangs(BaseException):
    """A reader has not come back."""


def asked(ask: Ask, root: Path) -> tuple[int | None, str]:
    """Its exit code and what it has printed; None: it raised what is a defect, or hangs."""
    shown = StringIO()
    signal.alarm(LIMIT_S)
    try:
        with redirect_stdout(shown), redirect_stderr(shown):
            code = ask(root) or 0
    except (SlotwheelError, OSError) as error:  # as the command line does
        return 1, f"{shown.getvalue()}{error}"
    except BaseException as error:
        return None, f"{shown.getvalue()}{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return code, shown.getvalue()


def tried(root: Path, wanted: Collection[str]) -> Iterator[dict[str, object]]:
    """``wanted``: cases, as ``name_of`` names them."""
    """``root`` has what ``write`` makes in its folder *whole*."""
    whole, lab = root / "whole", root / "lab"
    for place, defect in CASES:
        if name_of(place, defect) not in wanted:
            continue
        shutil.copytree(whole, lab)
        path = sorted(lab.glob((FOLDERS | FILES)[place]))[0]
        (OF_A_FOLDER if place in FOLDERS else {**OF_A_FILE, FORGED: forge_page})[defect](path)
        for name, ask in READERS.items():
            code, shown = asked(ask, lab)
            case = name_of(place, defect)
            yield {"case": case, "file": path.name, "reader": name, "code": code, "shown": shown}
        if not path.is_symlink() and path.exists():
            path.chmod(0o700)
        shutil.rmtree(lab)


def _quick(sound: Collection[bytes]) -> Callable[[str | Path], StoredState | None]:
    """Reads state stores that are as they were written in this process: a process for each takes
    most of the time."""
    whole = state.read_state

    def read_state(root: str | Path) -> StoredState | None:
        try:
            if (Path(root) / STATE_DIRECTORY / "data.mdb").read_bytes() in sound:
                return state.load_here(root)
        except OSError:
            pass
        return whole(root)

    return read_state


def without_power() -> None:
    """Between fork and exec: root, too, may not read what it has no right to."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def main() -> None:
    def end(*_: object) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, end)
    root = Path(sys.argv[1])
    write(root / "whole")
    sound = {path.read_bytes() for path in root.rglob("data.mdb")}
    quick = _quick(sound)
    with (
        mock.patch.object(state, "read_state", quick),
        mock.patch.object(layout, "read_state", quick),
    ):
        for found in tried(root, sys.argv[2:]):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
