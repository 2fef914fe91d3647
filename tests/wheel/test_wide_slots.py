"""Slots of an hour and of a day: their names, which rows go there, and a life with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel import state
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.due import reader
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage, UnsupportedVersion
from slotwheel.wheel.schema import Int64s
from slotwheel.wheel.slots.lookup import cancelled_rows, topics_of
from slotwheel.wheel.slots.slot import (
    DAY_S,
    HOUR_S,
    SECOND_S,
    WIDTHS_S,
    Widths,
    begins_ms,
    ends_ms,
    file_name,
    first_second,
    is_wide,
    path_of,
    seconds_of,
    slot_of_name,
    slot_of_stem,
    slot_with,
    slots_with,
    stem_of,
    width_s,
)
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.texts import time_text
from support.wheels import NOW, Node, batch, master_of, opened

DAY_MS = DAY_S * TICK_MS
FAR = WheelConfig(far_horizon_ms=60 * DAY_MS)

seconds = st.integers(0, (1 << 40))
every_slot = st.builds(slot_with, seconds, st.sampled_from(WIDTHS_S)) | st.integers(-100, -1)


@given(every_slot)
def test_a_slot_is_found_again_by_its_name(slot: int) -> None:
    assert slot_of_name(file_name(slot)) == slot
    assert slot_of_stem(stem_of(slot)) == slot
    assert path_of(slot) == f"slots/{file_name(slot)}"


@given(every_slot)
def test_a_slot_has_the_seconds_from_its_begin_to_its_end(slot: int) -> None:
    assert ends_ms(slot) - begins_ms(slot) == width_s(slot) * TICK_MS
    assert seconds_of(slot)[0] == first_second(slot)
    assert ends_ms(slot) == (seconds_of(slot)[-1] + 1) * TICK_MS
    assert is_wide(slot) == (width_s(slot) > SECOND_S)
    for second in (seconds_of(slot)[0], seconds_of(slot)[-1]):
        assert slot in slots_with(second)
    assert slot not in slots_with(seconds_of(slot)[-1] + 1)


@pytest.mark.parametrize(
    "stem",
    [
        *("", "+", "+3600", "x", "05", "-0", "1+1", "3600+3601", "3601+3600", "86399+86400"),
        *("-3600+3600", "3600+03600", "3600+3600+3600", "3600+", f"{1 << 56}", f"{1 << 57}+3600"),
    ],
)
def test_other_stems_are_none_of_a_slot(stem: str) -> None:
    assert slot_of_stem(stem) is None


@given(
    st.integers(0, 1 << 42),
    st.integers(7_200, 86_400),
    st.lists(st.integers(-DAY_MS, 70 * DAY_MS), max_size=30),
)
def test_each_row_goes_to_one_slot_by_how_far_ahead_it_is_due(
    now_ms: int, slots: int, ahead: list[int]
) -> None:
    due = np.sort(np.array([now_ms + each for each in ahead], np.int64))
    chosen = Widths.at(now_ms, slots).slots(due).tolist()
    assert chosen == sorted(chosen), "the rows of a slot stand together, in due order"
    for at, slot in zip(due.tolist(), chosen, strict=True):
        assert begins_ms(slot) <= at < ends_ms(slot)
        if at <= now_ms + slots * TICK_MS:
            assert width_s(slot) == SECOND_S
        elif at <= now_ms + 2 * DAY_MS - TICK_MS:
            assert width_s(slot) in (SECOND_S, HOUR_S)
        elif at >= now_ms + 2 * DAY_MS:
            assert width_s(slot) == DAY_S
    by_second = {at // TICK_MS: slot for at, slot in zip(due.tolist(), chosen, strict=True)}
    assert [by_second[at // TICK_MS] for at in due.tolist()] == chosen, "a second is not shared"


def test_messages_in_slots_of_three_widths_leave_at_their_times(tmp_path: Path) -> None:
    """Some of the same second come before and after it was near enough for a file of its own."""
    begin = NOW - NOW % DAY_MS
    due = begin + 5 * DAY_MS + 10 * HOUR_S * TICK_MS + 500
    times = [begin, due - 3 * DAY_MS, due - 20 * HOUR_S * TICK_MS, due - 60_000]
    with opened(tmp_path, FAR, begin) as node:
        for number, now_ms in enumerate(times):
            node.send([(due, "t", b"%d" % number), (due + DAY_MS, "t", b"later")], now_ms)
            node.wheel.spill(now_ms, everything=True)
            assert node.delivered(now_ms) == []
        slots = [slot for slot in node.wheel.stock_point().catalog if begins_ms(slot) <= due]
        assert [width_s(slot) for slot in slots] == [SECOND_S, HOUR_S, DAY_S]
        node.stored()
        node.reopen(times[-1])
        [id_of_first, _] = node.ids_of(node.send([(due, "t", b"4"), (due, "t", b"5")], times[-1]))
        cancelled = node.blocking(lambda: node.wheel.cancel([id_of_first], times[-1]))
        assert cancelled == [CancelAnswer.CANCELLED]
        node.wheel.spill(times[-1], everything=True)
        assert node.delivered(due - 1) == []
        assert node.delivered(due) == [b"0", b"1", b"2", b"3", b"5"]
        node.mark(due + 1)
        node.wheel.clean(due + 1)
        assert node.delivered(due + DAY_MS) == [b"later"] * 4
        node.mark(due + 3 * DAY_MS)
        assert node.delivered(due + 3 * DAY_MS) == []
        node.mark(due + 3 * DAY_MS)
        node.wheel.clean(due + 3 * DAY_MS)
        assert list(node.wheel.stock_point().catalog) == []


def test_a_wheel_that_has_delivered_nothing_yet_finds_what_is_far(tmp_path: Path) -> None:
    due = NOW - NOW % DAY_MS + 4 * DAY_MS
    with opened(tmp_path, FAR, NOW) as node:
        node.send([(due, "t", b"far")], NOW)
        node.wheel.spill(NOW, everything=True)
        assert node.delivered(due) == [b"far"]


def test_the_state_tells_older_programs_only_once_there_is_a_wide_slot(tmp_path: Path) -> None:
    def version() -> bytes:
        with node.state._env.begin(db=node.state._meta) as txn:
            return bytes(txn.get(b"version") or b"")

    with opened(tmp_path, FAR, NOW) as node:
        node.send([(NOW + 1000, "t", b"near")], NOW)
        node.wheel.spill(NOW, everything=True)
        assert version() == b"3"
        node.send([(NOW + DAY_MS, "t", b"far")], NOW)
        node.wheel.spill(NOW, everything=True)
        assert version() == b"4"
        assert node.delivered(NOW + DAY_MS) == [b"near", b"far"]
        node.mark(NOW + 2 * DAY_MS)
        node.reopen(NOW + 2 * DAY_MS)
        assert isinstance(node.state, LmdbState)
        assert version() == b"4"


def test_the_program_before_refuses_a_state_with_wide_slots_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, FAR, NOW) as node:
        node.send([(NOW + DAY_MS, "t", b"far")], NOW)
        node.wheel.spill(NOW, everything=True)
    monkeypatch.setattr(state, "STATE_VERSION", 3)
    monkeypatch.setattr(state, "_VERSIONS", state._VERSIONS[:3])
    with pytest.raises(UnsupportedVersion) as refused:
        LmdbState(tmp_path)
    assert (refused.value.got, refused.value.limit) == ("4", 3)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"far_horizon_ms": 7_199_999},
        {"far_horizon_ms": 3_660 * DAY_MS + 1},
        {"far_horizon_ms": DAY_MS, "slots": 7_199},
        {"far_horizon_ms": -1},
    ],
)
def test_a_horizon_has_limits(options: dict[str, int]) -> None:
    with pytest.raises(InvalidConfiguration, match="--horizon"):
        WheelConfig(**options)  # type: ignore[arg-type]


def test_a_message_may_be_due_up_to_the_horizon(tmp_path: Path) -> None:
    with opened(tmp_path, replace(FAR, slots=86_400), NOW) as node:
        node.send([(NOW + 60 * DAY_MS, "t", b"")], NOW)
        with pytest.raises(InvalidMessage, match="--horizon"):
            node.wheel.append(batch([(NOW + 60 * DAY_MS + 1, "t", b"")]), NOW)


def test_a_node_with_one_far_message_sleeps_until_it_is_due(tmp_path: Path) -> None:
    """The message lies in the middle of a file of a day, of which no second is looked at before."""
    begin = NOW - NOW % DAY_MS
    due = begin + 5 * DAY_MS + DAY_MS // 2
    with opened(tmp_path, FAR, begin) as node:
        node.send([(due, "t", b"far")], begin)
        node.wheel.spill(begin, everything=True)
        master, now_ms, turns = master_of(node.wheel), begin, 0
        while now_ms < due:
            assert node.delivered(now_ms) == []
            while master.prepare(now_ms):
                pass
            node.mark(now_ms)
            next_ms = master.next_due_ms()
            assert next_ms is not None
            assert now_ms < next_ms <= due
            now_ms, turns = next_ms, turns + 1
        assert turns <= 5
        assert node.delivered(due) == [b"far"]


def test_a_late_row_of_a_wide_slot_is_judged_by_cancels_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was ahead, so what is sent now is late for the mark; and after a restart its cancel
    is known from the file alone, from a block behind those with late rows."""
    monkeypatch.setattr(reader, "_LATE_SPAN", 1)
    ahead = NOW + 12 * HOUR_S * TICK_MS
    due = NOW + 5 * HOUR_S * TICK_MS
    with opened(tmp_path, FAR, NOW) as node:
        node.send([(ahead, "t", b"first")], NOW)
        assert node.delivered(ahead) == [b"first"]
        node.mark(ahead)
        node.reopen(NOW)
        ids = node.ids_of(node.send([(due, "t", b"%d" % n) for n in range(3)], NOW))
        node.wheel.spill(NOW, everything=True)
        cancel = node.blocking(lambda: node.wheel.cancel(ids[:1], NOW))
        assert cancel == [CancelAnswer.CANCELLED]
        node.wheel.spill(NOW, everything=True)
        [slot] = node.wheel.stock_point().catalog
        assert width_s(slot) == HOUR_S
        node.reopen(NOW)
        assert node.delivered(ahead + 1) == [b"1", b"2"]


