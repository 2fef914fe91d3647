"""What a node says of itself before anything is sent to it."""

from __future__ import annotations

from dataclasses import dataclass

from ..wheel.errors import NotMaster
from .columns import Limits


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's answer to a hello. Without peers a node serves, its epoch is 0, and ``master`` is
    empty; else ``master`` is the master's address, empty if unknown."""

    group: str
    limits: Limits
    serving: bool
    epoch: int
    master: str
    append_port: int = 0
    """Where its append edge listens; 0: it has none."""
    append_token: str = ""
    """What tells this edge from others, to which that port may lead from here."""

    def check_master(self) -> None:
        """Errors: ``NotMaster``."""
        if not self.serving:
            raise NotMaster(master=self.master)
