"""``Idempotency-Key``: a header that makes repeats of a request harmless (``wheel/request.py``).

The node keeps the first answer until ``--requests`` later ones (``wheel/journal/requests.py``).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..security.rights import Rights
from ..wheel.request import RequestKey
from ..wheel.schema import times
from .errors import HttpError
from .requests import header_of

KEY_CHARACTERS_MAX = 255
KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A request with this key is done once, however often it is sent. The same key"
    " with another body is refused.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": KEY_CHARACTERS_MAX,
        "pattern": "^[!-~]+$",
    },
}
"""The header in the description."""


def idempotency_key(scope: Any) -> str | None:
    """The header's value; None if there is none. Errors: ``HttpError``."""
    key = header_of(scope["headers"], b"idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX or not all("!" <= one <= "~" for one in key):
        raise HttpError(
            400,
            "unusable Idempotency-Key",
            place="header Idempotency-Key",
            got=repr(key),
            limit=f"1 to {KEY_CHARACTERS_MAX} visible ASCII characters",
        )
    return key


def request_of(
    key: str, content: bytes, named: pa.RecordBatch | None, rights: Rights
) -> RequestKey:
    """The request that a key of a caller with these ``rights`` stands for. ``named``: the rows of
    its messages, if one of them has a level or a route.

    A level or route may be defined otherwise when the request is repeated. Then its rows have other
    delays, or there are more or fewer, so that the ids of the first time do not fit them: it is
    another request."""
    if named is not None:
        content += times(named, "due").astype("<i8").tobytes()
    return RequestKey.of(key, content).within(rights.scope)
