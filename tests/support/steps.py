"""Power cuts: the counter of steps that every double of a disk shares.

A step is one thing that a power cut can come before: a write, a sync, a rename, a commit. Count the
steps of a run, then run it again for each number, stopping there.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class PowerCut(BaseException):
    """Not an Exception, so that no handler in the code under test swallows it."""


@dataclass
class Steps:
    """Counts steps, and cuts the power at number ``stop_at`` (from 1). Doubles may share one."""

    stop_at: int | None = None
    count: int = 0
    names: list[str] = field(default_factory=list)
    is_cut: bool = False

    def hit(self, name: str) -> None:
        """One step is about to happen. Raises ``PowerCut`` if it never will."""
        self.check()
        self.count += 1
        self.names.append(name)
        if self.count == self.stop_at:
            self.is_cut = True
            raise PowerCut(f"step {self.count}: {name}")

    def check(self) -> None:
        """For calls that change nothing: they fail only once the power is gone."""
        if self.is_cut:
            raise PowerCut(f"after step {self.count}: {self.names[-1]}")
