"""The state store: every field comes back, and what is not ours is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slotwheel.wheel.config import WIDTH_BITS
from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.mark import Mark, Marks, TopicMark
from slotwheel.wheel.state import (
    STATE_VERSION,
    Checkpoint,
    LmdbState,
    ProducerEntry,
    SlotInfo,
    StateUpdate,
    StoredState,
    decode_checkpoint,
    encode_checkpoint,
)
from support.memstate import MemoryState

MARKS = Marks(Mark(5_000, 7, 9), 3, {"a.b": TopicMark(Mark(4_000, 1 << 60, 8), 2)}, 11, 1, 9, 1)
CHECKPOINT = Checkpoint(17, 3, 42, 40, 2, MARKS, {"group": "g", "slots": 7200, "key": "00" * 16})


def reload(root: Path) -> StoredState:
    with closing(LmdbState(root)) as state:
        return state.load()


def test_a_new_directory_is_empty(tmp_path: Path) -> None:
    assert reload(tmp_path) == StoredState()


def test_every_field_comes_back(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    slots = {
        -1: SlotInfo(1, 2, 0, -1, 0xFFFFFFFF),
        1_900_000_000: SlotInfo((1 << 63) + 5, 1 << 40, 3, (1 << 62), 0),
    }
    producers = {
        1: [ProducerEntry(1, 10, 1000, 5, 3), ProducerEntry(-2, 13, 1001, 6, 1)],
        (1 << 63) | 2: [ProducerEntry(1 << 60, 0, -5, 1 << 62, (1 << 32) - 1)],
        3: [],
    }
    state.commit(
        StateUpdate(
            epoch=3,
            vote="node-ü",
            store_id=b"0123456789abcdef",
            checkpoint=CHECKPOINT,
            slots=slots,
            producers=producers,
            voter=True,
            incoming=True,
            group_key=b"k" * 16,
            cancelled={-7: b"record", 1_900_000_000: b""},
            cancelled_floor=-1,
        )
    )
    assert state.cancelled(-7) == b"record"
    assert state.cancelled(7) is None
    state.close()
    assert reload(tmp_path) == StoredState(
        b"0123456789abcdef",
        3,
        "node-ü",
        CHECKPOINT,
        slots,
        producers,
        True,
        True,
        b"k" * 16,
        cancelled={-7: b"record", 1_900_000_000: b""},
        cancelled_floor=-1,
    )


def test_a_reader_follows_a_state_that_gets_records(tmp_path: Path) -> None:
    """It was opened while the state was of version 1; a program of that version refuses it then."""
    with closing(LmdbState(tmp_path)) as old, old._env.begin(write=True) as txn:
        txn.drop(old._later[b"cancelled"])
    code = (
        "import sys; from slotwheel.wheel.state import LmdbState, StateUpdate;"
        " LmdbState(sys.argv[1]).commit(StateUpdate(cancelled={4: b'x'}, cancelled_floor=3))"
    )
    with closing(LmdbState(tmp_path, readonly=True)) as reader:
        assert (reader.cancelled(4), reader.cancelled_floor()) == (None, None)
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert (reader.cancelled(4), reader.cancelled_floor()) == (b"x", 3)
    env = lmdb.open(str(tmp_path / "state"), max_dbs=3, readonly=True)
    with closing(env), env.begin(db=env.open_db(b"meta", create=False)) as txn:
        assert txn.get(b"version") == b"3"


def test_an_update_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    state.commit(
        StateUpdate(
            epoch=1,
            slots={1: SlotInfo(1, 1, 0, 1, 1), 2: SlotInfo(2, 2, 0, 2, 2)},
            producers={1: [ProducerEntry(1, 1, 1, 1, 1)], 2: [ProducerEntry(2, 2, 2, 2, 2)]},
        )
    )
    state.commit(StateUpdate(vote="v", slots_deleted=[1, 99], producers_deleted=[2, 99]))
    stored = state.load()
    state.close()
    assert (stored.epoch, stored.vote, stored.store_id) == (1, "v", b"")
    assert list(stored.slots) == [2]
    assert list(stored.producers) == [1]


STORES: dict[str, Callable[[Path], LmdbState | MemoryState]] = {
    "lmdb": LmdbState,
    "double": lambda path: MemoryState(),
}


@pytest.mark.parametrize("store", STORES)
def test_replace_leaves_only_what_comes_with_it(store: str, tmp_path: Path) -> None:
    """The real store and the double of the crash sweeps agree."""
    state = STORES[store](tmp_path)
    sent = [ProducerEntry(1, 1, 1, 1, 1)]
    old = {second: SlotInfo(1, 1, 0, 1, 1) for second in range(2000)}
    state.commit(
        StateUpdate(epoch=7, vote="v", store_id=b"s" * 16, voter=True, group_key=b"k", slots=old)
    )
    state.commit(StateUpdate(producers=dict.fromkeys(range(1, 100), sent)))
    new = {1: SlotInfo(2, 2, 0, 2, 2), 3000: SlotInfo(3, 3, 0, 3, 3)}
    state.commit(
        StateUpdate(
            checkpoint=CHECKPOINT, slots=new, producers={5: sent}, incoming=True, replace=True
        )
    )
    expected = StoredState(b"s" * 16, 7, "v", CHECKPOINT, new, {5: sent}, True, True, b"k")
    assert state.load() == expected
    state.commit(StateUpdate(replace=True, incoming=False, voter=False))
    assert state.load() == StoredState(b"s" * 16, 7, "v", CHECKPOINT, group_key=b"k")
    state.close()


def test_a_directory_of_before_peers_opens(tmp_path: Path) -> None:
    """It lacks the keys that came with peers."""
    state = LmdbState(tmp_path)
    state.commit(StateUpdate(epoch=3, vote="v", store_id=b"s" * 16))
    state.close()
    with lmdb.open(str(tmp_path / "state"), max_dbs=3) as env:
        meta = env.open_db(b"meta")
        with env.begin(db=meta) as txn:
            assert sorted(bytes(key) for key, _ in txn.cursor(db=meta)) == [
                b"epoch",
                b"store_id",
                b"version",
                b"vote",
            ]
    stored = reload(tmp_path)
    assert (stored.voter, stored.incoming, stored.group_key) == (False, False, b"")


def test_a_replace_that_fails_changes_nothing(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    state.commit(StateUpdate(epoch=1, slots={1: SlotInfo(1, 1, 0, 1, 1)}))
    bad = SlotInfo(-1, 1, 0, 1, 1)
    with pytest.raises(Exception, match=r"argument|format"):
        state.commit(StateUpdate(slots={2: bad}, replace=True))
    assert list(state.load().slots) == [1]
    state.close()


def test_a_commit_is_whole_or_not_at_all(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    state.commit(StateUpdate(epoch=1))
    bad = SlotInfo(-1, 1, 0, 1, 1)  # no unsigned number: fails in the middle of the transaction
    with pytest.raises(Exception, match=r"argument|format"):
        state.commit(StateUpdate(epoch=2, slots={1: bad}))
    assert state.load().epoch == 1
    assert state.load().slots == {}
    state.close()


def test_a_wide_slot_and_the_version_that_tells_of_it_come_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between two of them an earlier program would take the slot for a second."""
    seen: list[tuple[bytes, bool]] = []
    with closing(LmdbState(tmp_path)) as state:
        begin = state._env.begin

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(env, name)

            @contextmanager
            def begin(self, **options: Any) -> Iterator[Any]:
                with begin(**options) as txn:
                    yield txn
                with begin() as txn:
                    keys = [int.from_bytes(key, "big") for key, _ in txn.cursor(db=state._slots)]
                    version = bytes(txn.get(b"version", db=state._meta) or b"")
                    wide = any(key >> WIDTH_BITS for key in keys)
                    seen.append((version, wide))

        env = state._env
        monkeypatch.setattr(state, "_env", Watched())
        info = SlotInfo(1, 1, 0, 0, 0)
        state.commit(StateUpdate(slots={5: info}))
        state.commit(StateUpdate(slots={5: info, 1 << WIDTH_BITS: info}))
        state.commit(StateUpdate(slots_deleted=[1 << WIDTH_BITS]))
    assert seen == [(b"3", False), (b"4", True), (b"4", False)]


