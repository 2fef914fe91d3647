"""pyarrow's compute functions, loaded when the first of them is used.

Loading them registers some hundred kernels: 9 MB, and a tenth of the time in which a node starts. A
client that sends single messages, a node that nobody has sent any, and most commands use none.

    from ..wheel import compute as pc
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load() -> None:
    """Load the functions now, while nobody waits: it takes a tenth of a second."""
    import_module("pyarrow.compute")


def __getattr__(name: str) -> Any:
    function = getattr(import_module("pyarrow.compute"), name)
    globals()[name] = function  # from here on it is found without this call
    return function
