"""The state of the running audit between two batches: one small file.

Facts lie in the ledger, and what was reported of a window beside them; the state has the valid
length of these files. Nothing in it grows with the length of a run: windows are dropped, gaps and
topics are limited.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crc32c import crc32c

from ...account.limits import GRACE_MS, INTERVAL_MS
from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...reading.files import Layout
from ...wheel.errors import InvalidConfiguration, UnsupportedVersion
from ...wheel.mark import Marks
from ..facts.making import GroupTerms
from ..facts.summary import FileSummary
from ..facts.traced import TraceSummary
from ..judging.context import Context, Options, PeerView, progress
from ..judging.journals import as_ranges
from .ledger import far_from

VERSION = 4
STATE_NAME = "audit.json"
MISSING_MAX = 1_000
"""Gaps of a journal that are kept; the newest."""
TOPICS_MAX = 10_000
_SAME = ("directories", "window_ms", "start_ms", "end_ms", "kafka", "topics", "traces", "tables")
"""Settings that must be the same whenever an audit goes on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an audit. ``directories``: of the peers that are audited. Times in ms."""

    directories: tuple[str, ...]
    window_ms: int = INTERVAL_MS
    grace_ms: int = GRACE_MS
    late_ms: int | None = None
    exactly_once: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    listed_max: int = 1_000
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    kafka: str = ""
    """Kafka's brokers; empty: embedded topics alone."""
    topics: tuple[str, ...] = ()
    """Kafka's topics that are read."""
    traces: str = ""
    """Directory of a trace store; empty: none."""
    tables: str = ""
    """Directory for the tables of all boundaries; empty: none."""
    kafka_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the client that reads there. They are not kept with the state, as a password may
    be among them."""

    @property
    def options(self) -> Options:
        return Options(
            interval_ms=self.window_ms,
            late_ms=self.late_ms,
            exactly_once=self.exactly_once,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            problems_max=self.listed_max,
            grace_ms=self.grace_ms,
        )


@dataclass(slots=True)
class AuditWindow:
    """The state of a window, without its facts."""

    length: int
    """Valid bytes of its file."""
    judged: int = -1
    """The file's length when the window was last judged; -1: never."""
    marks: str = ""
    """``State.progress`` at that time."""
    judged_ms: int = 0
    waiting: int = 0
    settles_ms: int = 0
    has_lost: bool = False
    forgotten: bool = False
    told: str = ""
    """Name of the file with what was reported of the window; empty: nothing."""
    written: int = 0
    """Checksum of its rows in the tables of all boundaries; 0: it has none."""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PeerRead:
    """The part of a peer's journal that was read. ``next``: one behind the highest offset;
    ``missing``: gaps between rows; ``proven``: lower offsets were committed; ``marks``: hex."""

    first: int = -1
    """Lowest offset; -1: none yet."""
    next: int = -1
    missing: list[list[int]] = field(default_factory=list)
    proven: int = 0
    marks: str = ""

    def add(self, summary: FileSummary) -> None:
        for base, end in summary.offsets:
            if self.first < 0 or base < self.first:
                self.first = base
            if 0 <= self.next < base:
                self.missing = [*self.missing, [self.next, base]][-MISSING_MAX:]
            self.next = max(self.next, end)
        if summary.marks:
            self.marks = summary.marks
        self.proven = max(self.proven, summary.max_l + 1)

    def view(self, name: str) -> PeerView:
        """The peer as judging needs it. A row of its journal counts as held until a mark covers
        it."""
        held = [[self.first, self.next]] if self.next >= 0 else []
        return PeerView(
            name, 0, decode(self.marks), as_ranges(held), as_ranges(self.missing), self.proven
        )


