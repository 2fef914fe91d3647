"""Who changes an object: the module of its class, by a method. Where two modules set the same
field, one of them breaks a rule that only the other knows: a mark moves although it was set back
meanwhile, and skips messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rooms import modules

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("client", "replication", "wheel", "wire")

REASONS = {
    "an error gets what only whoever catches it and raises it again knows": (
        "error.row fault.row error.uncertain lost.uncertain"
    ),
    "the parts of the core fill one `Ready`, and `Standing` hands it out": (
        "out.admit out.commit out.deposed out.elected out.fetch_from out.receive out.truncate_after"
    ),
    "just read from the state store, before anyone else has it": (
        "stored.cancelled_floor stored.deleted_floor stored.incoming stored.store_id"
    ),
    "set once by the owner of both sides: what to call, what may come over a connection": (
        "wheel.log_changed wheel.on_serving _log.changed channel.limits frames.limits"
        " _frames.limits frames.thrown_away_max"
    ),
    "an object of the standard library": (
        "_closing.atexit _connection.auto_open _storers.own finalize().atexit"
        " sync_file_range.argtypes"
    ),
}
ALLOWED = {name for names in REASONS.values() for name in names.split()}


def declared(tree: ast.Module) -> set[str]:
    """Fields of the classes of a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
            found |= {one.attr for one in assigned(node) if _owner(one) in ("self", "cls")}
    return found


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def _owner(target: ast.Attribute) -> str:
    """The last name before the field."""
    of = target.value
    call = isinstance(of, ast.Call)
    of = of.func if isinstance(of, ast.Call) else of
    name = of.attr if isinstance(of, ast.Attribute) else ast.unparse(of)
    return f"{name}()" if call else name


def strange(source: str) -> set[str]:
    """Fields that a module sets although none of its classes has them."""
    tree = ast.parse(source)
    own = declared(tree)
    return {
        f"{_owner(one)}.{one.attr}"
        for one in assigned(tree)
        if one.attr not in own and _owner(one) not in ("self", "cls")
    }


def test_an_object_is_changed_by_the_module_of_its_class() -> None:
    found: dict[str, set[str]] = {
        str(path): strange((ROOT / path).read_text("utf-8"))
        for path in modules(ROOT)
        if path.parts[0] in ROOMS
    }
    broken = {path: sorted(names - ALLOWED) for path, names in found.items() if names - ALLOWED}
    assert not broken, f"give the class a method: {broken}"
    assert not ALLOWED - set().union(*found.values()), "allowed, and done by nobody"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(line): line.mark = 1", {"line.mark"}),
        ("def f(line): line.behind += 1", {"line.behind"}),
        ("def f(lines): lines.main.mark, x = 1, 2", {"main.mark"}),
        ("def f(line): del line.mark", {"line.mark"}),
        ("for line.mark in (): pass", {"line.mark"}),
        ("class Line:\n    mark: int\ndef f(line): line.mark = 1", set()),
        ("class Line:\n    def f(self): self.mark = 1\ndef f(line): line.mark = 1", set()),
        (
            "class Line:\n    def f(self, other):\n        mark = 1\n        other.mark = mark",
            {"other.mark"},
        ),
        ("def f(line): line.move(1)", set()),
    ],
)
def test_what_is_found(source: str, found: set[str]) -> None:
    assert strange(source) == found
