"""A double of ``wheel.files.Files`` that can lose power at any step.

Theory: every file has *live* bytes (what a process reads back) and *durable* bytes (what the disk
holds), and so has every directory entry. Between the two lies a list of operations that are not
synced yet. A power cut keeps any part of that list: each operation or not, of a write perhaps only
some sectors. A killed process keeps all of it live, and still none of it durable.

    files = CrashFiles(stop_at=17)        # the 17th step is the power cut
    try: use(files)
    except PowerCut: ...
    use(files.survivors("random", Random(3)))

Every write, truncate, sync, rename, unlink and creation is a numbered step. A write at which power
is cut leaves a prefix live; any other step leaves nothing. A failed sync drops what it should have
made durable, as Linux does: live it stays, and later syncs report success.
"""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.wheel.errors import SyncFailed
from slotwheel.wheel.files import Bytes
from support.crashnode import MODES, Mode, Node, Truncate, Write, surviving
from support.steps import PowerCut, Steps

__all__ = ["MODES", "CrashFiles", "CrashHandle", "Mode", "PowerCut", "Steps"]


@dataclass
class _NameChange:
    """``source`` goes away, ``target`` becomes ``node``, or a folder if that is None."""

    source: str | None
    target: str | None
    node: Node | None

    def apply(self, names: dict[str, Node | None]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None:
            names[self.target] = self.node

    def touches(self, directory: str) -> bool:
        return directory in {_parent(path) for path in (self.source, self.target) if path}


class CrashHandle:
    """``Handle`` of a ``CrashFiles``."""

    def __init__(self, files: CrashFiles, path: str, node: Node) -> None:
        self._files = files
        self._path = path
        self._node = node

    def pread(self, length: int, position: int) -> bytes:
        self._files.steps.check()
        self._files.fail("pread")
        return bytes(self._node.live[position : position + length])

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        files, node = self._files, self._node
        data = b"".join(parts)
        files.steps.check()
        try:
            files.steps.hit(f"pwrite {self._path} {position}+{len(data)}")
        except PowerCut:
            prefix = Random(files.steps.count).randint(0, len(data))
            node.change(Write(position, data[:prefix]))
            raise
        files.fail("pwrite")
        growth = position + len(data) - len(node.live)
        if growth > files.free:
            fits = max(0, len(data) - growth + files.free)
            self._change(Write(position, data[:fits]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._change(Write(position, data))
        return len(data)

    def truncate(self, length: int) -> None:
        self._files.step("truncate", f"{self._path} {length}")
        self._change(Truncate(length))

    def write_back(self) -> None:
        """No step: nothing is durable afterwards that was not before."""
        self._files.steps.check()
        with self._failing_sync():
            self._files.fail("write_back")

    def sync(self) -> None:
        with self._failing_sync():
            self._files.step("sync", self._path)
        self._node.sync()

    @contextmanager
    def _failing_sync(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._node.pending.clear()
            raise SyncFailed(f"a sync of {self._path} failed: {error}") from error

    def size(self) -> int:
        self._files.steps.check()
        return len(self._node.live)

    def close(self) -> None:
        """Never fails: it changes nothing that matters after a power cut."""

    def _change(self, operation: Write | Truncate) -> None:
        before = len(self._node.live)
        self._node.change(operation)
        self._files.free -= len(self._node.live) - before


class CrashFiles:
    """``Files`` in memory. ``free`` is the room left on the disk, in bytes, and may be set."""

    def __init__(self, stop_at: int | None = None, *, steps: Steps | None = None) -> None:
        self.steps = steps or Steps(stop_at)
        self.free = 1 << 40
        self.clock_ms = 0
        """When all of its files were written last, for who asks."""
        self._names: dict[str, Node | None] = {}
        self._listed: dict[str, list[str]] = {}
        """What ``list`` gave since a name changed; sweeps ask hundreds of thousands of times."""
        self._durable: dict[str, Node | None] = {}
        self._pending: list[_NameChange] = []
        self._faults: dict[str, list[tuple[int, OSError]]] = {}

    # -- what a test does

    def fail_next(self, operation: str, error: OSError, *, after: int = 0) -> None:
        """Let the next call of that name fail, or the one after ``after`` more.

        open create pread pwrite truncate write_back sync rename link unlink list map
        make_directory remove_directory sync_dir sync_all. A failing sync or write_back raises
        ``SyncFailed``; open_directory is what comes before sync_dir.
        """
        self._faults.setdefault(operation, []).append((after, error))

    def survivors(
        self, mode: Mode, rng: Random | None = None, *, steps: Steps | None = None
    ) -> CrashFiles:
        """What the next process finds.

        ``durable``: power was cut, and nothing unsynced is left. ``live``: the process was killed;
        all is there, and what was not synced is still not. ``random``: power was cut, and each
        unsynced write, truncate and directory operation survives or not, a write perhaps in part.
        """
        after = CrashFiles(steps=steps)
        after.free = self.free
        rng = rng or Random(0)
        copies: dict[int, Node] = {}

        def copy(node: Node | None) -> Node | None:
            if node is None:
                return None
            if id(node) not in copies:
                copies[id(node)] = surviving(node, mode, rng)
            return copies[id(node)]

        after._durable = {path: copy(node) for path, node in self._durable.items()}
        changes = [
            _NameChange(change.source, change.target, copy(change.node))
            for change in self._pending
            if mode == "live" or (mode == "random" and rng.random() < 0.5)
        ]
        if mode == "live":
            after._pending = changes
            after._names = {path: copy(node) for path, node in self._names.items()}
        else:
            for change in changes:
                change.apply(after._durable)
            after._durable = _reachable(after._durable)
            after._names = dict(after._durable)
        return after

    def content(self, path: str) -> bytes:
        """The live bytes of a file, whatever the state of the power."""
        return bytes(self._node(path).live)

    def replace(self, path: str, content: bytes) -> None:
        """Give a file other bytes, durably: what damage does. Creates it if need be."""
        node = self._names.get(path) or Node()
        self._names[path] = self._durable[path] = node
        self._listed.clear()
        node.live = bytearray(content)
        node.durable = bytearray(content)
        node.pending.clear()

    def remove(self, path: str) -> None:
        """Lose a file, durably: what damage does."""
        self._names.pop(path)
        self._listed.clear()
        self._durable.pop(path, None)

    # -- what the handles use

    def fail(self, operation: str) -> None:
        faults = self._faults.get(operation)
        if faults:
            after, error = faults.pop(0)
            if after == 0:
                try:
                    raise error
                finally:
                    del error  # like the system's own it refers to no frame that refers to it
            faults.insert(0, (after - 1, error))

    def step(self, operation: str, detail: str) -> None:
        self.steps.hit(f"{operation} {detail}")
        self.fail(operation)

    # -- the seam

    def open(self, path: str, *, create: bool = False) -> CrashHandle:
        self.steps.check()
        self.fail("open")
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._folder(_parent(path))
            self.step("create", path)
            self._rename(_NameChange(None, path, Node()))
        return CrashHandle(self, path, self._node(path))

    def map(self, path: str, length: int) -> pa.Buffer:
        self.steps.check()
        self.fail("map")
        return pa.py_buffer(self.content(path)[:length])

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        self._folder(_parent(target))
        self.step("rename", f"{source} {target}")
        self._rename(_NameChange(source, target, node))

    def link(self, source: str, target: str) -> None:
        node = self._node(source)
        self._folder(_parent(target))
        if target in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.step("link", f"{source} {target}")
        self._rename(_NameChange(None, target, node))

    def unlink(self, path: str) -> None:
        node = self._node(path)
        self.step("unlink", path)
        self._rename(_NameChange(path, None, None))
        if all(other is not node for other in self._names.values()):
            self.free += len(node.live)

    def set_modified(self, path: str, at_ms: int) -> None:
        self._node(path).modified_ms = at_ms

    def modified_ms(self, path: str) -> int:
        node = self._node(path)
        return self.clock_ms if node.modified_ms is None else node.modified_ms

    def list(self, directory: str) -> list[str]:
        self.steps.check()
        self.fail("list")
        directory = _clean(directory)
        if directory not in self._listed:
            start = f"{directory}/" if directory else ""
            rests = [path[len(start) :] for path in self._names if path.startswith(start)]
            self._listed[directory] = sorted(rest for rest in rests if rest and "/" not in rest)
        return self._listed[directory].copy()

    def make_directory(self, directory: str) -> None:
        parts = _clean(directory).split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if path and path not in self._names:
                self.step("make_directory", path)
                self._rename(_NameChange(None, path, None))

    def remove_directory(self, directory: str) -> None:
        directory = _clean(directory)
        self._folder(directory)
        if any(_parent(path) == directory for path in self._names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), directory)
        self.step("remove_directory", directory)
        self._rename(_NameChange(directory, None, None))

    def sync_dir(self, directory: str) -> None:
        directory = _clean(directory)
        self._folder(directory)
        self.fail("open_directory")
        self._sync("sync_dir", directory)
        rest = []
        for change in self._pending:
            if change.touches(directory):
                change.apply(self._durable)
            else:
                rest.append(change)
        self._pending = rest

    def sync_all(self) -> None:
        self._sync("sync_all", "")
        for change in self._pending:
            change.apply(self._durable)
        self._pending.clear()
        for node in {id(node): node for node in self._names.values() if node}.values():
            node.sync()

    def free_bytes(self) -> int:
        self.steps.check()
        return self.free

    def close(self) -> None:
        pass

    def _sync(self, operation: str, detail: str) -> None:
        try:
            self.step(operation, detail)
        except OSError as error:
            raise SyncFailed(f"{operation} of {detail!r} failed: {error}") from error

    def _rename(self, change: _NameChange) -> None:
        change.apply(self._names)
        self._listed.clear()
        self._pending.append(change)

    def _node(self, path: str) -> Node:
        node = self._names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _folder(self, directory: str) -> None:
        if directory and directory not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)


def without_sync(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """While that function or method runs, syncing a file does nothing."""
    _without(patch, owner, name, CrashHandle, "sync")


def without_sync_dir(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """While that function or method runs, syncing a directory does nothing."""
    _without(patch, owner, name, CrashFiles, "sync_dir")


def _without(patch: pytest.MonkeyPatch, owner: Any, name: str, seam: type, sync: str) -> None:
    found = inspect.getattr_static(owner, name)
    call = getattr(found, "__func__", found)

    def unsynced(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(seam, sync, lambda *_: None)
            return call(*arguments, **options)

    patch.setattr(owner, name, classmethod(unsynced) if found is not call else unsynced)


def _clean(directory: str) -> str:
    directory = directory.strip("/")
    return "" if directory == "." else directory


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _reachable(names: dict[str, Node | None]) -> dict[str, Node | None]:
    """Without what lies in a folder whose own name was lost."""
    found: dict[str, Node | None] = {}
    for path in sorted(names):
        if not _parent(path) or _parent(path) in found:
            found[path] = names[path]
    return found
