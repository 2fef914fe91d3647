"""The built wheel: it holds every package, installs into a fresh environment, and imports there.

It is imported away from the checkout, which is not to answer for it.
"""

from __future__ import annotations

import configparser
import site
import sys
import tomllib
import zipfile
from pathlib import Path

import slotwheel
from support.broker import ROOT
from support.builtwheel import run

NOT_PACKAGES = {"tests", "benchmarks", "docs", "build", "dist"}


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    return config


def listed_packages() -> list[str]:
    return setup_cfg()["options"]["packages"].split()


def test_the_listed_packages_are_the_folders() -> None:
    folders = {
        "slotwheel." + ".".join(file.parent.relative_to(ROOT).parts)
        for folder in ROOT.iterdir()
        if folder.is_dir() and folder.name[0] != "." and folder.name not in NOT_PACKAGES
        for file in folder.rglob("__init__.py")
    }
    assert set(listed_packages()) == folders | {"slotwheel"}


def test_mypy_checks_every_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        mypy = tomllib.load(file)["tool"]["mypy"]
    # A package is checked with all that is in it, and must not be named twice.
    rooms = {name for name in listed_packages() if name.count(".") <= 1}
    assert set(mypy["packages"]) | set(mypy["modules"]) == rooms


def test_the_version_is_one() -> None:
    assert slotwheel.__version__ == setup_cfg()["metadata"]["version"]


def test_tests_and_benchmarks_are_not_packages() -> None:
    # With an __init__.py there, pytest would import them as parts of `slotwheel`'s checkout.
    assert not [*(ROOT / "tests").rglob("__init__.py"), *ROOT.glob("benchmarks/**/__init__.py")]


def test_there_is_no_setup_py() -> None:
    # With the folder wheel/ beside it, every `pip install` of this project would fail.
    assert not (ROOT / "setup.py").exists()


def test_the_wheel_holds_every_module_and_nothing_else(wheel_file: Path) -> None:
    with zipfile.ZipFile(wheel_file) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        version = setup_cfg()["metadata"]["version"]
        metadata = archive.read(f"slotwheel-{version}.dist-info/METADATA").decode()
    folders = [name.removeprefix("slotwheel").replace(".", "/") for name in listed_packages()]
    expected = {
        f"slotwheel{folder}/{file.name}"
        for folder in folders
        for file in (ROOT / folder.lstrip("/")).glob("*.py")
    }
    console = ROOT / "gateway" / "console"
    expected |= {
        f"slotwheel/{file.relative_to(ROOT)}"
        for folder in ("templates", "static")
        for file in (console / folder).rglob("*.*")
    }
    assert names == expected | {"slotwheel/py.typed"}
    assert "License-Expression: Apache-2.0" in metadata


def test_the_wheel_installs_and_imports_without_the_checkout(
    wheel_file: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    target = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", wheel_file, cwd=tmp_path)
    # What slotwheel needs is borrowed from this environment; `addsitedir` is not used, so that
    # its editable install of slotwheel is not.
    (target / "borrowed.pth").write_text("\n".join(site.getsitepackages()))

    code = "import importlib, sys\nfor name in sys.argv[1:]:\n"
    code += "    print(importlib.import_module(name).__file__)"
    files = run(python, "-c", code, *listed_packages(), cwd=tmp_path).split()
    assert len(files) == len(listed_packages())
    assert all(Path(file).is_relative_to(target) for file in files), files
    # Ours lies below slotwheel/: one at the top would overwrite the package `wheel` of others.
    assert not (target / "wheel").exists()

    (entry,) = setup_cfg()["options.entry_points"]["console_scripts"].split("\n")[1:]
    module = entry.partition("=")[2].partition(":")[0].strip()
    if (ROOT / module.removeprefix("slotwheel.").replace(".", "/")).with_suffix(".py").exists():
        assert "Usage: slotwheel" in run(
            tmp_path / "venv" / "bin" / "slotwheel", "--help", cwd=tmp_path
        )