def test_a_full_map_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwheel.wheel.state._MAP_BYTES", 128 << 10)
    state = LmdbState(tmp_path)
    state.commit(StateUpdate(epoch=1))
    many = {second: SlotInfo(1, 1, 0, 1, 1) for second in range(20_000)}
    with pytest.raises(OSError, match="no room"):
        state.commit(StateUpdate(epoch=2, slots=many))
    state.commit(StateUpdate(vote="still works"))
    assert (state.load().epoch, state.load().slots) == (1, {})
    state.close()


def test_reading_beside_a_writer_changes_nothing(tmp_path: Path) -> None:
    LmdbState(tmp_path).close()
    before = sorted(os.listdir(tmp_path / "state"))  # noqa: PTH208
    state = LmdbState(tmp_path, readonly=True)
    assert state.load() == StoredState()
    state.close()
    assert sorted(os.listdir(tmp_path / "state")) == before  # noqa: PTH208


def put_meta(root: Path, key: bytes, value: bytes) -> None:
    env = lmdb.open(str(root / "state"), max_dbs=3)
    with env.begin(write=True, db=env.open_db(b"meta")) as txn:
        txn.put(key, value)
    env.close()


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    LmdbState(tmp_path).close()
    put_meta(tmp_path, b"version", str(STATE_VERSION + 1).encode())
    text = f"got {STATE_VERSION + 1}; expected {STATE_VERSION}"
    with pytest.raises(UnsupportedVersion, match=text):
        LmdbState(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def noise(path: Path) -> None:
    path.write_bytes(b"\xa5" * 8192)


@pytest.mark.parametrize("damage", [cut, noise])
def test_a_file_that_is_no_lmdb_is_damage(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    LmdbState(tmp_path).close()
    damage(tmp_path / "state" / "data.mdb")
    with pytest.raises(Damaged, match="state"):
        LmdbState(tmp_path).close()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", encode_checkpoint(CHECKPOINT)[:-1], b"\xff"]
)
def test_a_checkpoint_that_is_none_is_damage(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(Damaged, match="somewhere"):
        decode_checkpoint(raw, "somewhere")
    LmdbState(tmp_path).close()
    put_meta(tmp_path, b"checkpoint", raw)
    with pytest.raises(Damaged, match="checkpoint"):
        reload(tmp_path)


def test_a_checkpoint_without_a_field_is_damage() -> None:
    text = encode_checkpoint(CHECKPOINT).decode()
    for name in ("index", "epoch", "next_offset", "rows", "cancels", "marks", "config"):
        with pytest.raises(Damaged):
            decode_checkpoint(text.replace(f'"{name}"', '"other"').encode(), "somewhere")


def test_a_missing_store_is_damage_for_a_reader(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises((Damaged, lmdb.Error, OSError)):
        LmdbState(tmp_path, readonly=True)
