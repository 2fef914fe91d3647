"""The ledger of the running audit: facts on disk until their window of due time is judged.

Theory: an audit that runs for weeks may not remember for weeks. A message is settled some time
after it was due, so facts lie in folders by due time, as rows do in the wheel, and a folder is
removed when it was judged. The window is taken from ``due`` alone, because that is what all who see
a message know of it; what was accepted after it was due settles later, and its file's name says
when. So a window may come again, for what came after it was judged.

A batch that a stream repeats after a crash must count once, even when its window was judged in
between. Its files have the same names, and replace what is there; a batch that was added entirely
is noted after its files, and is not added again. Batches of a source come in ascending order;
after a crash, a window is judged only when the streams have repeated what was cut off.

Layout: ``<window start, ms>/<source>-<batch>.<settles, ms>.facts``, and ``<source>.added``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from .facts import FACT, Facts, pack, unpack


class Ledger:
    def __init__(self, folder: Path, window_ms: int) -> None:
        if window_ms <= 0:
            raise ValueError(f"a window of {window_ms} ms")
        self._folder = folder
        self._window_ms = window_ms
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.closed"):
            shutil.rmtree(left)

    def add(self, source: str, batch: int, facts: Facts) -> bool:
        """Keep the facts of a batch. False: they were added before, and nothing was done."""
        added = self._folder / f"{source}.added"
        if added.exists() and batch <= int(added.read_text()):
            return False
        starts = facts["due"] - facts["due"] % self._window_ms
        for start in np.unique(starts).tolist():
            part = facts[starts == start]
            settles = max(start + self._window_ms, int(part["created"].max()))
            window = self._folder / str(start)
            window.mkdir(exist_ok=True)
            _write(window / f"{source}-{batch}.{settles}.facts", pack(part))
            _sync(window)
        _sync(self._folder)
        _write(added, str(batch).encode())
        _sync(self._folder)
        return True

    def ready(self, now_ms: int, grace_ms: int) -> list[int]:
        """Starts of the windows in which all is settled since ``grace_ms``, ascending."""
        return [
            start
            for start in self._windows()
            if all(_settles(file) + grace_ms <= now_ms for file in self._files(start))
        ]

    def facts(self, start: int) -> Facts:
        parts = [unpack(file.read_bytes()) for file in self._files(start)]
        return np.concatenate(parts) if parts else np.empty(0, FACT)

    def close(self, start: int) -> None:
        """Forget a window: it was judged, and what was found is safe elsewhere."""
        # At one stroke: of a window that is half removed, the half that is left would seem lost.
        closed = self._folder / f"{start}.closed"
        (self._folder / str(start)).rename(closed)
        _sync(self._folder)
        shutil.rmtree(closed)

    def _windows(self) -> list[int]:
        found = (entry.name for entry in self._folder.iterdir() if entry.is_dir())
        return sorted(int(name) for name in found)

    def _files(self, start: int) -> list[Path]:
        return sorted((self._folder / str(start)).glob("*.facts"))


def _settles(file: Path) -> int:
    return int(file.name.split(".")[-2])


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing, whenever the process ends."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    partial.rename(path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
