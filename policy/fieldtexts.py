"""The texts that stand below the fields of structs, for help pages and descriptions."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from functools import cache
from typing import Any

import msgspec


def texts_of(kind: type[Any]) -> dict[str, str]:
    """The texts that stand below the fields of a struct and those it inherits, by the fields'
    names in the struct. Source: the struct's module."""
    texts: dict[str, str] = {}
    for struct in reversed(kind.__mro__):
        if issubclass(struct, msgspec.Struct) and struct is not msgspec.Struct:
            texts |= _texts_in(struct.__module__).get(struct.__name__, {})
    return texts


@cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """By class and field. A module is parsed once, as commands do so at each start."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # who packs a program without its sources has help pages without texts
        return {}
    return {node.name: _own_texts(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _own_texts(body: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts[field.target.id] = plain_text(text.value)
    return texts


def plain_text(text: str) -> str:
    """A docstring's text as one line of Markdown."""
    return re.sub(r"\s+", " ", textwrap.dedent(text).replace("``", "`")).strip()