def test_one_late_row_does_not_read_all_of_a_wide_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, due = NOW + 12 * HOUR_S * TICK_MS, NOW + 5 * HOUR_S * TICK_MS
    with opened(tmp_path, FAR, NOW) as node:
        for number in range(20):
            node.send([(due, "t", b"%d" % number)] * 10, NOW)
            node.wheel.spill(NOW, everything=True)
        assert len(node.delivered(ahead)) == 200
        node.mark(ahead)
        node.reopen(NOW)
        node.send([(due, "t", b"late")], NOW)
        node.wheel.spill(NOW, everything=True)
        read: list[int] = []
        read_at = SlotFiles.read_at

        def counted(files: SlotFiles, slot: int, starts: Int64s, *more: Any) -> Any:
            read.append(len(starts))
            return read_at(files, slot, starts, *more)

        monkeypatch.setattr(SlotFiles, "read_at", counted)
        assert node.delivered(ahead) == [b"late"]
        assert read == [21, 1], "all blocks for the index, and the one that has it"
        node.send([(ahead, "t", b"next")], ahead)
        assert node.delivered(ahead + 1) == [b"next"]
        assert read == [21, 1], "nothing is read again"


def test_a_row_of_a_wide_slot_is_found_by_its_id(tmp_path: Path) -> None:
    due = NOW + 5 * DAY_MS
    with opened(tmp_path, FAR, NOW) as node:
        first = node.send([(due, "t", b"0"), (due + DAY_MS, "u", b"1")], NOW)
        node.wheel.spill(NOW, everything=True)
        second = node.send([(due, "v", b"2"), (due + 1000, "w", b"3")], NOW)
        node.wheel.spill(NOW, everything=True)
        storage = node.wheel._storage
        offsets = np.array([first.base_offset, second.base_offset, second.base_offset + 1])
        assert topics_of(storage, np.full(3, due), offsets).tolist() == ["t", "v", ""]
        row = storage.find(due, second.base_offset)
        assert row is not None
        assert row.column("value").to_pylist() == [b"2"]
        assert storage.find(due, second.base_offset + 1) is None, "it is due at another time"
        assert storage.find(due + 1000, 10**6) is None
        assert not storage._wide_slots._strips, "nothing is kept for it"
        ids = node.ids_of(second)
        assert node.blocking(lambda: node.wheel.cancel(ids, NOW)) == [CancelAnswer.CANCELLED] * 2
        node.wheel.spill(NOW, everything=True)
        named, unknown = cancelled_rows(storage, np.full(3, due), offsets, in_tail=False)
        assert named.tolist() == [False, True, False]
        assert not unknown.any()


