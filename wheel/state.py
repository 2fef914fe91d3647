"""The state store: small, transactional, and the one commit point of a data directory.

Theory: slot files and journal segments are only bytes; what they *mean* is decided here. One
transaction says which slot files exist and how long they are, together with the checkpoint up to
which the journal is no longer needed. Bytes beyond a recorded length were never written.

Every record but the version ends with a CRC-32C over its key and its value: LMDB has no checksums,
and a wrong length taken as valid would cut a sound slot file.

``StateStore`` is the seam; ``LmdbState`` the real store; tests have a double whose commit is one
atomic step of a crash sweep.

This is I6 (docs/design.md); the records are in docs/formats.md, "State".
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import lmdb
from crc32c import crc32c

from .answers import NamedAnswer
from .config import WIDTH_BITS
from .errors import Damaged, SyncFailed, UnsupportedVersion
from .mark import Marks
from .names import ANSWER_BYTES, decode_named, encode_named

StoreIds = Mapping[str, bytes]
"""Id of each admitted store, by its node."""

STATE_VERSION = 6
"""The version of a state that has had schedules, version 5 of one that has had names of messages,
version 4 of one that has had slots of
more than a second. Version 3 is of a program with long ids (``ids``), version 2 of one with short
ids, version 1 of one that kept no records of cancels either."""
_VERSIONS = (b"1", b"2", b"3", b"4", b"5", b"6")
STATE_DIRECTORY = "state"
_MAP_BYTES = 1 << 30  # address space, not memory; growing a map in place kills open transactions

# +--------+------+---------+---------+-------+
# | length | rows | cancels | highest | crc   | then the record's own CRC
# | u64    | u64  | u64     | i64     | u32   |
# +--------+------+---------+---------+-------+
_SLOT = struct.Struct(
    "<"
    "Q"  # committed length of the file in bytes
    "Q"  # rows in it, of every kind
    "Q"  # of those, cancel rows
    "q"  # highest offset in it
    "I"  # running CRC-32C over the committed length
)
_SECOND = struct.Struct(">q")  # key: big-endian, so that LMDB's order is that of numbers
# +----------+-------------+---------+-------+-------+-------+
# | sequence | base offset | created | index | count | named |
# | i64      | i64         | i64     | u64   | u32   | u32   |
# +----------+-------------+---------+-------+-------+-------+
_SENT = struct.Struct(
    "<"
    "q"  # the producer's sequence
    "q"  # base offset the entry got
    "q"  # when it was created, ms
    "Q"  # index of the entry
    "I"  # rows in it
    "I"  # so many answers about names follow (``names.encode_named``)
)
_PRODUCER = struct.Struct(">Q")
_SEAL = struct.Struct("<I")  # CRC-32C of key and value, behind every value
SLOT_BYTES = _SLOT.size
SENT_BYTES = _SENT.size
assert SLOT_BYTES == 36
assert SENT_BYTES == 40


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The catalog's record of one slot file; ``length`` is in bytes, ``crc`` a CRC-32C over it."""

    length: int
    rows: int
    cancels: int
    highest: int
    crc: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows of a damaged slot file that a repair could not read, and nobody else had."""

    slot: int
    rows: int
    """The number of rows lost, cancel rows too."""
    cancels: int
    """The number of cancel rows among them: their messages are delivered."""
    kept: str = ""
    """The damaged file's path in the data directory; empty: it is on another peer."""
    at_most: bool = False
    """Delivery had reached the slot: some of these rows were delivered, so the counters of the
    checkpoint keep them. Without it they were taken from the counters."""

    def __str__(self) -> str:
        return f"{'at most ' if self.at_most else ''}{self.rows}"


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One entry of a producer, as far as a duplicate needs to be answered."""

    sequence: int
    base_offset: int
    created: int
    index: int
    count: int
    named: Sequence[NamedAnswer] = ()
    """What became of messages with the names of its rows, as its receipt said."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything in the journal up to ``index`` that must outlive it."""

    index: int = 0
    epoch: int = 0
    next_offset: int = 0
    rows: int = 0
    """Rows ever committed, of every kind, up to ``index``."""
    cancels: int = 0
    """Cancel rows among them."""
    marks: Marks = field(default_factory=Marks)
    config: Mapping[str, Any] = field(default_factory=dict)
    """The last configuration entry: group, key, slots."""
    named: bool = False
    """A row with a name has been spilled: who gets the slot files makes a table of names of
    them."""


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """One transaction. ``None`` or empty leaves a part as it is.

    ``replace``: ``slots``, ``producers``, ``cancelled`` and ``schedules`` are all there is; what
    was there before goes.
    """

    epoch: int | None = None
    vote: str | None = None
    store_id: bytes | None = None
    checkpoint: Checkpoint | None = None
    slots: Mapping[int, SlotInfo] = field(default_factory=dict)
    slots_deleted: Sequence[int] = ()
    producers: Mapping[int, Sequence[ProducerEntry]] = field(default_factory=dict)
    producers_deleted: Sequence[int] = ()
    voter: bool | None = None
    group_key: bytes | None = None
    incoming: bool | None = None
    losses: Sequence[Loss] | None = None
    """All losses, in the place of those before; an empty sequence removes them."""
    cancelled: Mapping[int, bytes] = field(default_factory=dict)
    """Records of what was cancelled (``cancelrecord``), by second."""
    cancelled_deleted: Sequence[int] = ()
    cancelled_floor: int | None = None
    deleted_floor: int | None = None
    names: bytes | None = None
    """The record of the runs of names (``named/runs.py``); empty: they are to be made anew."""
    schedules: Mapping[str, bytes] = field(default_factory=dict)
    """Records of schedules (``schedules.py``), by name."""
    schedules_deleted: Sequence[str] = ()
    clock: str | None = None
    replace: bool = False


