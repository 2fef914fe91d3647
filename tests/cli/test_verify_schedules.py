"""``slotwheel verify`` over schedules: the stored table says what the entries of the journal do,
and the notes of entries what their rows do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.reading.verify.schedules import ScheduleCheck
from slotwheel.wheel import wheel
from slotwheel.wheel.answers import NamedAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.names import NAME_HEADER, encode_named
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schedules import (
    FiredRun,
    ScheduleChange,
    ScheduleDelete,
    SchedulePut,
    StoredSchedule,
    changed_by,
    decode_schedule,
    encode_runs,
    encode_schedule,
)
from slotwheel.wheel.state import Checkpoint, LmdbState, StateUpdate, StoredState
from support.damage import flip
from support.datadirs import assert_sound, state_of, verify
from support.scheduledrun import headers_of
from support.wheels import NOW, Node

CONFIG = WheelConfig()
Runs = Sequence[FiredRun]


def change(node: Node, *changes: SchedulePut | ScheduleDelete) -> None:
    future = node.wheel.change_schedules([(change, None) for change in changes], NOW)
    node.sync()
    future.result(0)


def put(name: str) -> SchedulePut:
    return SchedulePut(name, b"spec of %s" % name.encode(), NOW)


def fire(node: Node, name: str, count: int = 1) -> None:
    for _ in range(count):
        state = node.wheel.schedule(name)
        assert state is not None
        at_ms = NOW + 3_600_000 + 1_000 * state.runs
        run = FiredRun(name, state.version, state.runs + 1, at_ms, at_ms, 2, at_ms)
        row = at_ms, b"t", None, None, b"v", headers_of(run)
        assert node.wheel.fire([run], [row], NOW, lambda _: None)
        node.sync()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` has fired twice, ``b`` never, ``c`` is deleted; behind the checkpoint ``d`` was put and
    ``a`` fired once more."""
    root = tmp_path_factory.mktemp("schedules")
    node = Node(root, CONFIG, NOW)
    change(node, put("a"), put("b"))
    change(node, put("c"))
    fire(node, "a", 2)
    fire(node, "c")
    change(node, ScheduleDelete("c"))
    node.wheel.spill(NOW, everything=True)
    change(node, put("d"))
    fire(node, "a")
    node.close()
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "schedules")


def store(root: Path, name: str, **fields: Any) -> None:
    """The record of a schedule says something else."""
    record = decode_schedule(state_of(root).schedules[name], "")
    put_record(root, name, record._replace(**fields))


def put_record(root: Path, name: str, record: StoredSchedule) -> None:
    state = LmdbState(root)
    state.commit(StateUpdate(schedules={name: encode_schedule(record)}))
    state.close()


def remove(root: Path, name: str) -> None:
    state = LmdbState(root)
    state.commit(StateUpdate(schedules_deleted=[name]))
    state.close()


def faults(root: Path) -> list[str]:
    report = verify(root)
    return [f"{fault['expected']}; {fault['found']}" for fault in report["faults"]]


def test_a_sound_table_is_ok(root: Path) -> None:
    assert_sound(root)
    kinds = verify(root)["kinds"]["schedules"]
    assert (kinds["ok"], kinds["rows"]) == (1, 2)


FOREIGN = StoredSchedule(3, 3, NOW, 0, 0, -1, -1, -1, b"spec")


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda root: store(root, "a", runs=1), ["schedule 'a', runs: 2; 1"]),
        (lambda root: store(root, "a", missed=5), ["schedule 'a', missed: 4; 5"]),
        (lambda root: store(root, "a", offset=0), ["schedule 'a', offset: 1; 0"]),
        (
            lambda root: store(root, "a", decided_ms=5),
            [f"schedule 'a', decided_ms: {NOW + 3601000}; 5"],
        ),
        (lambda root: store(root, "b", version=1), ["schedule 'b', version: 3; 1"]),
        (lambda root: store(root, "b", spec=b"x"), ["schedule 'b', spec: spec of b; x"]),
        (
            lambda root: remove(root, "a"),
            ["a record of schedule 'a', which entries have put or fired; none"],
        ),
        (
            lambda root: put_record(root, "c", FOREIGN),
            ["no schedule 'c', as it was deleted; a record of it"],
        ),
        (
            lambda root: put_record(root, "e", FOREIGN),
            ["schedules that an entry has put; 'e', which none has"],
        ),
    ],
    ids=[
        *("a run behind", "missed", "another row", "another time", "another version"),
        *("another specification", "missing", "deleted", "of nobody"),
    ],
)
def test_a_table_that_says_something_else_is_found(
    root: Path, plant: Callable[[Path], None], found: list[str]
) -> None:
    plant(root)
    assert faults(root) == found
    assert {fault["path"] for fault in verify(root)["faults"]} == {"state"}


def test_a_record_may_be_newer_than_the_checkpoint(root: Path) -> None:
    """Then it is compared with the entries up to the one that it names."""
    node = Node(root, CONFIG, NOW)
    newest = {name: node.wheel.schedule(name) for name in "ad"}
    node.close()
    for name, record in newest.items():
        assert record is not None
        put_record(root, name, record)
    remove(root, "b")
    assert faults(root) == ["a record of schedule 'b', which entries have put or fired; none"]
    assert newest["a"] is not None
    put_record(root, "a", newest["a"]._replace(runs=2))
    assert "schedule 'a', runs: 3; 2" in faults(root)


def test_a_schedule_that_was_deleted_behind_the_checkpoint_may_have_no_record(root: Path) -> None:
    node = Node(root, CONFIG, NOW)
    change(node, ScheduleDelete("b"))
    node.close()
    assert_sound(root)
    remove(root, "b")
    assert_sound(root)