@contextlib.contextmanager
def refused_at_open(node: Node) -> Iterator[pytest.ExceptionInfo[InvalidConfiguration]]:
    with pytest.raises(InvalidConfiguration, match="pending beyond the horizon") as refused:
        yield refused
    node.state.close()
    node.files.close()


def test_a_horizon_below_what_is_pending_is_refused_until_it_has_left(tmp_path: Path) -> None:
    ahead = (1, 40, 50)
    with opened(tmp_path, FAR, NOW) as node:
        ids = node.ids_of(node.send([(NOW + days * DAY_MS, "t", b"") for days in ahead], NOW))
        node.wheel.spill(NOW, everything=True)
        answers = node.blocking(lambda: node.wheel.cancel(ids[2:], NOW))
        assert answers == [CancelAnswer.CANCELLED]
        node.wheel.spill(NOW, everything=True)
        node.crash()

        def open_with(days: int, now_ms: int) -> None:
            node.config = replace(FAR, far_horizon_ms=days * DAY_MS)
            node.open(now_ms)
            node.close()

        with refused_at_open(node) as refused:
            open_with(39, NOW)
        assert refused.value.got == f"the farthest is due {time_text(NOW + 40 * DAY_MS)}, in 40 d"
        assert refused.value.limit == f"{time_text(NOW + 39 * DAY_MS)}, in 39 d"
        assert "--horizon 40d or more" in str(refused.value)
        open_with(40, NOW)
        open_with(40, NOW - 5 * DAY_MS)  # a clock that was set back
        open_with(39, NOW + DAY_MS)
        node.config = FAR
        node.open(NOW)


