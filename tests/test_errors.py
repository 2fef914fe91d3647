"""Every error class of the package, wherever it is raised."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

import slotwheel
from slotwheel.gateway.errors import HttpError
from slotwheel.wheel.errors import (
    NOTHING_STORED,
    Damaged,
    InvalidConfiguration,
    InvalidMessage,
    NotMaster,
    SlotwheelError,
    UnsupportedVersion,
    from_wire,
)

MORE: dict[type[Exception], dict[str, Any]] = {
    Damaged: {"position": 7, "expected": b"\xff", "found": 3, "remedy": "Look"},
    NotMaster: {"master": "10.0.0.1:7200"},
}
"""What the constructors of these take besides a message."""
GENERAL = {"got": 5, "limit": 4, "remedy": "Give less", "row": 3}


def error_classes() -> list[type[Exception]]:
    for module in pkgutil.walk_packages(slotwheel.__path__, "slotwheel."):
        importlib.import_module(module.name)
    found = {one for one in below(Exception) if one.__module__.startswith("slotwheel.")}
    found.discard(HttpError)  # an answer, and made where it is sent
    return sorted(found, key=lambda one: one.__name__)


def below(parent: type[Exception]) -> Iterator[type[Exception]]:
    for one in parent.__subclasses__():
        yield one
        yield from below(one)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda one: one.__name__)
def test_an_error_survives_the_way_out_of_a_worker(kind: type[Exception]) -> None:
    """Processes that read for others hand their errors on by pickle."""
    general = GENERAL if issubclass(kind, SlotwheelError) and kind is not Damaged else {}
    error = kind("what was wrong", **general, **MORE.get(kind, {}))
    error.add_note("seen on the way")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_what_cannot_be_pickled_goes_as_text() -> None:
    error = Damaged("file", 7, expected="a name", found=memoryview(b"\xff"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidMessage("too large", got="11 bytes", limit="10 bytes"), "limit 10 bytes"),
        (InvalidMessage("beyond", limit="7200 s ahead"), "limit 7200 s ahead"),
        (InvalidConfiguration("too many", got=8, limit=7), "limit 7"),
        (InvalidMessage("bad name", limit="1 to 249 letters"), "expected 1 to 249 letters"),
        (InvalidConfiguration("no address", limit="host:port"), "expected host:port"),
        (UnsupportedVersion("unknown version", got=2, limit=1), "expected 1"),
        (NotMaster("a standby", master="10.0.0.1:7200"), "master 10.0.0.1:7200"),
    ],
)
def test_a_limit_is_called_one_only_where_it_is_one(error: SlotwheelError, text: str) -> None:
    assert f"; {text}" in str(error)
    assert str(from_wire(error.to_wire())) == str(error)


SURE, OPEN = "Nothing was stored", "not known"


@pytest.mark.parametrize("kind", error_classes(), ids=lambda one: one.__name__)
@pytest.mark.parametrize("remedy", ["", "Send it again", f"{NOTHING_STORED} Send it again"])
@pytest.mark.parametrize("message", ["no room", "the node ends; whether it is stored is not known"])
def test_in_doubt_an_error_makes_one_statement(
    kind: type[Exception], message: str, remedy: str
) -> None:
    """Whatever it said before, how often it is put in doubt, and over the wire."""
    if not issubclass(kind, SlotwheelError) or kind is Damaged:
        return
    error: SlotwheelError = kind(message, remedy=remedy, **MORE.get(kind, {}))
    doubt = error.in_doubt()
    assert str(error).count(SURE) == remedy.count(SURE)
    for one in (doubt, doubt.in_doubt(), from_wire(doubt.to_wire()), copy(doubt)):
        assert one.uncertain
        assert (str(one).count(OPEN), str(one).count(SURE)) == (1, 0)
        assert one.remedy == remedy.removeprefix(NOTHING_STORED).strip()
    assert not from_wire(error.to_wire()).uncertain
