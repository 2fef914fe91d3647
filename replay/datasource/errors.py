"""How an error of ours reaches somebody at Spark's other end."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ...wheel.errors import SlotwheelError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
R = TypeVar("R")


def in_one_line(method: Callable[..., R]) -> Callable[..., R]:
    """Spark shows where in a worker an error was raised, and the error last: of a wrong path or
    option that is noise. The worker ends with the error, and with it what is set here."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> R:
        try:
            return method(*arguments, **named)
        except SlotwheelError:
            os.environ[_HIDE_TRACEBACK] = "1"
            raise

    return call