@dataclass(slots=True)
class StoredState:
    """The whole state as loaded at open."""

    store_id: bytes = b""
    epoch: int = 0
    vote: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    slots: dict[int, SlotInfo] = field(default_factory=dict)
    producers: dict[int, list[ProducerEntry]] = field(default_factory=dict)
    voter: bool = False
    """This store may vote: it took part in the founding, or saw its own admission committed."""
    incoming: bool = False
    """The state is that of a received snapshot, whose files are perhaps not in place yet."""
    group_key: bytes = b""
    """With peers: the group's key, from the moment that it is committed here. The checkpoint has it
    only after the first spill, and a directory must be known as the group's before."""
    losses: list[Loss] = field(default_factory=list)
    """Accepted rows that a repair gave up. They stay for good, and a verifier reports them."""
    cancelled: dict[int, bytes] = field(default_factory=dict)
    """Records of what was cancelled in seconds that have left, whole or in part."""
    cancelled_floor: int | None = None
    """Up to this due time, ms, it is not known any more what was cancelled; -1: it is known of all.
    None: the state was written before there were such records."""
    deleted_floor: int | None = None
    """No slot file with a row due later than this, ms, was deleted without being archived; -1: none
    was. None: a program that does not note it has written the state."""
    names: bytes | None = None
    """The record of the runs of names; None: there is none, or they are to be made anew."""
    schedules: dict[str, bytes] = field(default_factory=dict)
    """Records of schedules (``schedules.py``), by name."""
    clock: str = ""
    """The node's notes about its clock (``node/clock.py``)."""


_RecordOf = Callable[[bytes], bytes | None]
"""The record of a key; None: there is none."""
_Pairs = Iterable[tuple[bytes, bytes]]


class StateStore(Protocol):
    """Loads the state once, then commits updates; each commit is durable when it returns."""

    def load(self) -> StoredState: ...

    def commit(self, update: StateUpdate) -> None: ...

    def cancelled(self, second: int) -> bytes | None: ...

    def close(self) -> None: ...


