"""The running audit over batches that are made by hand: what is told, when, and how often."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from slotwheel.reading.files import Layout, PeerFiles
from slotwheel.reading.problems import INTEGRITY, Problem
from slotwheel.replay.facts.fact import EXPIRED, NO_DIGEST, TOO_SOON, Facts, Seen
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.following.audit import KEEP_MS, Audit, Settings, run_job
from slotwheel.replay.following.ledger import LedgerBatch, far_from
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.mark import Mark, Marks, TopicMark
from support.factrows import made_fact

START = 1_000_000
WINDOW, GRACE = 100, 20
END = START + WINDOW + GRACE
"""When the first window is judged."""
TOPIC = crc32c(b"orders")
GROUP = Layout("lab", "", [PeerFiles("one", "")], [], made_ms=START)


def fact(seen: Seen, offset: int, **fields: Any) -> Facts:
    """Offset ``n`` is due ``n`` ms after the first window began."""
    times = {"due": START + offset, "created": START - 1_000}
    return made_fact(seen, offset, **(times | fields))


def accepted(*offsets: int, **fields: Any) -> list[Facts]:
    return [fact(Seen.ACCEPTED, offset, **fields) for offset in offsets]


def arrived(*offsets: int, late_ms: int = 2, **fields: Any) -> list[Facts]:
    return [
        fact(Seen.DELIVERED, offset, **({"at": START + offset + late_ms} | fields))
        for offset in offsets
    ]


def cancelled(offset: int, by: int) -> list[Facts]:
    flags = {"where": by, "flags": NO_DIGEST, "created": -1}
    return [
        fact(Seen.CANCELLED, offset, **flags),
        fact(Seen.CANCEL, by, due=START + offset, digest=offset, topic=0),
    ]


class Run:
    """An audit, and all that it told."""

    def __init__(self, folder: Path, group: Layout = GROUP, **settings: Any) -> None:
        self.folder = folder
        directories = tuple(f"/{peer.name}" for peer in group.peers)
        self.settings = Settings(directories, WINDOW, GRACE, **settings)
        self.group = group
        self.told: list[tuple[str, int]] = []
        self.texts: list[str] = []
        self.notes: list[dict[str, Any]] = []
        self.number = -1
        self.audit = self.opened()

    def opened(self) -> Audit:
        return Audit(
            self.folder,
            self.settings,
            self.group,
            report=lambda one: self._report(dict(one)),
            note=lambda one: self.notes.append(dict(one)),
        )

    def _report(self, one: dict[str, Any]) -> None:
        self.told.append((one["flag"], one.get("offset", -1)))
        self.texts.append(one["text"])

    def batch(
        self,
        now_ms: int,
        *facts: Facts,
        marks: Marks | None = None,
        problems: tuple[Problem, ...] = (),
        offsets: tuple[int, int] = (0, 10_000),
        all_read: bool = True,
        commit: bool = True,
    ) -> list[tuple[str, int]]:
        """What is told because of it."""
        self.number += 1
        before = len(self.told)
        assert self.audit.begins(self.number)
        self.audit.come_near()
        folder, state = self.audit.windows_folder, self.audit.state
        ledger = LedgerBatch(folder, WINDOW, self.audit.lengths, state.far, state.far_from_ms)
        if facts:
            ledger.add(np.concatenate(facts))
        summary = FileSummary(0, offsets=[list(offsets)], topics={TOPIC: "orders"})
        if marks is not None:
            summary.marks, summary.max_l = marks.encode().hex(), marks.main.L
        self.audit.add(ledger.near.lengths, [(0, "", summary)], problems, ledger.far.lengths)
        jobs = self.audit.jobs(now_ms, all_read=all_read)
        self.audit.judged([run_job(job) for job in jobs], self.number)
        if commit:
            self.audit.commit(self.number)
        return self.told[before:]


def covers(offset: int) -> Marks:
    """A mark over all that is due up to this offset's due time."""
    return Marks(Mark(START + offset, offset, 9_999))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_window_is_judged_after_its_grace(run: Run) -> None:
    assert run.batch(START, *accepted(1, 2, 3, 150)) == []
    assert run.batch(END - 1, *arrived(1, 3), marks=covers(99)) == []
    assert run.batch(END, all_read=False) == [], "something may not be read yet"
    assert run.batch(END) == [("lost", 2)]
    assert "a mark covers it" in run.texts[0]
    assert [note["window_ms"] for note in run.notes] == [START]
    note = run.notes[0]
    assert (note["accepted"], note["delivered"], note["lost"]) == (3, 2, 1)
    assert note["lateness_ms"] == (2, 2, 2)
    assert run.batch(END + 10) == [], "once"
    assert run.audit.failed


