"""The running audit: batch after batch of facts becomes flags, each told once. No Spark here.

    batch of the stream -> ledger -> windows whose time has come -> flags, a line a window
                   |                       |
                   +-- marks, gaps ------- context

Theory: everything that must survive is one small file, replaced at the end of each batch: how long
the windows' files are, what was told, how far journals were read. A batch that Spark repeats after
a crash finds it as it was before, and is done again; one that is in it already is skipped.

Rules
- A window is judged when a look at all journals and topics, later than its end and the grace, has
  been read; and again when something comes for it, or a mark may have passed what is waiting.
- A window is forgotten ``KEEP_MS`` after that, when nothing of it is missing. At most
  ``WINDOWS_MAX`` that miss something are kept; the oldest go first.
- Flags are written down before they are told. If the process is killed while it tells them, those
  of that moment may be told again; none is left out.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from ..delivery.names import DEAD_LETTER_TOPIC
from ..wheel.errors import InvalidConfiguration, UnsupportedVersion
from ..wheel.mark import Marks
from . import ledger
from .context import Context, Options, PeerView
from .files import Layout
from .making import Terms as IdTerms
from .problems import Problem
from .summary import FileSummary
from .windows import AFTER_ALL, COUNTED, OVERDUE, REPEATED, Judgement, Terms, judge_window

VERSION = 1
STATE_NAME = "audit.json"
FINDINGS_NAME = "findings.jsonl"
PRINTED_NAME = "findings.told"
WINDOWS_NAME = "windows"
KEEP_MS = 60_000
WINDOWS_MAX = 1_000
"""Windows that are kept because something of them is missing."""
MISSING_MAX = 1_000
"""Gaps of a journal that are remembered; the newest."""
TOPICS_MAX = 10_000
TOTALS = (*COUNTED, OVERDUE, REPEATED, "unaccounted")
Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """``directories``: whose audit it is. Times in ms."""

    directories: tuple[str, ...]
    window_ms: int = 10_000
    grace_ms: int = 5_000
    late_ms: int | None = None
    exactly_once: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    listed_max: int = 1_000
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    kafka: str = ""
    """Kafka's brokers; empty: embedded topics alone."""
    topics: tuple[str, ...] = ()
    """Of Kafka."""


@dataclass(slots=True)
class Window:
    """What is known of a window without its facts."""

    length: int
    """Bytes of its file that count."""
    judged: int = -1
    """Its length when it was judged the last time; -1: it was not."""
    marks: str = ""
    """The newest marks then."""
    judged_ms: int = 0
    waiting: int = 0
    settles_ms: int = 0
    has_lost: bool = False
    forgotten: bool = False
    told: str = ""
    """File with what was told of it; empty: nothing."""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PeerRead:
    """How far a peer's journal was read."""

    first: int = -1
    """Lowest offset; -1: none yet."""
    next: int = -1
    missing: list[list[int]] = field(default_factory=list)
    proven: int = 0
    marks: str = ""


