"""The files by which a node knows its callers, and their exchange.

A thread looks every ten seconds: at the security file, at tokens that have ended meanwhile, and at
the access log, which may have been renamed. So a role that was taken away is gone within fifteen
seconds, without a restart, and the thread that serves connections reads no file.

A security file that cannot be used replaces nothing and is an alarm: an error in it would otherwise
lock everybody out, or let everybody in. ``intake/callers.py`` asks what a caller may do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from ..policy.deadletters import topics_of_letters
from ..security.accesslog import AccessLog
from ..security.principals import Authenticator
from ..security.securityfile import SecurityFile
from ..security.watched import WatchedFiles
from ..wheel.errors import SlotwheelError
from .config import NodeConfig
from .events import NodeEvents
from .intake.callers import Callers


class NodeRights:
    """``callers``: who connects. ``authenticator``: by the security file of now. Errors on
    construction: ``InvalidConfiguration`` that names the file and the place in it, ``OSError`` for
    the access log."""

    def __init__(self, config: NodeConfig, events: NodeEvents) -> None:
        self._events = events
        self._watched: WatchedFiles[SecurityFile] | None = None
        security: SecurityFile | None = None
        if config.security is not None:
            load = partial(SecurityFile.of_watched, config.security)
            self._watched = WatchedFiles([config.security], load, self._alarm)
            security = self._watched.value
        self.authenticator = Authenticator(
            security, own=topics_of_letters(config.dead_letter_topic)
        )
        self._log = AccessLog(config.access_log, self._log_failed)
        self.callers = Callers(self.authenticator, self._log, events)

    @property
    def is_on(self) -> bool:
        """True if there is a file to look at."""
        return self._watched is not None or self._log.is_on

    def turn(self, renew: Callable[[], None]) -> float:
        """Look at the files. ``renew`` gives every client the rights of now. Returns the pause
        before the next look, s."""
        if self._watched is not None:
            if self._watched.look():
                self.authenticator.change(self._watched.value)
                self._events.event("security-file-exchanged", file=str(self._watched.paths[0]))
            renew()  # also without a new file: a token may have ended
        self._log.look(self.authenticator.meters())
        return WatchedFiles.every_s

    def problems(self) -> list[str]:
        """The reason for which the security file as it is now is not in use; empty: it is."""
        error = None if self._watched is None else self._watched.error
        return [] if error is None else [str(error)]

    def close(self) -> None:
        self._log.look(self.authenticator.meters())
        self._log.close()

    def _alarm(self, error: SlotwheelError) -> None:
        self._events.alarm("security-file", reason=str(error))

    def _log_failed(self, error: OSError) -> None:
        self._events.alarm("access-log", reason=os.strerror(error.errno or 0))