def test_what_no_mark_covers_is_overdue_and_then_lost(run: Run) -> None:
    run.batch(START, *accepted(1, 2, 3), marks=covers(1))
    assert run.batch(END, *arrived(1)) == [("overdue", 2), ("overdue", 3)]
    assert run.batch(END + 500) == []
    assert run.batch(END + 600, *arrived(2, late_ms=600), marks=covers(99)) == [
        ("lost", 3),
        ("late after all", 2),
    ]
    assert "600 ms late" in run.texts[-1]
    summary = run.audit.summary()
    assert (summary["accepted"], summary["delivered"], summary["lost"]) == (3, 2, 1)


def test_a_held_back_topic_is_overdue(run: Run) -> None:
    copies = {"orders": TopicMark(Mark(START, 0, 9_999))}
    marks = replace(covers(99), copies=copies)
    assert run.batch(END, *accepted(5), marks=marks) == [("overdue", 5)]
    assert run.batch(END + 50, *arrived(5, late_ms=400), marks=covers(99)) == [
        ("late after all", 5)
    ]
    assert run.audit.failed, "it was not there in time"


def test_cancelled_and_dead_ones_are_not_missed(run: Run) -> None:
    facts = [*accepted(1, 2, 3), *cancelled(1, 4), fact(Seen.DEAD, 2, at=START + 5), *arrived(3)]
    assert run.batch(END, *facts, marks=covers(99)) == []
    note = run.notes[0]
    assert (note["cancelled"], note["dead"], note["delivered"]) == (1, 1, 1)
    assert not run.audit.failed


def test_expired_ones_are_not_missed_and_judged_by_their_time(run: Run) -> None:
    letters = [
        fact(Seen.DEAD, 1, at=START + 5, flags=EXPIRED),
        fact(Seen.DEAD, 2, at=START + 5, flags=EXPIRED | TOO_SOON),
    ]
    facts = [*accepted(1, 2, 3), *letters, *arrived(3, flags=EXPIRED)]
    told = run.batch(END, *facts, marks=covers(99))
    assert sorted(told) == [("dead too soon", 2), ("expired but delivered", 3)]
    note = run.notes[0]
    assert (note["expired"], note["dead"], note["delivered"], note["lost"]) == (2, 0, 1, 0)


def test_a_cancelled_one_that_arrives(run: Run) -> None:
    run.batch(END, *accepted(1), *cancelled(1, 4), marks=covers(99))
    assert run.batch(END + 5, *arrived(1)) == [("cancelled but delivered", 1)]


def test_early_late_and_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, late_ms=100)
    facts = [*accepted(1, 2, 3), *arrived(1, late_ms=-5), *arrived(2, late_ms=101), *arrived(3)]
    assert run.batch(END, *facts, marks=covers(99)) == [("early", 1), ("late", 2)]
    assert run.batch(END + 5, *arrived(3, late_ms=90)) == [("repeated", 3)]
    assert run.batch(END + 6, *arrived(3, late_ms=95)) == [], "told once"
    both = [*accepted(4), *arrived(4, late_ms=-5), *arrived(4)]
    assert run.batch(END + 7, *both) == [("early", 4), ("repeated", 4)]


