"""Shows slotwheel's own errors in Spark's workers as one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ...wheel.errors import SlotwheelError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
R = TypeVar("R")


def in_one_line(method: Callable[..., R]) -> Callable[..., R]:
    """Make a method of a data source raise our errors without a traceback. Spark reports an error
    with the worker's whole stack, which is noise for a wrong path or option. The worker ends with
    the error, and the variable that is set here with it."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> R:
        try:
            return method(*arguments, **named)
        except SlotwheelError:
            os.environ[_HIDE_TRACEBACK] = "1"
            raise

    return call