def test_a_journal_that_begins_later_shows_what_its_entries_have_set(root: Path) -> None:
    node = Node(root, WheelConfig(segment_bytes=4_000), NOW)
    while min((root / "journal").glob("*.journal")).name.startswith("00000000000000000001"):
        fire(node, "a", 5)
        node.wheel.spill(NOW, everything=True)
    fire(node, "a")
    node.wheel.spill(NOW, everything=True)
    state = node.wheel.schedule("a")
    node.close()
    assert state is not None
    assert_sound(root)
    store(root, "b", runs=9)  # nothing in the journal tells of it
    store(root, "a", missed=0)
    assert_sound(root)
    store(root, "a", runs=state.runs - 1)
    assert faults(root) == [f"schedule 'a', runs: {state.runs}; {state.runs - 1}"]


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["put", "fire", "fire", "delete"])),
    min_size=8,
)


@given(STEPS, st.data())
def test_a_table_is_sound_by_any_part_of_its_journal(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Wherever the journal begins and the checkpoint is, the table up to there has no fault."""
    first = data.draw(st.integers(1, len(steps)), "first entry of the journal")
    upto = data.draw(st.integers(first - 1, len(steps)), "checkpoint")
    table: dict[str, StoredSchedule] = {}
    stored = StoredState(checkpoint=Checkpoint(index=upto))
    log: list[ScheduleChange] = []
    for index, (name, step) in enumerate(steps, 1):
        state = table.get(name)
        if step == "put":
            log.append(SchedulePut(name, b"spec %d" % index, NOW + 1_000 * index))
        elif state is None or step == "delete":
            log.append(ScheduleDelete(name))
        else:
            at_ms = state.decided_ms + data.draw(st.sampled_from([1, 10_000]), "next run")
            run = state.version, state.runs + 1, at_ms, at_ms, 1, at_ms, index
            log.append(FiredRun(name, *run))
        for changed, new in changed_by(log[-1:], index, table.get).items():
            table.pop(changed, None)
            if new is not None:
                table[changed] = new
        if index == upto:
            stored.schedules = {name: encode_schedule(state) for name, state in table.items()}
    check = ScheduleCheck(stored, first)
    for index in range(first, len(log) + 1):
        check.add(log[index - 1 : index], index)
    item = check.compare(broken=False)
    assert item is None or not item.faults


def test_a_damaged_journal_is_compared_with_nothing(root: Path) -> None:
    store(root, "a", runs=1)
    flip(min((root / "journal").glob("*.journal")), 400)
    report = verify(root)
    assert report["kinds"]["schedules"]["invalid"] == 0
    assert any("not compared" in note["found"] for note in report["notes"])


def _renumbered(runs: Runs) -> bytes:
    return encode_runs([run._replace(number=run.number + 1) for run in runs])


def _doubled(runs: Runs) -> bytes:
    return encode_runs([*runs, *runs])


def _none(_: Runs) -> bytes:
    return encode_runs([])


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (_renumbered, "run 5 of schedule 'a' in row 0, as is noted"),
        (_doubled, "the runs that its rows are"),
        (_none, "a note of the run in row 0"),
    ],
    ids=["another run", "more runs than rows", "none"],
)
def test_a_note_of_a_run_that_does_not_fit_its_row_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, note: Callable[[Runs], bytes], expected: str
) -> None:
    node = Node(root, CONFIG, NOW)
    monkeypatch.setattr(wheel, "encode_runs", note)
    fire(node, "a")
    node.close()
    found = verify(root)["faults"]
    assert [fault["expected"] for fault in found] == [expected]
    assert found[0]["path"].startswith("journal/")


def send(node: Node, name: str, mode: str = "replace") -> None:
    headers = ((NAME_HEADER, name), ("slotwheel-if-exists", mode))
    batch = from_columns([NOW + 5_000_000], ["t"], [None], [None], [b"v"], [headers])
    future = node.wheel.append(batch, NOW)
    node.sync()
    future.result(0)


def _of_no_row(answers: Sequence[NamedAnswer]) -> bytes:
    return encode_named([answer._replace(row=7) for answer in answers])


def _of_another(answers: Sequence[NamedAnswer]) -> bytes:
    return encode_named([answer._replace(offset=answer.offset + 1) for answer in answers])


@pytest.mark.parametrize(
    ("note", "mode", "expected", "found"),
    [
        (
            _of_no_row,
            "replace",
            "a name of each row that a note is about",
            "row 7 is none of 2 rows",
        ),
        (
            _of_another,
            "replace",
            "a row that cancels offset 1, as row 0 is noted as *replaced*",
            "1 cancel rows, none of it",
        ),
    ],
    ids=["a row that is not there", "a cancel that is not there"],
)
def test_a_note_of_a_name_that_does_not_fit_its_rows_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    note: Callable[[Sequence[NamedAnswer]], bytes],
    mode: str,
    expected: str,
    found: str,
) -> None:
    node = Node(tmp_path, CONFIG, NOW)
    send(node, "n")
    monkeypatch.setattr(wheel, "encode_named", note)
    send(node, "n", mode)
    node.close()
    (fault,) = verify(tmp_path)["faults"]
    assert (fault["expected"], fault["found"]) == (expected, found)


def test_a_message_that_was_kept_out_must_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, CONFIG, NOW)
    send(node, "n")
    monkeypatch.setattr("slotwheel.wheel.due.namer.NameDecisions.cancel", lambda *_: None)
    send(node, "n", "keep")
    node.close()
    (fault,) = verify(tmp_path)["faults"]
    assert fault["expected"] == "a row that cancels offset 1, as row 0 is noted as *kept*"