def test_repeats_fail_only_when_asked(tmp_path: Path) -> None:
    for asked in (False, True):
        run = Run(tmp_path / str(asked), exactly_once=asked)
        told = run.batch(END, *accepted(3), *arrived(3), *arrived(3), marks=covers(99))
        assert told == [("repeated", 3)]
        assert run.audit.failed is asked
        summary = run.audit.summary()
        assert (summary["exactly_once"], summary["repeated"]) == (asked, 1)


def test_names_and_schedules_are_said_not_to_be_judged(run: Run) -> None:
    assert run.audit.summary()["not_judged"] == []
    run.audit.add({}, [(0, "", FileSummary(0, scheduled=3))], [])
    assert [what.split(" of ")[0] for what in run.audit.summary()["not_judged"]] == [
        "whether each run"
    ]
    run.audit.add({}, [(0, "", FileSummary(0, named=1)), (0, "", FileSummary(0))], [])
    run.audit.commit(0)
    again = run.opened().summary()
    assert len(again["not_judged"]) == 2
    assert again["accepted"] == 0


def test_accepted_after_it_was_due_has_its_own_grace(run: Run) -> None:
    run.batch(END, *accepted(1), *arrived(1), marks=covers(99))
    later = END + 500
    assert run.batch(later, *accepted(2, created=later)) == []
    assert run.batch(later + GRACE - 1, marks=covers(99)) == []
    assert run.batch(later + GRACE) == [("lost", 2)]
    back = arrived(2, late_ms=900, created=later)
    assert run.batch(later + GRACE + 1, *back) == [("late after all", 2)]


def test_altered_and_unknown(run: Run) -> None:
    facts = [*accepted(1), *arrived(1, digest=99), *arrived(2)]
    assert sorted(run.batch(END, *facts, marks=covers(99))) == [("altered", 1), ("unknown", 2)]


def test_before_the_journal_began_nothing_is_unknown(run: Run) -> None:
    assert run.batch(END, *arrived(2), marks=covers(99), offsets=(5, 10)) == []
    assert run.notes[0]["unaccounted"] == 1


def test_gaps_and_damage_are_told_and_blame_nobody(run: Run) -> None:
    problem = Problem(INTEGRITY, "gap", "entries 4 to 9 were dropped", file="one/journal")
    run.batch(START, *accepted(1), offsets=(0, 2))
    told = run.batch(END, *arrived(1, 3), marks=covers(99), offsets=(6, 10), problems=(problem,))
    assert told == [("gap", -1)]
    assert run.audit.failed


def test_memory_ends_with_the_windows(run: Run) -> None:
    for turn in range(30):
        first = turn * WINDOW
        now = END + first
        marks = covers(first + WINDOW - 1)
        run.batch(now, *accepted(first + 1), *arrived(first + 1), marks=marks)
    kept = run.audit.windows_folder
    assert len(list(kept.iterdir())) == 30
    after = END + 30 * WINDOW + KEEP_MS
    assert run.batch(after) == []
    assert list(kept.iterdir()) == []
    assert run.audit.summary()["delivered"] == 30
    told = run.batch(after + 1, *arrived(1))
    assert told == [("repeated", 1)], "it cannot be told from one that is unknown"
    late = fact(Seen.ACCEPTED, 40, created=after)
    assert run.batch(after + GRACE, late, marks=covers(9_000)) == [("lost", 40)]


def test_what_is_missing_is_kept(run: Run) -> None:
    run.batch(END, *accepted(1, 2), *arrived(1), marks=covers(99))
    after = END + WINDOW + 10 * KEEP_MS
    assert run.batch(after) == []
    assert run.batch(after + 1, *arrived(2, late_ms=10 * KEEP_MS)) == [("late after all", 2)]


def test_it_goes_on_after_a_restart_without_telling_twice(run: Run) -> None:
    run.batch(END, *accepted(1, 2), *arrived(1), marks=covers(99))
    assert run.told == [("lost", 2)]
    run.audit = run.opened()
    assert not run.audit.begins(run.number), "Spark may repeat the last batch"
    assert run.batch(END + 5) == []
    assert run.batch(END + 6, *arrived(2)) == [("late after all", 2)]


