"""What must be clear from the head of a request: where the request ends.

The accident: a caller hides a request in the body of another one. If a proxy and the gateway
disagree about where that body ends, the proxy passes it on as a body, and the gateway answers the
hidden request, which the proxy has never checked. The parser refuses most of what can be read in
two ways (two lengths, a length beside chunks, folded lines, ends of lines without CR); the rest is
refused here.
"""

from __future__ import annotations

from collections.abc import Iterable

from .errors import HttpError

_PREFACE = b"PRI"
"""How a connection of HTTP/2 begins."""


def unusable_head(
    method: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> HttpError | None:
    """Why a request cannot be taken, whatever it asks for; None: it can. Names are lower case."""
    if version not in ("1.0", "1.1"):
        return HttpError(
            400, "an HTTP version that is not spoken here", got=version, limit="1.1 or 1.0"
        )
    if method == b"CONNECT":
        return HttpError(400, "CONNECT: the gateway is no proxy")
    for name, value in headers:
        if name != b"transfer-encoding":
            continue
        if version == "1.0":
            return HttpError(
                400,
                "Transfer-Encoding in a request of HTTP/1.0",
                remedy="Give Content-Length, or send it as HTTP/1.1",
            )
        codings = [one.strip(b" \t").lower() for one in value.split(b",")]
        if codings != [b"chunked"]:
            return HttpError(
                501 if codings[-1] == b"chunked" else 400,
                "a transfer coding that is not taken here",
                place="header Transfer-Encoding",
                got=value.decode("latin-1"),
                limit="chunked",
            )
    return None


def unreadable(method: bytes, error: Exception) -> HttpError:
    """The answer to what the parser could not read."""
    if method == _PREFACE:
        return HttpError(
            400,
            "a request of HTTP/2, which is not spoken here",
            limit="HTTP/1.1",
            remedy="Tell the client to speak HTTP/1.1",
        )
    return HttpError(400, "this is no request of HTTP/1.1", got=error)
