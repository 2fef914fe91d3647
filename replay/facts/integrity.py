"""Validators *integrity* and *placement*: what a file alone shows.

Theory: a checksum, the order inside a block and the second that a row lies in are seen by whoever
reads the file, so the scan has found all of it already; here it only becomes rows of problems. Both
are of no use for proving that messages arrived - but what they name, nobody need explain otherwise:
a row that is missing because its file is damaged is not lost.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...reading.problems import INTEGRITY, PLACEMENT, PROBLEM_SCHEMA


def integrity(scanned: DataFrame) -> DataFrame:
    """Damage of files: checksums, lengths, the order inside blocks. ``PROBLEM_SCHEMA``."""
    return problems_of(scanned).where(f.col("validator") == INTEGRITY)


def placement(scanned: DataFrame) -> DataFrame:
    """Rows in another second's slot file. ``PROBLEM_SCHEMA``."""
    return problems_of(scanned).where(f.col("validator") == PLACEMENT)


def problems_of(scanned: DataFrame) -> DataFrame:
    """Everything the scan found by itself, of any validator. ``PROBLEM_SCHEMA``."""
    problem = f.from_json("text", PROBLEM_SCHEMA).alias("problem")
    return scanned.where("what = 'problem'").select(problem).select("problem.*")
