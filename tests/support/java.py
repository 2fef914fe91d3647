"""How the tests' Java processes are run."""

from __future__ import annotations

from pathlib import Path

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a process that lives for seconds or minutes: Java's second compiler and its collector
of many threads take as much processor time as all else, and pay it back only later."""
INTERPRETED = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
"""Options of a Spark whose tables have some thousand rows. By default it writes and compiles Java
for each query: a quarter of what such a query costs."""
_CACHE = Path(__file__).resolve().parents[2] / ".cache"


def options(program: str) -> tuple[str, ...]:
    """Options of a short-lived ``program``, "kafka" or "spark": with its classes as an earlier
    process had loaded and checked them, if ``make`` has kept those (``javaclasses.py``)."""
    kept = classes_of(program)
    if not kept.exists():
        return SHORT_LIVED
    # At the address that they were kept for, or Java changes all that refers to others at each
    # start: a tenth of a broker's. It goes without classes of another version; the notice would be
    # in standard output.
    at = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
    return (*SHORT_LIVED, f"-XX:SharedArchiveFile={kept}", *at, "-Xlog:disable")


def classes_of(program: str) -> Path:
    """Java's archive of the classes of ``program``."""
    return _CACHE / f"java-classes-{program}.jsa"
