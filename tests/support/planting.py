"""A small finished run, copied and spoilt: where the faults of ``faults.py`` are planted.

Theory: a fault is planted either into the description of a run, before it is written, so that every
checksum and catalog is right; or into the written files, and into what is given to the proof. Files
of a few runs are written once and copied: three peers with embedded topics, the same with dumps of
Kafka's topics, one node alone, three peers half of whose messages lie in slots of an hour or a day,
and three whose messages are all of schedules. All of them have receipts of everything.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from slotwheel.client.receiptfile import RECEIPTS
from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.reading.problems import OpenPoint, Problem
from slotwheel.replay.report.verdict import Outcome, Verdict
from slotwheel.wheel.digest import digests
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.schema import times
from support import replayrun
from support.factrows import MINT, Keeps, kafka_rows
from support.replayrun import Run
from support.scheduledrun import made_schedules

GROUP_RUN, KAFKA_RUN, ALONE_RUN, FAR_RUN, SCHEDULED_RUN = RUNS = (
    *("peers", "peers and Kafka", "one node", "peers with messages of an hour and of a day"),
    "peers with schedules",
)
OTHER_KEY = bytes(range(1, 17))
_BIG_NUMBER = re.compile(r"(?<!\+)[0-9]{5,}(\.[0-9]+\.[0-9a-f]{8,16})?|(?<=archive/)[^/]+")
_CONTENT = re.compile(r"(?<=\+3600)\.[0-9]+\.[0-9a-f]{8}")
"""What the name of an archived file says of its content."""
DUMP_METADATA = {b"slotwheel.dump": b"1"}


def made_run(kind: str) -> Run:
    if kind == SCHEDULED_RUN:
        return made_schedules()
    names = ("one",) if kind == ALONE_RUN else replayrun.PEERS
    run = replayrun.made(2_300, 8, names, far=kind == FAR_RUN)
    run.segment_bytes = 40 << 10
    run.topic_blocks = 1
    return run


@dataclass
class Lab:
    """One run below ``root``, what is given to its proof, and what that must blame: ``kind: file or
    id``, or ``open: subject``, in which ``*`` stands for anything."""

    kind: str
    run: Run
    root: Path
    directories: list[str] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    blamed: set[str] = field(default_factory=set)

    def blame(self, kind: str, *where: Path | int | str) -> None:
        """Files below ``root``, offsets of messages, or names."""
        for one in where:
            if isinstance(one, Path):
                name = str(one.relative_to(self.root))
            else:
                name = self.run.id_of(one) if isinstance(one, int) else one
            self.blamed.add(f"{kind}: {name}")

    def leave_open(self, subject: str) -> None:
        self.blamed.add(f"open: {subject}")

    def every(self, pattern: str) -> list[Path]:
        found = sorted(self.root.glob(pattern))
        assert found, pattern
        return found

    def one(self, pattern: str) -> Path:
        """The second file of that pattern, as a first one is often special; or the only one."""
        found = self.every(pattern)
        return found[min(1, len(found) - 1)]

    def given(self) -> None:
        """The run as it is written is what is given."""
        names = [peer.name for peer in self.run.peers]
        self.directories = [str(self.root / name) for name in names]
        self.receipts = [str(self.root / "receipts.arrow")]
        if self.kind == KAFKA_RUN:
            self.dumps = [str(self.root / name) for name in ("orders.dump", "dead.dump")]

    def write(self) -> None:
        self.run.write(self.root)
        messages = np.setdiff1d(np.arange(self.run.rows.num_rows), cancel_rows(self.run))
        write_receipts(self.run, self.root / "receipts.arrow", messages.tolist())
        if self.kind == KAFKA_RUN:
            for peer in self.run.peers:
                shutil.rmtree(self.root / peer.name / "topics", ignore_errors=True)
            write_dumps(self.run, self.root)


class Labs:
    """Copies of the runs, below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs = {kind: made_run(kind) for kind in RUNS}
        for number, kind in enumerate(RUNS):
            Lab(kind, self._runs[kind], root / f"run {number}").write()

    def planted(self, root: Path, *faults: Fault) -> Lab:
        """A copy with those faults, of the run that they all are for."""
        (kind,) = {fault.run for fault in faults}
        lab = Lab(kind, deepcopy(self._runs[kind]), root)
        for fault in faults:
            if fault.in_run:
                fault.plant(lab)
        if any(fault.in_run for fault in faults):
            lab.write()
        else:
            shutil.copytree(self._root / f"run {RUNS.index(kind)}", root)
        lab.given()
        for fault in faults:
            if not fault.in_run:
                fault.plant(lab)
        return lab