@dataclass(slots=True)
class State:
    version: int = VERSION
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int = -1
    looked_ms: int = 0
    windows: dict[int, AuditWindow] = field(default_factory=dict)
    peers: list[PeerRead] = field(default_factory=list)
    topics: dict[int, str] = field(default_factory=dict)
    damaged_topics: list[int] = field(default_factory=list)
    forgotten_ms: int = -1
    """End of the latest window that was dropped."""
    totals: dict[str, int] = field(default_factory=dict)
    """Counts of windows that were dropped."""
    flagged: dict[str, int] = field(default_factory=dict)
    findings: int = 0
    """Valid bytes of the findings' file."""
    run: str = ""
    """In the names of the tables' files, so that two audits may share a directory."""
    published: list[str] = field(default_factory=list)
    """Files of the tables that the last batch wrote."""
    events: TraceSummary = field(default_factory=TraceSummary)
    far: dict[int, int] = field(default_factory=dict)
    """Valid bytes of the files of what is far (``ledger``), by the begin of their hours, ms."""
    far_from_ms: int = 0
    """What is due from here on is far, and what is far and due before was given to its windows."""
    sources: dict[str, str] = field(default_factory=dict)
    """``CLUSTER/TOPIC-ID`` of each name when it was first seen."""

    def read_from(self, sources: Mapping[str, str]) -> None:
        """Note ``CLUSTER/TOPIC-ID`` of each topic by its name. Errors: ``InvalidConfiguration``: a
        topic was made anew: Spark would go on at the old one's offsets, and pass over the new
        one's records."""
        for topic, source in sources.items():
            if self.sources.setdefault(topic, source) != source:
                raise InvalidConfiguration(
                    f"the topic {topic} was made anew since this audit began",
                    got=source,
                    limit=self.sources[topic],
                    remedy="Begin another audit: give another --state",
                )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> State:
        fields = json.loads(text)
        fields["windows"] = {
            int(at): AuditWindow(**window) for at, window in fields["windows"].items()
        }
        fields["peers"] = [PeerRead(**peer) for peer in fields["peers"]]
        fields["topics"] = {int(crc): name for crc, name in fields["topics"].items()}
        fields["far"] = {int(at): length for at, length in fields.get("far", {}).items()}
        fields["events"] = TraceSummary.of(fields["events"])
        fields["version"] = VERSION
        return cls(**fields)

    @classmethod
    def load(cls, folder: Path, settings: Settings, group: Layout) -> State:
        """The state in a folder, or that of a new audit. Errors: ``InvalidConfiguration``: it is
        another audit's; ``UnsupportedVersion``."""
        path = folder / STATE_NAME
        given = json.loads(json.dumps(asdict(settings) | {"kafka_settings": {}}))
        if not path.exists():
            spilled = {peer.root: peer.spilled for peer in group.peers}
            peers = [PeerRead(proven=spilled.get(root, 0)) for root in settings.directories]
            run, far_from_ms = uuid.uuid4().hex[:12], far_from(group.made_ms)
            return cls(settings=given, peers=peers, run=run, far_from_ms=far_from_ms)
        text = path.read_text()
        version = json.loads(text).get("version")
        if version not in (VERSION - 1, VERSION):
            raise UnsupportedVersion(
                f"{path}: unknown version of an audit's state",
                got=version,
                limit=VERSION,
                remedy="Use the slotwheel version that wrote it, or another --state",
            )
        state = cls.from_json(text)
        for name in _SAME:
            if state.settings[name] != given[name]:
                raise InvalidConfiguration(
                    f"{folder} is the state of another audit: its {name} differs",
                    got=str(given[name]),
                    limit=str(state.settings[name]),
                    remedy="Give the same directories and windows, or another --state",
                )
        state.settings = given
        return state

    def save(self, folder: Path) -> None:
        write_whole(folder / STATE_NAME, self.to_json())

    def add(self, peer: int, topic: str, summary: FileSummary) -> None:
        """Add the summary of a part of a journal (``topic`` empty) or of an embedded topic."""
        self.name_topics(summary.topics)
        if not topic:
            self.peers[peer].add(summary)
        elif summary.damaged:
            self.damaged_topics = sorted({*self.damaged_topics, crc32c(topic.encode())})

    def name_topics(self, topics: Mapping[int, str]) -> None:
        room = max(0, TOPICS_MAX - len(self.topics))
        self.topics |= dict(list(topics.items())[:room])

    @property
    def marks(self) -> str:
        """The newest marks of all peers, hex; empty: none."""
        known = [read.marks for read in self.peers if read.marks]
        return max(
            known, key=lambda marks: progress(Marks.decode(bytes.fromhex(marks))), default=""
        )

    @property
    def progress(self) -> str:
        """A text that differs once a waiting message may be settled: when marks have moved, or the
        positions that groups of consumers have committed."""
        groups = replace(self.events, own=0, foreign=0, senders={})
        return f"{self.marks}{crc32c(groups.to_json().encode()):08x}"

    def context(self, settings: Settings, group: Layout) -> Context:
        named = zip(settings.directories, self.peers, strict=True)
        return Context(
            GroupTerms.of(group, settings.dead_letter_topic),
            settings.options,
            [read.view(name) for name, read in named],
            decode(self.marks),
            self.looked_ms,
            self.topics,
            frozenset(self.damaged_topics),
            len(self.peers) > 1 or any(peer.is_replica for peer in group.peers),
        )


def decode(marks: str) -> Marks | None:
    return Marks.decode(bytes.fromhex(marks)) if marks else None


def write_whole(path: Path, text: str) -> None:
    """Replace a file with this text, all of it or nothing, whenever the process ends."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    partial.rename(path)
