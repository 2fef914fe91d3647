"""One name for one idea: docs/design.md, "Words", and the names of classes are held together."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from support.rooms import modules

ROOT = Path(__file__).resolve().parents[1]
ENGINE = "wheel/"
ERRORS = "wheel/errors.py"
OBVIOUS = {"backoff", "directory", "file", "handle", "status", "wheel"}
"""Words that a programmer knows without a glossary."""


@pytest.fixture(scope="module")
def defined() -> dict[str, dict[str, bool]]:
    """Public classes and aliases of types, by module."""
    return {
        str(path): names_of((ROOT / path).read_text("utf-8"))
        for path in modules(ROOT)
        if path.parts[0] not in {"tests", "benchmarks"}
    }


@pytest.fixture(scope="module")
def glossary() -> list[tuple[str, str]]:
    """Word, and where it lives."""
    page = (ROOT / "docs/design.md").read_text("utf-8")
    table = page.partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[2].strip()) for row in rows[2:]]


def names_of(source: str) -> dict[str, bool]:
    """Public names, and whether it is one of a class."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = True
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and re.fullmatch("[A-Z]+[a-z]\\w+", target.id):
                found[target.id] = False
    return {name: of_class for name, of_class in found.items() if not name.startswith("_")}


def unexplained(name: str, words: set[str]) -> bool:
    """No part of the name begins with a word of the glossary, but for the ending of a plural."""
    parts = [part.lower() for part in re.findall("[A-Z][a-z]+", name)]
    return not any(part.startswith(word.removesuffix("y")) for part in parts for word in words)


def test_a_public_name_stands_for_one_thing(defined: dict[str, dict[str, bool]]) -> None:
    count = Counter(name for names in defined.values() for name in names)
    twice = {name for name, often in count.items() if often > 1}
    assert not [(path, name) for path, names in defined.items() for name in twice & names.keys()]


def test_what_the_glossary_names_is_there(
    defined: dict[str, dict[str, bool]], glossary: list[tuple[str, str]]
) -> None:
    assert len(glossary) > 30
    missing = []
    for _, where in glossary:
        for names, path in re.findall(r"((?:`\w+`(?:, )?)+) in `([\w/.]+)`", where):
            source = (ROOT / path).read_text("utf-8")
            known = {*defined[path], *re.findall(r"^([A-Z]+) =", source, re.MULTILINE)}
            missing += [name for name in re.findall(r"\w+", names) if name not in known]
    assert not missing


def test_the_glossary_explains_the_classes_of_the_engine(
    defined: dict[str, dict[str, bool]], glossary: list[tuple[str, str]]
) -> None:
    words = OBVIOUS | {part for word, _ in glossary for part in re.findall(r"\w+", word)}
    named = {name for _, where in glossary for name in re.findall(r"\w+", where)}
    assert not [
        (path, name)
        for path, names in defined.items()
        if path.startswith(ENGINE) and path != ERRORS
        for name, of_class in names.items()
        if of_class and name not in named and unexplained(name, words)
    ]


def test_a_name_is_explained_by_a_word_in_it() -> None:
    assert not unexplained("SnapshotSink", {"snapshot"})
    assert not unexplained("Scrubber", {"scrub"})
    assert unexplained("Master", {"mark"})
