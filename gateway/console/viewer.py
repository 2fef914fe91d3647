"""Who looks at a page, and which links, forms and buttons it has for them.

Theory: each page and each action is an operation, which needs one right (``security/rights.py``).
The console's own table says which operation each path is, so a template asks for a path and never
for a role. A list of its own would differ from the table one day, and a button would be there that
only leads to a refusal.

Rule: what is hidden here is refused by the server all the same (``gateway/endpoint.py``). To hide
it keeps nobody out; it spares people a page that says no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...security.principals import LOCAL, Identity
from ...security.rights import Operation
from ..authentication import IDENTITY, SESSION, STRANGER
from ..endpoint import WHEELS
from ..front.front import ASKED_WHEEL


class PageEntry(NamedTuple):
    """A page in the navigation. ``name``: by which a page says where it is."""

    name: str
    path: str
    title: str


NAVIGATION = (
    PageEntry("overview", "", "Overview"),
    PageEntry("pending", "/pending", "Pending"),
    PageEntry("message", "/message", "Message"),
    PageEntry("schedules", "/schedules", "Schedules"),
    PageEntry("dead", "/dead", "Dead letters"),
    PageEntry("audit", "/audit", "Audit"),
    PageEntry("jobs", "/jobs", "Jobs"),
    PageEntry("node", "/node", "Node"),
)
LOGIN_PATH = "/login"
_OPERATIONS: dict[str, Operation] = {}
"""Of each path of the console's table, without ``BASE``."""


def note_operation(path: str, operation: Operation) -> None:
    """Note what a path of the table is. A page and the action that it leads to have one path, and
    so one operation."""
    assert _OPERATIONS.setdefault(path, operation) is operation, path


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page. ``in_session``: they have logged in, and may log out. ``wheels``: of the
    fleet that they look at, of which the page shows ``wheel``, or, if that is empty, all."""

    identity: Identity
    in_session: bool = False
    wheels: tuple[str, ...] = ()
    wheel: str = ""

    @property
    def is_known(self) -> bool:
        return self.identity is not STRANGER

    @property
    def name(self) -> str:
        """The principal; empty for a stranger, and where nobody has a name."""
        principal = self.identity.principal
        return "" if principal == LOCAL else principal

    def may(self, path: str, topic: str = "") -> bool:
        """Returns True when they may use the page or the action at this path. Errors: ``KeyError``
        for a path that the console has not."""
        return self.is_known and self.identity.rights.may(_OPERATIONS[path], topic)

    @property
    def pages(self) -> list[PageEntry]:
        """The entries of the navigation that they may use."""
        return [entry for entry in NAVIGATION if self.may(entry.path)]

    @property
    def home(self) -> str:
        """The path of the first page that they may look at. For a stranger it is the console's own,
        which leads to the login."""
        return next((entry.path for entry in self.pages), "")


def viewer_of(scope: Any) -> Viewer:
    """Who sent a request; a stranger, if it was refused before that was known."""
    wheels = tuple(scope.get(WHEELS, ()))
    return Viewer(scope.get(IDENTITY, STRANGER), SESSION in scope, wheels, ASKED_WHEEL.get())
