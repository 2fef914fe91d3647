"""Validators *integrity* and *placement*: problems that one file alone shows.

Theory: a wrong checksum, order inside a block or second of a row is noticed when the file is read,
so the scan has found all of these already; here they become rows of problems. They do not prove
that messages arrived. But they explain a missing row: one that is missing because its file is
damaged is not lost.
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
    """All problems that the scan found, of any validator. ``PROBLEM_SCHEMA``."""
    problem = f.from_json("text", PROBLEM_SCHEMA).alias("problem")
    return scanned.where("what = 'problem'").select(problem).select("problem.*")