Plant = Callable[[Lab], None]


@dataclass(frozen=True)
class Fault:
    """Planted into written files, or into what is given. ``text``: what is planted; ``plant`` says
    what must be blamed, too; ``outcome``: the verdict; ``run``: one of ``RUNS``."""

    text: str
    plant: Plant
    outcome: Outcome = Outcome.NOT_PROVEN
    run: str = GROUP_RUN
    in_run: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.text + (", one node" if self.run == ALONE_RUN else "")


class Meant(Fault):
    """A fault of meaning, planted into a run before it is written."""

    in_run: ClassVar[bool] = True


def blamed_in(verdict: Verdict) -> Counter[str]:
    """What a verdict blames, in the form of ``Lab.blamed``, and how often. Nobody is blamed by how
    many messages are undecided."""
    return Counter(
        [f"{one.kind}: {one.id or one.file}" for one in verdict.problems]
        + [
            f"open: {one.subject}"
            for one in verdict.open_points
            if not one.subject.endswith(" accepted messages")
        ]
    )


def matches(found: Collection[str], blamed: set[str]) -> bool:
    """Whether just that is blamed."""
    return all(any(fnmatch(one, it) for it in blamed) for one in found) and all(
        any(fnmatch(one, it) for one in found) for it in blamed
    )


def shown(problems: Iterable[Problem], open_points: Iterable[OpenPoint] = ()) -> str:
    """What a verdict blames, for a table: names without what is another at each run."""
    found = [
        f"{one.kind}: "
        + ("a message" if one.id else f"`{_BIG_NUMBER.sub('N', _CONTENT.sub('', one.file))}`")
        for one in problems
    ]
    found += [f"not decided: {re.sub('[0-9][0-9,]*', 'N', one.subject)}" for one in open_points]
    counts = Counter(found).items()
    return "; ".join(f"{what} ({n} times)" if n > 1 else what for what, n in counts) or "nothing"


def cancel_rows(run: Run) -> list[int]:
    return np.flatnonzero(np.asarray(run.rows.column("cancels").is_valid())).tolist()


def write_receipts(
    run: Run, path: Path, offsets: Sequence[int], mint: IdMint = MINT, **changes: Any
) -> str:
    """As a producer would have kept them of these messages; ``changes``: columns that differ."""
    rows = run.pick(offsets)
    due, offset = times(rows, "due"), np.array(offsets, np.int64)
    columns: dict[str, Any] = {
        "offset": offset,
        "due": due,
        "check": mint.checks(due, offset),
        "topic": rows.column("topic"),
        "digest": digests(*(rows.column(name) for name in ("topic", "key", "value", "headers"))),
        "sent": np.full(len(due), 1),
        "received": np.full(len(due), 2),
        "group": pa.repeat(mint.group, len(due)),
    } | changes
    table = pa.table(columns).cast(RECEIPTS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, RECEIPTS) as out:
        out.write_table(table, max_chunksize=200)
    return str(path)


def write_dumps(run: Run, root: Path) -> None:
    """What ``consume --arrow`` makes of a topic of two partitions, and of the dead letters."""
    delivered = [offset for peer in run.peers for offset, _ in peer.delivered]
    parts = [
        kafka_rows(run.pick([o for o in delivered if o % 2 == part]), partition=part)
        for part in range(2)
    ]
    write_dump(root / "orders.dump", pa.Table.from_batches(parts))
    keeps = Keeps()
    dead = [offset for peer in run.peers for offset, _ in peer.dead]
    DeadLetters(keeps, None).bury(run.pick(dead), run.reasons(dead), [])
    write_dump(root / "dead.dump", pa.Table.from_batches([kafka_rows(keeps.rows[0])]))


def write_dump(path: Path, rows: pa.Table) -> None:
    rows = rows.replace_schema_metadata(DUMP_METADATA)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)


def read_dump(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    return rows
