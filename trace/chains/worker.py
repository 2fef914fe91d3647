"""``TraceLookup`` in a process of its own, of low priority."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...aside.asked import AskedAside
from .lookup import TraceLookup

P = ParamSpec("P")
T = TypeVar("T")


class LookupProcess(AskedAside):
    """Asks a lookup of these directories, which are as of ``TraceLookup``."""

    def __init__(self, store: Path | None, data: Path | None, dead_letter_topic: str) -> None:
        super().__init__("the process that looks up traces")
        self.store = store
        self._lookup = store, data, dead_letter_topic

    def call(
        self,
        method: Callable[Concatenate[TraceLookup, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Future[T]:
        """``method``: of ``TraceLookup``."""
        return self.ask(_call, self._lookup, method.__name__, args, named)


@cache
def _lookup(store: Path | None, data: Path | None, dead_letter_topic: str) -> TraceLookup:
    return TraceLookup(store, data, dead_letter_topic)


def _call(
    lookup: tuple[Path | None, Path | None, str],
    method: str,
    args: tuple[object, ...],
    named: dict[str, object],
) -> Any:
    return getattr(_lookup(*lookup), method)(*args, **named)