def test_a_batch_that_was_cut_off_is_done_again(run: Run) -> None:
    run.batch(START, *accepted(1, 2))
    run.batch(END, *arrived(1), marks=covers(99), commit=False)
    assert run.told == []
    run.audit = run.opened()
    run.number -= 1
    assert run.batch(END, *arrived(1), marks=covers(99)) == [("lost", 2)]
    assert run.notes[-1]["delivered"] == 1
    assert run.notes[-1]["repeated"] == 0


def test_killed_between_writing_down_and_telling(run: Run) -> None:
    run.batch(END, *accepted(2), marks=covers(99))
    (run.folder / "findings.told").unlink()
    run.told.clear()
    run.audit = run.opened()
    assert run.told == [("lost", 2)], "better twice than never"


def test_many_are_counted_and_some_are_listed(tmp_path: Path) -> None:
    run = Run(tmp_path, listed_max=3)
    assert len(run.batch(END, *accepted(*range(1, 50)), marks=covers(99))) == 3
    assert run.audit.summary()["flagged"] == {"lost": 49}
    assert run.batch(END + 1, *arrived(40)) == [("late after all", 40)], "all are remembered"


def test_uncommitted_rows_that_a_peer_cut_off(tmp_path: Path) -> None:
    """Two of three must hold it; and what was written in its place counts."""
    group = Layout("lab", "", [PeerFiles(name, "") for name in ("one", "two", "three")], [])
    run = Run(tmp_path, group)
    stale = accepted(1, digest=1, at=1)
    alone = accepted(2, peer=0)
    good = [one for peer in range(3) for one in accepted(1, digest=2, at=2, peer=peer)]
    told = run.batch(END, *stale, *alone, *good, *arrived(1, digest=2), marks=None)
    assert told == []
    assert run.notes[0]["in doubt"] == 1


def test_another_audits_state_is_refused(run: Run) -> None:
    run.batch(END)
    run.settings = replace(run.settings, window_ms=500)
    with pytest.raises(InvalidConfiguration, match="window_ms differs"):
        run.opened()


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_far_gets_its_windows_when_its_hour_comes_near(
    tmp_path: Path, *, killed: bool
) -> None:
    """A year has three million windows: until then a file for each hour has their messages. Killed
    is the process after the first batch that gives them to their windows, and before its commit."""
    run = Run(tmp_path)
    far = far_from(START)
    assert far > START + 7_200_000
    dues = [START, far, far + 7, far + WINDOW, far + 3_600_000]
    run.batch(START, *(fact(Seen.ACCEPTED, offset, due=due) for offset, due in enumerate(dues)))
    windows = run.audit.windows_folder
    assert sorted(run.audit.state.windows) == [START]
    assert run.audit.state.far == {far: 3 * 64, far + 3_600_000: 64}
    near_ms = far - 7_200_000
    marks = Marks(Mark(near_ms, 0, 9_999))
    run.batch(near_ms, *arrived(0), marks=marks)
    if killed:
        run.batch(near_ms + 1, commit=False)
        run.number -= 1
        run.audit = run.opened()
    assert run.batch(near_ms + 1) == []
    assert run.audit.lengths == {far: 2 * 64, far + WINDOW: 64}, "the first is forgotten"
    assert [path.name for path in windows.glob("far/*")] == [f"{far + 3_600_000}.facts"]
    late = fact(Seen.ACCEPTED, 5, due=far + 8)
    run.batch(near_ms + 2, late, marks=Marks(Mark(far + WINDOW, 9, 9_999)))
    came = [fact(Seen.DELIVERED, offset, due=dues[offset], at=dues[offset]) for offset in (1, 3)]
    assert run.batch(far + 2 * WINDOW + GRACE, *came) == [("lost", 2), ("lost", 5)]