_NUMBERS = ("index", "epoch", "next_offset", "rows", "cancels")
"""Fields of a checkpoint that are plain numbers in its record, too."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    fields: dict[str, Any] = {name: getattr(checkpoint, name) for name in _NUMBERS}
    fields["marks"] = checkpoint.marks.encode().hex()
    fields["config"] = dict(checkpoint.config)
    if checkpoint.named:
        fields["named"] = True
    return json.dumps(fields, sort_keys=True).encode()


def decode_checkpoint(data: bytes, where: str) -> Checkpoint:
    try:
        fields = json.loads(data)
        return Checkpoint(
            **{name: fields[name] for name in _NUMBERS},
            marks=Marks.decode(bytes.fromhex(fields["marks"]), f"{where}: mark of the checkpoint"),
            config=fields["config"],
            named=fields.get("named", False),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(where, 0, expected="a checkpoint", found=str(error)) from None


def encode_losses(losses: Sequence[Loss]) -> bytes:
    fields = [asdict(loss) for loss in losses]
    for each in fields:
        each["second"] = each.pop("slot")  # its name from before there were wider slots
    return json.dumps(fields, sort_keys=True).encode()


def decode_losses(data: bytes, where: str) -> list[Loss]:
    try:
        return [Loss(slot=fields.pop("second"), **fields) for fields in json.loads(data)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(where, 0, expected="losses of repairs", found=str(error)) from None


def encode_slot(info: SlotInfo) -> bytes:
    return _SLOT.pack(info.length, info.rows, info.cancels, info.highest, info.crc)


def decode_slot(data: bytes | memoryview) -> SlotInfo:
    return SlotInfo(*_SLOT.unpack(data))


def encode_sent(sent: Sequence[ProducerEntry]) -> bytes:
    return b"".join(
        _SENT.pack(
            *(entry.sequence, entry.base_offset, entry.created, entry.index, entry.count),
            len(entry.named),
        )
        + encode_named(entry.named)
        for entry in sent
    )


def decode_sent(data: bytes | memoryview) -> list[ProducerEntry]:
    """Errors: ``struct.error``, ``ValueError``."""
    sent = []
    at = 0
    while at < len(data):
        sequence, base_offset, created, index, rows, count = _SENT.unpack_from(data, at)
        at += SENT_BYTES + count * ANSWER_BYTES
        named = data[at - count * ANSWER_BYTES : at]
        if at > len(data):
            raise ValueError(f"{count} answers about names in {len(named)} bytes")
        answers = tuple(decode_named(named))
        sent.append(ProducerEntry(sequence, base_offset, created, index, rows, answers))
    return sent


def seal(key: bytes, value: bytes) -> bytes:
    """The record to store: the value, and the checksum of key and value behind it."""
    return value + _SEAL.pack(crc32c(value, crc32c(key)))


def unseal(key: bytes, record: bytes, where: str) -> bytes:
    """The value of a record. Errors: ``Damaged``."""
    value = record[: -_SEAL.size]
    if record != seal(key, value):
        raise Damaged(
            where,
            0,
            expected=f"a record {key!r} with its own checksum",
            found=record[:64].hex(),
        )
    return value


def check_version(path: str, raw: bytes | None) -> None:
    """``raw``: the version's record. Errors: ``Damaged``: there is none; ``UnsupportedVersion``."""
    if raw is None:
        raise Damaged(path, 0, expected="a format version", found="none")
    if bytes(raw) not in _VERSIONS:
        raise UnsupportedVersion(
            f"{path}: the data directory has a format this version does not know",
            got=bytes(raw)[:20].decode("ascii", "replace"),
            limit=STATE_VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )


def decode_state(
    path: str,
    meta: _RecordOf,
    producers: _Pairs,
    cancelled: _Pairs,
    slots: _Pairs = (),
    schedules: _Pairs = (),
    *,
    commit: int,
) -> StoredState:
    """Decode the state from LMDB's records, as of the commit of that number. Errors: ``Damaged`` if
    one is not what was written."""
    stored = StoredState()
    stored.store_id = _unsealed(path, meta, b"store_id")
    stored.epoch = int(_unsealed(path, meta, b"epoch", b"0"))
    stored.vote = _unsealed(path, meta, b"vote").decode()
    stored.voter = _unsealed(path, meta, b"voter", b"0") == b"1"
    stored.group_key = _unsealed(path, meta, b"group_key")
    stored.incoming = _unsealed(path, meta, b"incoming", b"0") == b"1"
    stored.losses = decode_losses(_unsealed(path, meta, b"losses", b"[]"), path)
    raw = _unsealed(path, meta, b"checkpoint")
    if raw:
        stored.checkpoint = decode_checkpoint(raw, path)
    stored.cancelled_floor = _floor(_unsealed(path, meta, b"cancelled_floor"))
    stored.deleted_floor = _deleted_floor(path, meta, commit)
    stored.names = _unsealed(path, meta, b"names") or None
    stored.clock = _unsealed(path, meta, b"clock").decode()
    for key, record in producers:
        value = unseal(bytes(key), bytes(record), path)
        try:
            stored.producers[_PRODUCER.unpack(key)[0]] = decode_sent(value)
        except (struct.error, ValueError) as error:
            raise Damaged(path, 0, expected="records of a producer", found=str(error)) from None
    for key, record in cancelled:
        stored.cancelled[_SECOND.unpack(key)[0]] = unseal(bytes(key), bytes(record), path)
    for key, record in schedules:
        try:
            name = bytes(key).decode()
        except UnicodeDecodeError as error:
            raise Damaged(path, 0, expected="a schedule's name", found=str(error)) from None
        stored.schedules[name] = unseal(bytes(key), bytes(record), path)
    for key, record in slots:
        stored.slots[_SECOND.unpack(key)[0]] = decode_slot(unseal(key, record, path))
    return stored


