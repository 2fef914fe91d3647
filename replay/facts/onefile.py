"""One file of the scan: its rows become facts, and problems that it shows alone are found on the
way.

- its summary (``summary.py``);
- *placement*: each row of a slot file is due in the slot of the file's name, be that a second, an
  hour or a day; where all of them are due in another one, it is the file that is misplaced;
- a topic or receipts that belong to another group's run as a whole;
- a row twice in one slot file;
- texts in a topic that begin like an id of this group and are malformed;
- the order of a topic (``chunks.py``).

Damaged bytes are found by the reader of the file; its problems only pass through.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...reading.files import DUMP, JOURNAL, RECEIPTS, SLOT, TOPIC, File, due_within
from ...reading.problems import CONSERVATION, INTEGRITY, PLACEMENT, Problem
from ...reading.read import ConfigSeen, Ended, MarkSeen, RowsSeen
from ...wheel.schema import Int64s, times
from .again import again_facts
from .chunks import OrderTracker
from .fact import FORGED, Facts, Seen
from .making import FactBatch, GroupTerms, journal_facts, receipt_facts, slot_facts, topic_facts
from .named import named_facts
from .records import facts_of_records
from .summary import FileSummary

PROBLEMS_MAX = 1_000
"""Problems of one file that are described; all are counted."""


class OneFile:
    """A file, or a Kafka source, while it is read. Not thread-safe."""

    def __init__(self, file: File, terms: GroupTerms) -> None:
        self.file = file
        self.terms = terms
        self.summary = FileSummary(file.number)
        self.order: OrderTracker | None = None
        """Made with the first rows, as each peer's embedded topics have positions of their own."""
        self._problems: list[Problem] = []
        self._reported = 0
        self._clock_ms = 0
        """Of the newest mark that was read."""
        self._slot: list[Int64s] = []
        """Offset and due of all rows of a slot file."""

    def facts_of(self, event: object) -> FactBatch | None:
        if isinstance(event, RowsSeen):
            return self._rows(event)
        if isinstance(event, MarkSeen):
            self._mark(event)
        elif isinstance(event, ConfigSeen):
            config = event.config
            self.summary.group, self.summary.key = str(config["group"]), str(config["key"])
            self.summary.peers = len(config.get("stores", ())) or self.summary.peers
        elif isinstance(event, Problem):
            self.problem(event)
        elif isinstance(event, Ended):
            self._ended(event)
        return None

    def records(self, batch: pa.RecordBatch) -> FactBatch:
        if self.order is None:
            self.order = self._tracker("Kafka", embedded=False)
        made = facts_of_records(batch, self.file, self.terms)
        for position, text in made.unreadable:
            self.problem(
                Problem(
                    CONSERVATION,
                    "forged",
                    f"{text!r} begins like an id of this group and is none",
                    file=self.file.name,
                    position=position,
                )
            )
        if made.unnamed:
            self._has_room("forged", made.unnamed)
        return made

    def count(self, made: FactBatch) -> None:
        self.summary.foreign += made.foreign
        if self.file.kind == RECEIPTS:
            self.summary.forged += int((made.facts["flags"] & FORGED != 0).sum())
        if self.file.kind in (TOPIC, DUMP):
            self.summary.add_read(made.read)

    def problem(self, problem: Problem) -> None:
        if self._has_room(problem.kind):
            self._problems.append(problem)

    def _has_room(self, kind: str, number: int = 1) -> bool:
        """Count problems of a kind. Returns false if too many were described before."""
        self.summary.problems[kind] = self.summary.problems.get(kind, 0) + number
        self._reported += 1
        return self._reported <= PROBLEMS_MAX

    def new_problems(self) -> list[Problem]:
        problems, self._problems = self._problems, []
        return problems

    def end(self) -> None:
        """Check the file as a whole, after its last row."""
        if self.file.kind == SLOT and self._slot:
            offsets, due = np.concatenate(self._slot, axis=1)
            self._places(offsets, due)
            self._offsets_twice(offsets, due)
        elif self.file.kind in (TOPIC, RECEIPTS):
            self._strange()

    def _strange(self) -> None:
        """Report a topic or receipts that have nothing of this group's run. A topic in Kafka is
        left out: it may well have other producers."""
        summary = self.summary
        if not summary.rows or summary.foreign + summary.forged < summary.rows:
            return
        summary.is_strange = summary.damaged = True
        contents = "the receipts" if self.file.kind == RECEIPTS else "what this node delivered"
        of = "another group" if summary.foreign else "a group of this name with another key"
        self.problem(
            Problem(
                INTEGRITY,
                "foreign",
                f"all {summary.rows:,} rows are of {of}, of another run most likely: give"
                f" {contents} of this one",
                file=self.file.name,
            )
        )

    def _tracker(self, source: str, *, embedded: bool) -> OrderTracker:
        return OrderTracker(source, self.file.number, self.file.name, embedded=embedded)

    def _rows(self, event: RowsSeen) -> FactBatch:
        # The event's own file: the slot file may have moved to the archive.
        file, rows, kind = event.file, event.rows, event.file.kind
        self.summary.rows += rows.num_rows
        if kind == JOURNAL:
            self.summary.add_offsets(times(rows, "offset"))
            if self.summary.first_created_ms < 0:
                self.summary.first_created_ms = int(times(rows, "created")[0])
            made = journal_facts(file, rows, event.index, event.epoch)
            again = again_facts(file, rows, event.index, self.terms)
            named = named_facts(file, rows, event.index, self._clock_ms)
            self.summary.scheduled += len(event.runs)
            return self._with(made, again, named)
        if kind == SLOT:
            self._slot.append(np.stack([times(rows, "offset"), times(rows, "due")]))
            return self._with(slot_facts(file, rows), named_facts(file, rows))
        if kind == RECEIPTS:
            return receipt_facts(file, event.position, rows, self.terms)
        if event.topic:
            if self.order is None:
                source = f"peer {file.peer}" if kind == TOPIC else f"file {file.number}"
                self.order = self._tracker(source, embedded=True)
            return topic_facts(file, event.topic, event.group, rows, self.terms)
        return self.records(rows)

    def _with(self, made: FactBatch, *others: Facts) -> FactBatch:
        """The batch, with further facts of its rows."""
        more = [facts for facts in others if len(facts)]
        if more:
            made.facts = np.concatenate([made.facts, *more])
            self.summary.named += sum(int((facts["seen"] == Seen.NAMED).sum()) for facts in more)
        return made

    def _mark(self, event: MarkSeen) -> None:
        self._clock_ms = event.marks.main.c
        self.summary.marks = event.marks.encode().hex()
        self.summary.marks_index = event.index
        self.summary.max_l = max(self.summary.max_l, event.marks.main.L)

    def _ended(self, event: Ended) -> None:
        summary = self.summary
        summary.damaged, summary.note = event.damaged, event.note or summary.note
        summary.gone = event.gone or (event.file.archived and not self.file.archived)
        summary.entries = event.entries
        summary.first_index, summary.last_index = event.first_index, event.last_index
        summary.last_epoch = event.last_epoch
        summary.first_offset, summary.next_offset = event.first_offset, event.next_offset

    def _places(self, offsets: Int64s, due: Int64s) -> None:
        file = self.file
        wrong = np.flatnonzero(~due_within(due, *file.due_ms))
        own, last = (file.stem_for(int(at)) for at in (due.min(), due.max()))
        if 1 < len(wrong) == len(due) and own == last:
            text = (
                f"all {len(due):,} rows are due in slot {own}: it is that slot's"
                f" file, under the name of slot {file.stem}. Give it its own name again"
            )
            self.problem(Problem(PLACEMENT, "misplaced", text, file=self.file.name))
            return
        for row in wrong.tolist():
            self._slot_problem(
                PLACEMENT,
                "misplaced",
                f"due {due[row]} ms, in slot {file.stem_for(int(due[row]))}, lies in the file of"
                f" slot {file.stem}",
                int(due[row]),
                int(offsets[row]),
            )

    def _offsets_twice(self, offsets: Int64s, due: Int64s) -> None:
        order = np.argsort(offsets)
        again = np.flatnonzero(np.diff(offsets[order]) == 0) + 1
        for row in order[again].tolist():
            text = f"offset {offsets[row]} stands in the file twice"
            self._slot_problem(INTEGRITY, "offset twice", text, int(due[row]), int(offsets[row]))

    def _slot_problem(self, validator: str, kind: str, text: str, due: int, offset: int) -> None:
        if self._has_room(kind):  # before the id is made, which takes its time
            name = self.terms.id_of(due, offset)
            problem = Problem(validator, kind, text, name, offset, due, self.file.name)
            self._problems.append(problem)
