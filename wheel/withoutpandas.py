"""pyarrow without pandas, for processes that are ours alone.

pyarrow imports pandas, where that is installed, when it first converts a list: half a second of
processor time and 40 MB, which only Spark's driver needs. An application that uses slotwheel
as a library may use pandas itself, so nothing is hidden there.

Such a process hides it before its first conversion. So no module converts a list while it is
imported: a process that is spawned imports the module of its function before it calls it.
"""

from __future__ import annotations

import sys


class _WithoutPandas:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=name)


def hide_pandas() -> None:
    sys.meta_path.insert(0, _WithoutPandas())