@dataclass(slots=True)
class State:
    version: int = VERSION
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int = -1
    looked_ms: int = 0
    windows: dict[int, Window] = field(default_factory=dict)
    peers: list[PeerRead] = field(default_factory=list)
    topics: dict[int, str] = field(default_factory=dict)
    damaged_topics: list[int] = field(default_factory=list)
    forgotten_ms: int = -1
    """End of the latest window that was forgotten."""
    totals: dict[str, int] = field(default_factory=dict)
    """Of windows that were forgotten."""
    flagged: dict[str, int] = field(default_factory=dict)
    findings: int = 0
    """Bytes of the findings."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> State:
        said = json.loads(text)
        said["windows"] = {int(at): Window(**one) for at, one in said["windows"].items()}
        said["peers"] = [PeerRead(**one) for one in said["peers"]]
        said["topics"] = {int(crc): name for crc, name in said["topics"].items()}
        return cls(**said)


@dataclass(frozen=True, slots=True)
class Job:
    """A window to be judged, wherever that is done."""

    folder: str
    start: int
    length: int
    told: str
    context: Context
    terms: Terms


def run_job(job: Job) -> Judgement:
    folder = Path(job.folder)
    told = (folder / job.told).read_bytes() if job.told else b""
    facts = ledger.read(folder, job.start, job.length)
    return judge_window(job.start, facts, told, job.context, job.terms)


class Audit:
    """Not thread-safe. ``tell``: a flag or a problem; ``note``: a window that was judged."""

    def __init__(
        self, folder: Path, settings: Settings, group: Layout, *, tell: Tell, note: Tell
    ) -> None:
        """Errors: ``InvalidConfiguration``: the folder is another audit's. ``OSError``."""
        self.folder = folder
        self.windows_folder = folder / WINDOWS_NAME
        self.settings = settings
        self.group = group
        self._tell = tell
        self._note = note
        self.windows_folder.mkdir(parents=True, exist_ok=True)
        self.state = self._load()
        with (folder / FINDINGS_NAME).open("ab") as findings:
            findings.truncate(self.state.findings)
        self._notes: list[Mapping[str, Any]] = []
        self._new: list[dict[str, Any]] = []
        self._dropped: list[Path] = []
        self._print()

    def begins(self, batch: int) -> bool:
        """Whether a batch is new; otherwise nothing is to be done with it."""
        return batch > self.state.batch

    @property
    def lengths(self) -> dict[int, int]:
        return {start: window.length for start, window in self.state.windows.items()}

    def take(
        self,
        lengths: Mapping[int, int],
        parts: Iterable[tuple[int, str, FileSummary]],
        problems: Iterable[Problem],
    ) -> None:
        """What a batch brought. ``lengths``: of the windows by now; ``parts``: peer, topic (empty:
        its journal) and summary of each part that was read."""
        for start, length in lengths.items():
            window = self.state.windows.get(start)
            if window is None:
                again = start < self.state.forgotten_ms
                self.state.windows[start] = Window(length, forgotten=again)
            else:
                window.length = length
        for peer, topic, summary in parts:
            names = summary.topics.items()
            room = TOPICS_MAX - len(self.state.topics)
            self.state.topics |= dict(list(names)[: max(0, room)])
            if not topic:
                self._journal(self._peer(peer), summary)
            elif summary.damaged:
                crc = crc32c(topic.encode())
                if crc not in self.state.damaged_topics:
                    self.state.damaged_topics.append(crc)
        for problem in problems:
            self._find(
                {"flag": problem.kind, "file": problem.file, "text": problem.text}, problem.kind, 1
            )

    def jobs(self, looked_ms: int, *, all_read: bool) -> list[Job]:
        """Windows that are to be judged now. ``all_read``: everything that was written before
        ``looked_ms``."""
        self.state.looked_ms = looked_ms
        if not all_read:
            return []
        context = self._context(looked_ms)
        terms = Terms(looked_ms, self.settings.grace_ms, self.settings.listed_max)
        marks = _newest(self.state.peers)
        return [
            Job(
                str(self.windows_folder),
                start,
                window.length,
                window.told,
                context,
                replace(terms, forgotten=window.forgotten),
            )
            for start, window in sorted(self.state.windows.items())
            if self._is_due(start, window, looked_ms, marks)
        ]

    def judged(self, judgements: Iterable[Judgement], batch: int) -> None:
        marks = _newest(self.state.peers)
        for one in sorted(judgements, key=lambda judgement: judgement.start):
            window = self.state.windows[one.start]
            first = window.judged < 0
            if window.told:
                self._dropped.append(self.windows_folder / window.told)
            window.told = ""
            if one.told:
                window.told = f"{one.start}.{batch}.told"
                (self.windows_folder / window.told).write_bytes(one.told)
            window.judged, window.marks = window.length, marks
            window.judged_ms = self.state.looked_ms
            window.waiting, window.settles_ms = one.waiting, one.settles_ms
            window.has_lost, window.counts = one.has_lost, one.counts
            flags = [flag.to_dict() | {"window_ms": one.start} for flag in one.flags]
            for kind, number in one.flagged.items():
                listed = [flag for flag in flags if flag["flag"] == kind]
                for at, flag in enumerate(listed):
                    more = number - len(listed) if at == len(listed) - 1 else 0
                    self._find(flag | ({"and_more": more} if more else {}), kind, 1 + more)
            if first or one.flagged:
                self._notes.append(self._line(one, again=not first))

    def commit(self, batch: int) -> None:
        """Write it all down, then tell what is new."""
        self._forget()
        self.state.batch = batch
        lines = "".join(json.dumps(one) + "\n" for one in self._new).encode()
        with (self.folder / FINDINGS_NAME).open("ab") as findings:
            findings.truncate(self.state.findings)
            findings.write(lines)
            findings.flush()
            os.fsync(findings.fileno())
        self.state.findings += len(lines)
        self._new = []
        _replace(self.folder / STATE_NAME, self.state.to_json())
        for path in self._dropped:
            path.unlink(missing_ok=True)
        self._dropped = []
        self._print()
        notes, self._notes = self._notes, []
        for note in notes:
            self._note(note)

    def summary(self) -> dict[str, Any]:
        """All windows that were judged, and what was flagged."""
        counts = Counter(self.state.totals)
        open_ = 0
        for window in self.state.windows.values():
            counts.update(window.counts)
            open_ += window.judged < 0
        return {
            **{name: counts[name] for name in TOTALS},
            "flagged": dict(self.state.flagged),
            "windows_open": open_,
            "looked_ms": self.state.looked_ms,
            "failed": self.failed,
        }

    @property
    def failed(self) -> bool:
        """Whether something was flagged that should not be."""
        excused = {AFTER_ALL}  # that it was lost was told before
        if not self.settings.exactly_once:
            excused.add(REPEATED)
        return any(number for kind, number in self.state.flagged.items() if kind not in excused)

    def _load(self) -> State:
        path = self.folder / STATE_NAME
        settings = json.loads(json.dumps(asdict(self.settings)))
        if not path.exists():
            return State(settings=settings)
        said = json.loads(path.read_text())
        if said.get("version") != VERSION:
            raise UnsupportedVersion(
                f"{path}: unknown version of an audit's state",
                got=said.get("version"),
                limit=VERSION,
                remedy="Use the slotwheel version that wrote it, or another --state",
            )
        state = State.from_json(json.dumps(said))
        for name in ("directories", "window_ms", "start_ms", "end_ms", "kafka", "topics"):
            if state.settings[name] != settings[name]:
                raise InvalidConfiguration(
                    f"{self.folder} is the state of another audit: its {name} differs",
                    got=str(settings[name]),
                    limit=str(state.settings[name]),
                    remedy="Give the same directories and windows, or another --state",
                )
        state.settings = settings
        return state

    def _peer(self, number: int) -> PeerRead:
        while len(self.state.peers) <= number:
            known = len(self.state.peers)
            peers = self.group.peers
            self.state.peers.append(PeerRead(proven=peers[known].spilled if peers else 0))
        return self.state.peers[number]

    @staticmethod
    def _journal(peer: PeerRead, summary: FileSummary) -> None:
        for base, end in summary.offsets:
            if peer.first < 0 or base < peer.first:
                peer.first = base
            if 0 <= peer.next < base:
                peer.missing = [*peer.missing, [peer.next, base]][-MISSING_MAX:]
            peer.next = max(peer.next, end)
        if summary.marks:
            peer.marks = summary.marks
        peer.proven = max(peer.proven, summary.max_l + 1)

    def _context(self, looked_ms: int) -> Context:
        settings, state = self.settings, self.state
        for number in range(len(self.group.peers)):
            self._peer(number)
        peers = []
        for number, read in enumerate(state.peers):
            held = [[read.first, read.next]] if read.next >= 0 else []
            peers.append(
                PeerView(
                    self.group.peers[number].name if self.group.peers else str(number),
                    0,
                    _decode(read.marks),
                    np.array(held, np.int64).reshape(-1, 2).T.copy(),
                    np.array(read.missing, np.int64).reshape(-1, 2).T.copy(),
                    read.proven,
                )
            )
        options = Options(
            settings.window_ms,
            settings.late_ms,
            settings.exactly_once,
            settings.start_ms,
            settings.end_ms,
            settings.listed_max,
        )
        return Context(
            IdTerms(self.group.group, self.group.key, settings.dead_letter_topic),
            options,
            peers,
            _decode(_newest(state.peers)),
            looked_ms,
            state.topics,
            frozenset(state.damaged_topics),
            len(peers) > 1 or any(peer.is_replica for peer in self.group.peers),
        )

    def _is_due(self, start: int, window: Window, now_ms: int, marks: str) -> bool:
        if window.judged < 0:
            return now_ms >= start + self.settings.window_ms + self.settings.grace_ms
        if window.length != window.judged:
            return True
        if not window.waiting:
            return False
        if 0 < window.settles_ms <= now_ms:
            return True
        # A mark may have passed them. The longer they have waited, the less often one looks: a
        # topic that is held back for hours has messages in every window.
        overdue_ms = max(0, now_ms - start - self.settings.window_ms)
        return marks != window.marks and now_ms - window.judged_ms >= overdue_ms // 10

    def _forget(self) -> None:
        state = self.state
        keep_ms = self.settings.window_ms + self.settings.grace_ms + KEEP_MS
        over = [
            start
            for start, window in sorted(state.windows.items())
            if window.judged == window.length and start + keep_ms <= state.looked_ms
        ]
        missing = [s for s in over if state.windows[s].has_lost or state.windows[s].waiting]
        kept = set(missing[-WINDOWS_MAX:])
        for start in over:
            if start in kept:
                continue
            window = state.windows.pop(start)
            totals = Counter(state.totals)
            totals.update(window.counts)
            state.totals = dict(totals)
            state.forgotten_ms = max(state.forgotten_ms, start + self.settings.window_ms)
            self._dropped.append(ledger.path_of(self.windows_folder, start))
            if window.told:
                self._dropped.append(self.windows_folder / window.told)

    def _find(self, finding: dict[str, Any], kind: str, number: int) -> None:
        self.state.flagged[kind] = self.state.flagged.get(kind, 0) + number
        self._new.append(finding | {"at_ms": self.state.looked_ms})

    def _line(self, one: Judgement, *, again: bool) -> dict[str, Any]:
        return {
            "window_ms": one.start,
            "end_ms": one.start + self.settings.window_ms,
            "again": again,
            **one.counts,
            "flagged": one.flagged,
            "lateness_ms": one.lateness_ms,
            "judged_ms": self.state.looked_ms,
        }

    def _print(self) -> None:
        """Tell what is written down and was not told."""
        marker = self.folder / PRINTED_NAME
        told = int(marker.read_text()) if marker.exists() else 0
        if told >= self.state.findings:
            return
        with (self.folder / FINDINGS_NAME).open("rb") as findings:
            findings.seek(told)
            lines = findings.read(self.state.findings - told).splitlines()
        for line in lines:
            self._tell(json.loads(line))
        _replace(marker, str(self.state.findings))


def _newest(peers: Iterable[PeerRead]) -> str:
    """The marks that have come furthest, hex; empty: none."""
    found = [read.marks for read in peers if read.marks]
    return max(found, key=_progress, default="")


def _progress(marks: str) -> tuple[int, int, int, int]:
    found = Marks.decode(bytes.fromhex(marks))
    return found.epoch, found.main.L, found.main.c, found.main.r


def _decode(marks: str) -> Marks | None:
    return Marks.decode(bytes.fromhex(marks)) if marks else None


def _replace(path: Path, text: str) -> None:
    """All of it or nothing, whenever the process ends."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    partial.rename(path)
