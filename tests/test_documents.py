"""What a page, a docstring or a comment refers to is in the repository: page, section, code, test.

The commands and options that docs/operations.md describes: tests/cli/test_documented.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.rooms import modules

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
SCRIPTS = [ROOT / name for name in ("Makefile", "setup.cfg", "pyproject.toml", ".ci/run")]
SCRIPTS += sorted(ROOT.glob("tests/**/*.sh"))
DEFECTS = "docs/durability.md"


def text_of(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def sections(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", page, re.MULTILINE)


def anchor(heading: str) -> str:
    """As code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def missing_documents(text: str, _folder: Path) -> Iterator[str]:
    """``DESIGN section 4``, ``notes/DESIGN.md``: pages that are nowhere below the root."""
    known = ["/" + page.relative_to(ROOT).as_posix() for page in PAGES]
    for name in re.findall(r"[\w./-]+\.md\b", text):
        if not any(one.endswith("/" + name.lstrip("./")) for one in known):
            yield name
    yield from re.findall(r"\b[A-Z]{4,} sections? \d[\d.]*", text)


def missing_sections(text: str, _folder: Path) -> Iterator[str]:
    """``docs/design.md, "The rooms"``, also where a line of a comment ends in between."""
    for page, section in re.findall(r'(docs/\w+\.md),[\s#]+(?:section )?"([^"]+)"', text):
        if section not in sections(text_of(page)):
            yield f'{page}, "{section}"'


def missing_links(text: str, folder: Path) -> Iterator[str]:
    """``[text](page#anchor)``, ``[text](#anchor)``, from a page in ``folder``."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        path, _, wanted = link.partition("#")
        target = folder / path
        if not target.exists():
            yield link
        elif wanted:
            headings = sections(target.read_text("utf-8") if path else text)
            if wanted not in map(anchor, headings):
                yield link


def missing_code(text: str, _folder: Path) -> Iterator[str]:
    """``wheel/mark.py``, ``tests/a/test_b.py::test_c``."""
    for path, name in re.findall(r"\b(\w+/[\w/]+\.py)(?:::(\w+))?", text):
        if not (ROOT / path).is_file():
            yield path
        elif name and name not in functions(path):
            yield f"{path}::{name}"


def functions(path: str) -> set[str]:
    tree = ast.parse(text_of(path))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


Check = Callable[[str, Path], Iterator[str]]
EVERYWHERE: list[Check] = [missing_documents, missing_sections]


def refer(path: Path, *checks: Check) -> list[str]:
    text = path.read_text("utf-8")
    return [
        f"{path.relative_to(ROOT)}: {found}"
        for check in checks
        for found in check(text, path.parent)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_refers_to_what_is_there(page: Path) -> None:
    assert refer(page, *EVERYWHERE, missing_links, missing_code) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_of_code_ends_before_the_next_section(page: Path) -> None:
    fences = re.findall(r"^(?:```(\w*)|(#{2,4} .*))$", page.read_text("utf-8"), re.MULTILINE)
    inside = False
    for _, heading in fences:
        inside = inside if heading else not inside
        # A comment of a shell or a TOML file has one "#".
        assert not (heading and inside), heading
    assert not inside


def test_code_and_scripts_refer_to_pages_that_are_there() -> None:
    files = [ROOT / name for name in modules(ROOT)] + SCRIPTS
    mine = Path(__file__).resolve()
    found = [line for path in files if path != mine for line in refer(path, *EVERYWHERE)]
    assert len(files) > 200
    assert found == []


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (missing_documents, "Source: DESIGN section 7 (peers agree)."),
        (missing_documents, "Source: DESIGN sections 2 to 6."),
        (missing_documents, "see ../shared/DESIGN.md"),
        (missing_documents, "told in docs/theory.md"),
        (missing_sections, 'docs/design.md, "The kitchen"'),
        (missing_sections, '# docs/design.md,\n# section "The kitchen"'),
        (missing_links, "[there](theory.md)"),
        (missing_links, "[there](design.md#the-kitchen)"),
        (missing_links, "# Here\n[below](#there)"),
        (missing_code, "`wheel/kitchen.py`"),
        (missing_code, "`tests/test_documents.py::test_the_kitchen`"),
    ],
)
def test_what_is_missing_is_found(check: Check, text: str) -> None:
    assert len(list(check(text, ROOT / "docs"))) == 1


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (missing_documents, "docs/design.md, README.md, design.md, benchmarks/RESULTS.md"),
        (missing_sections, 'docs/design.md, "The rooms"'),
        (missing_links, "# Here it is\n[a](#here-it-is) [b](design.md#the-mark) [c](../wheel)"),
        (missing_code, "`tests/test_documents.py::test_what_is_there_is_not_missing`"),
    ],
)
def test_what_is_there_is_not_missing(check: Check, text: str) -> None:
    assert list(check(text, ROOT / "docs")) == []


def test_every_invariant_names_its_tests() -> None:
    rows = re.findall(r"^\| (I\d+) \|.*\|([^|]*)\|$", text_of("docs/design.md"), re.MULTILINE)
    assert [number for number, _ in rows] == [f"I{n}" for n in range(1, 11)]
    assert all("`tests/" in shown for _, shown in rows)


def test_every_known_defect_has_a_test_or_says_why_not() -> None:
    section = text_of(DEFECTS).split("## Known defects elsewhere", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 32
    for row in rows:
        defect, seen, shown = (cell.strip() for cell in row.strip("|").split("|"))
        assert defect
        assert seen
        assert "`tests/" in shown or "`benchmarks." in shown, row
