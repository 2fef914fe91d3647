"""Names of a package that are loaded when they are first used.

A package's ``__init__`` is run for each of its modules: ``slotwheel --version`` and a node run the
one of the whole package. If it imported the client, both would pay for it, which is 20 MB and most
of the time that they take to start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def late(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """A package's ``__getattr__``. ``modules``: the module of each name, below ``package``."""

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{modules[name]}", package), name)
        setattr(sys.modules[package], name, value)  # from here on it is found without this call
        return value

    return load
