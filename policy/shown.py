"""Shows foreign data in an error: short, however large and deep it is."""

from __future__ import annotations

from reprlib import Repr

_REPR = Repr()
_REPR.maxother = _REPR.maxstring = 80
_REPR.maxlevel = 4
CHARACTERS_MAX = 200


def shown(data: object) -> str:
    """``data`` as Python would write it, cut off."""
    return _REPR.repr(data)[:CHARACTERS_MAX]