def test_what_the_journal_has_is_pending_too_but_not_what_slots_were_there_for(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, replace(FAR, slots=86_400), NOW) as node:
        node.send([(NOW + DAY_MS, "t", b"")], NOW)
        node.crash()
        node.config = WheelConfig()
        node.open(NOW)
        node.crash()
        node.config = FAR
        node.open(NOW)
        node.send([(NOW + DAY_MS + 1000, "t", b"")], NOW)
        node.crash()
        node.config = WheelConfig()
        with refused_at_open(node) as refused:
            node.open(NOW)
        assert "--horizon 2d or more" in str(refused.value)
        node.config = FAR
        node.open(NOW)


def test_a_standby_without_the_horizon_of_its_master_makes_no_file_of_each_second(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, FAR, NOW) as node:
        node.send([(NOW + 20 * DAY_MS + 1000 * n, "t", b"") for n in range(40)], NOW)
        node.send([(NOW + DAY_MS - 1000 * n, "t", b"") for n in range(3)], NOW)
        node.wheel._storage._config = WheelConfig()
        node.wheel.spill(NOW, everything=True)
        widths = [width_s(slot) for slot in node.wheel.stock_point().catalog]
        assert widths == [SECOND_S] * 3 + [DAY_S]


def test_indexes_are_there_before_a_standby_becomes_master(tmp_path: Path) -> None:
    """A damaged file is noted, and the others are read all the same."""
    due = NOW - NOW % DAY_MS + 5 * DAY_MS + DAY_MS // 2
    with opened(tmp_path, FAR, NOW) as node:
        node.send([(due, "t", b"day"), (due + 5_000, "t", b"day")], NOW)
        node.wheel.spill(NOW, everything=True)
        node.send([(due + 1_000, "t", b"hour")], due - DAY_MS)
        node.wheel.spill(due - DAY_MS, everything=True)
        storage = node.wheel._storage
        hour, day = list(storage.catalog)
        node.wheel.index_ahead(NOW)
        assert storage.next_second(due - 10_000) == (due - 10_000) // TICK_MS, "it is not known"
        node.wheel.index_ahead(due - 10_000)
        assert storage.next_second(due - 10_000) == due // TICK_MS
        sound = (tmp_path / path_of(hour)).read_bytes()
        (tmp_path / path_of(hour)).write_bytes(sound[:-1] + b"x")
        node.reopen(due - 10_000)
        node.wheel.index_ahead(due - 10_000)
        assert list(node.wheel.damaged()) == [hour]
        storage = node.wheel._storage
        assert storage._wide_slots.next_second(day, storage.catalog[day], 0) == due // TICK_MS