def _unsealed(path: str, meta: _RecordOf, key: bytes, default: bytes = b"") -> bytes:
    record = meta(key)
    return default if record is None else unseal(key, bytes(record), path)


def _floor(value: bytes) -> int | None:
    return int(value) if value else None


def _deleted_floor(path: str, meta: _RecordOf, commit: int) -> int | None:
    """The floor in the record if that is of the last commit. A program of before the record deletes
    slots and leaves it as it is: who believed it then would call a directory complete in which what
    that program has deleted is missing."""
    fields = _unsealed(path, meta, b"deleted_floor").split()
    return int(fields[0]) if fields and int(fields[1]) == commit else None


class LmdbState:
    """``StateStore`` in one LMDB environment at ``<root>/state``.

    Errors on open: ``UnsupportedVersion`` for a newer format, ``Damaged`` when it is not ours.
    """

    def __init__(self, root: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.path = os.path.join(os.fspath(root), STATE_DIRECTORY)
        if not readonly:
            os.makedirs(self.path, exist_ok=True)
        try:
            self._env = lmdb.open(
                self.path,
                map_size=_MAP_BYTES,
                max_dbs=5,
                readonly=readonly,
                create=not readonly,
                lock=not readonly,
            )
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
            raise Damaged(self.path, 0, expected="an LMDB environment", found=str(error)) from None
        self._readonly = readonly
        if not readonly:
            _sync_directory(self.path)  # LMDB syncs its file, and not the file's name
        self._meta = self._database(b"meta")
        self._slots = self._database(b"slots")
        self._known_slots: dict[bytes, tuple[bytes, SlotInfo]] = {}
        """Records of the catalog as they were loaded last, to decode only what has changed."""
        self._producers = self._database(b"producers")
        self._check_version()
        self._later: dict[bytes, Any] = {}
        self._open_later(b"cancelled")
        self._open_later(b"schedules")

    def _database(self, name: bytes) -> Any:
        try:
            return self._env.open_db(name, create=not self._readonly)
        except lmdb.Error as error:
            raise Damaged(
                self.path, 0, expected=f"database {name.decode()}", found=str(error)
            ) from None

    def _open_later(self, name: bytes) -> Any:
        """A database that not every version has; None: nobody has made it, and this is read
        only."""
        if name not in self._later:
            with contextlib.suppress(lmdb.NotFoundError):
                self._later[name] = self._env.open_db(name, create=not self._readonly)
        return self._later.get(name)

    def _check_version(self) -> None:
        with self._env.begin(db=self._meta) as txn:
            raw = txn.get(b"version")
        self._version = max(_VERSIONS[2], bytes(raw or b""))
        if raw is None and not self._readonly:
            with self._env.begin(write=True, db=self._meta) as txn:
                txn.put(b"version", _VERSIONS[0])
        else:
            check_version(self.path, raw)

    def generation(self) -> int:
        """The number of the last commit. As long as it stays, so does everything stored; what was
        loaded beside a writer is of one commit if it is the same before and after."""
        return int(self._env.info()["last_txnid"])

    def load(self, *, whole: bool = True) -> StoredState:
        """The stored state; ``whole`` False: without producers, records of cancels and
        schedules. Errors: ``Damaged`` when a record is not what was written."""
        cancelled = self._open_later(b"cancelled") if whole else None
        schedules = self._open_later(b"schedules") if whole else None
        with self._env.begin() as txn:
            stored = decode_state(
                self.path,
                lambda key: txn.get(key, db=self._meta),
                txn.cursor(db=self._producers) if whole else (),
                txn.cursor(db=cancelled) if cancelled is not None else (),
                schedules=txn.cursor(db=schedules) if schedules is not None else (),
                commit=txn.id(),
            )
            self._load_slots(txn, stored.slots)
        return stored

    def cancelled(self, second: int) -> bytes | None:
        """The record of a second's cancels, if there is one. Any thread. Errors: ``Damaged``."""
        database = self._open_later(b"cancelled")
        if database is None:
            return None
        key = _SECOND.pack(second)
        with self._env.begin(db=database) as txn:
            record = txn.get(key)
        return None if record is None else unseal(key, bytes(record), self.path)

    def _load_slots(self, txn: Any, slots: dict[int, SlotInfo]) -> None:
        before, known = self._known_slots, {}
        for key, record in txn.cursor(db=self._slots):
            decoded = before.get(key)
            if decoded is None or decoded[0] != record:
                decoded = record, decode_slot(unseal(key, record, self.path))
            slots[_SECOND.unpack(key)[0]] = decoded[1]
            known[key] = decoded
        if self._readonly:  # a node loads it once
            self._known_slots = known

    def cancelled_floor(self) -> int | None:
        """The floor of ``StoredState`` as it is by now. Errors: ``Damaged``."""
        with self._env.begin(db=self._meta) as txn:
            return _floor(_unsealed(self.path, txn.get, b"cancelled_floor"))

    def commit(self, update: StateUpdate) -> None:
        """Commit, durably. Errors: ``OSError``: no room, nothing committed; ``SyncFailed``: end."""
        try:
            self._write(update)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise OSError(errno.ENOSPC, f"no room for the state store: {error}") from error
        except lmdb.Error as error:
            raise SyncFailed(f"commit to {self.path} failed: {error}") from error

    def _write(self, update: StateUpdate) -> None:
        cancelled, schedules = self._later[b"cancelled"], self._later[b"schedules"]
        with self._env.begin(write=True) as txn:

            def put(key: bytes, value: bytes, database: Any) -> None:
                txn.put(key, seal(key, value), db=database)

            if update.store_id is not None:
                put(b"store_id", update.store_id, self._meta)
            if update.epoch is not None:
                put(b"epoch", str(update.epoch).encode(), self._meta)
            if update.vote is not None:
                put(b"vote", update.vote.encode(), self._meta)
            if update.voter is not None:
                put(b"voter", b"1" if update.voter else b"0", self._meta)
            if update.group_key is not None:
                put(b"group_key", update.group_key, self._meta)
            if update.incoming is not None:
                put(b"incoming", b"1" if update.incoming else b"0", self._meta)
            if update.names is not None:
                put(b"names", update.names, self._meta)
                self._version = max(self._version, _VERSIONS[4])
            if update.clock is not None:
                put(b"clock", update.clock.encode(), self._meta)
            if update.losses is not None:
                put(b"losses", encode_losses(update.losses), self._meta)
            if update.replace:
                txn.drop(self._slots, delete=False)
                txn.drop(self._producers, delete=False)
                txn.drop(cancelled, delete=False)
                txn.drop(schedules, delete=False)
                txn.delete(b"names", db=self._meta)
            if update.checkpoint is not None:
                put(b"checkpoint", encode_checkpoint(update.checkpoint), self._meta)
            for second, info in update.slots.items():
                put(_SECOND.pack(second), encode_slot(info), self._slots)
            for second in update.slots_deleted:
                txn.delete(_SECOND.pack(second), db=self._slots)
            for producer, sent in update.producers.items():
                put(_PRODUCER.pack(producer), encode_sent(sent), self._producers)
            for producer in update.producers_deleted:
                txn.delete(_PRODUCER.pack(producer), db=self._producers)
            for second, record in update.cancelled.items():
                put(_SECOND.pack(second), record, cancelled)
            for second in update.cancelled_deleted:
                txn.delete(_SECOND.pack(second), db=cancelled)
            for name, record in update.schedules.items():
                put(name.encode(), record, schedules)
                self._version = max(self._version, _VERSIONS[5])
            for name in update.schedules_deleted:
                txn.delete(name.encode(), db=schedules)
            if update.cancelled_floor is not None:
                put(b"cancelled_floor", str(update.cancelled_floor).encode(), self._meta)
            floor = update.deleted_floor
            if floor is None:
                before = txn.id() - 1
                floor = _deleted_floor(self.path, lambda key: txn.get(key, db=self._meta), before)
            if floor is not None:
                put(b"deleted_floor", f"{floor} {txn.id()}".encode(), self._meta)
            # A program without records of cancels would delete slots and write none, and one with
            # short ids would give out such for offsets that have long ones. One without wide slots
            # would take the number of one for a second, and deliver its rows then. One without
            # names would let two messages have the same, and one without schedules fire nothing.
            if any(slot >> WIDTH_BITS > 0 for slot in update.slots):
                self._version = max(self._version, _VERSIONS[3])
            txn.put(b"version", self._version, db=self._meta)

    def close(self) -> None:
        self._env.close()


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
