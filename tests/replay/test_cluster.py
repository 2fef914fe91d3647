"""The built package, submitted to a standalone Spark cluster.

The executors have an interpreter that finds no slotwheel but the one that is submitted, and besides
Spark only the libraries that tasks need; the driver finds those of this environment, and not its
editable install.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import replayrun
from support.sparkcluster import SparkCluster, interpreter

PLATLIB = Path(sysconfig.get_path("platlib"))
LIBRARIES = ("numpy", "pyarrow", "crc32c", "cronsim")
WITHIN_S = 480


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.soak)])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    libraries = directory / "libraries"
    libraries.mkdir()
    for name in LIBRARIES:
        for part in (PLATLIB / name, *PLATLIB.glob(f"{name}.libs"), *PLATLIB.glob(f"{name}-*")):
            (libraries / part.name).symlink_to(part)
    python = interpreter(directory / "executor-python", libraries)
    with SparkCluster(directory / "spark", request.param, python) as started:
        yield started


def test_the_built_package_is_submitted(
    cluster: SparkCluster, wheel_file: Path, tmp_path: Path
) -> None:
    package = tmp_path / "slotwheel.zip"
    shutil.copy(wheel_file, package)
    with zipfile.ZipFile(package) as archive:
        job = Path(archive.extract("slotwheel/replay/job.py", tmp_path))
    run = replayrun.made()
    lost = replayrun.remove_delivered(run)
    events = tmp_path / "events"
    events.mkdir()
    done = cluster.submit(
        job,
        *run.write(tmp_path / "peers"),
        *("--json", "--report", tmp_path / "report"),
        driver=interpreter(tmp_path / "driver-python", PLATLIB),
        timeout_s=WITHIN_S,
        py_files=str(package),
        spark_eventLog_enabled="true",
        spark_eventLog_compress="false",
        spark_eventLog_dir=events.as_uri(),
    )
    assert done.returncode == 1, done.stdout + done.stderr + cluster.logs()
    # spark-submit sends both of the driver's streams to its standard output.
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["reasons"] == ["lost: 1"]
    assert [one["id"] for one in verdict["problems"]] == [run.id_of(lost)]
    assert verdict["counts"]["delivered"] == 3587
    assert json.loads((tmp_path / "report" / "report.json").read_text())["counts"]["lost"] == 1
    assert (tmp_path / "report" / "report.html").exists()

    tasks = tasks_by_executor(events)
    assert len(tasks) == cluster.workers, tasks
    # Each worker keeps what its executor was given below its own directory.
    for worker in cluster.directory.glob("work-*"):
        (executor,) = worker.glob("app-*/*")
        assert executor.name in tasks
        assert (executor / package.name).exists()


def tasks_by_executor(events: Path) -> Counter[str]:
    """Tasks that succeeded, by Spark's event log."""
    found: Counter[str] = Counter()
    for path in events.rglob("events_*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                assert event["Task End Reason"]["Reason"] == "Success", line
                found[event["Task Info"]["Executor ID"]] += 1
    return found
