"""Sessions of browsers: who has logged in to the console, for how long, and by which cookie.

Theory: a browser cannot send a token with each page, and a page may not keep one, as what is
planted in it could read it. So a login makes a *session* here, and the browser gets nothing but its
random id. The session keeps what was proved, and not what it allows: its rights are looked up anew
for each request, so whoever loses them in the security file is out with the next look at it.

    token, user of an issuer --begin--> BrowserSession <--recall-- cookie

Rules
- The id is new at each login. Otherwise who had planted one in a browser before the login would be
  logged in with it.
- A session ends when its browser was idle for ``IDLE_S``, and after ``LONGEST_S`` in any case; a
  user of an issuer is logged in for as long as the ID token is good. What a page fetches by itself
  is no use of it: a page that is open would otherwise keep its session for ever.
- There are ``SESSIONS_MAX``, and ``OF_ONE_MAX`` of one principal; one more ends the one that was
  idle for longest. Otherwise one caller who logs in again and again would fill the memory, or put
  out everybody else.
- Sessions are in this process alone, so a restart ends them.
- A cookie is sent along by TLS alone (``Secure``, which a browser takes from loopback without it),
  read by no script, set by no other host (``__Host-``), and sent from no other site
  (``SameSite=Strict``). Only that of a login under way comes along when an issuer, which is another
  site, sends the browser back (``Lax``); it lets nobody in.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..security.oidc import OidcIdentity
from ..security.principals import IdentityProof
from ..security.securityfile import OidcIssuer
from ..security.tokens import digest_of

COOKIE = "__Host-slotwheel"
LOGIN_COOKIE = "__Host-slotwheel-login"
IDLE_S = 30 * 60.0
LONGEST_S = 12 * 3600.0
SESSIONS_MAX = 1000
OF_ONE_MAX = 20
_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class UserProof:
    """What a login by an issuer has proved. ``table``: the issuer as the security file had it."""

    user: OidcIdentity
    table: OidcIssuer


SessionProof = IdentityProof | UserProof


@dataclass(slots=True)
class BrowserSession:
    """A browser that has logged in. ``began_s``, ``used_s``: by the monotonic clock, s."""

    principal: str
    proof: SessionProof
    began_s: float
    used_s: float


class BrowserSessions:
    """All sessions, by the SHA-256 of their ids, so that who reads the memory gets into none.
    Belongs to one event loop. ``monotonic``: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()
        """Which was idle for longest comes first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, principal: str, proof: SessionProof) -> str:
        """Begin a session; its id, 256 random bits as 43 characters."""
        own = [key for key, kept in self._sessions.items() if kept.principal == principal]
        if len(own) >= OF_ONE_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session_id = secrets.token_urlsafe(_ID_BYTES)
        now_s = self.monotonic()
        self._sessions[digest_of(session_id)] = BrowserSession(principal, proof, now_s, now_s)
        return session_id

    def recall(self, session_id: str, *, is_use: bool) -> BrowserSession | None:
        """The session with this id; None: there is none, or it has ended. ``is_use``: a person
        asks, and no page by itself."""
        key, now_s = digest_of(session_id), self.monotonic()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now_s - session.used_s >= IDLE_S or now_s - session.began_s >= LONGEST_S:
            del self._sessions[key]
            return None
        if is_use:
            session.used_s = now_s
            self._sessions.move_to_end(key)
        return session

    def end(self, session_id: str) -> BrowserSession | None:
        """End a session; None: there was none with this id."""
        return self._sessions.pop(digest_of(session_id), None)


def host_cookie(
    name: str, value: str, *, same_site: str = "Strict", age_s: int | None = None
) -> tuple[bytes, bytes]:
    """The header that gives a browser a cookie of this module. ``age_s``: how long it keeps it, s;
    0: not any more; None: until it is closed."""
    age = "" if age_s is None else f"; Max-Age={age_s}"
    text = f"{name}={value}; Path=/; Secure; HttpOnly; SameSite={same_site}{age}"
    return b"set-cookie", text.encode("ascii")
