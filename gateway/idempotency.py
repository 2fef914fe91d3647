"""``Idempotency-Key``: a header that makes repeats of a request harmless (``wheel/request.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ..wheel.request import RequestKey
from ..wheel.schema import times
from .errors import HttpError
from .requests import header_of

KEY_CHARACTERS_MAX = 255


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
    key: str,
    content: bytes,
    absolute: Iterable[bool],
    named: bool,
    rows: pa.RecordBatch,
    now_ms: int,
) -> RequestKey:
    """The request that a key stands for. ``absolute``: of each message, whether it has a due time,
    and no delay. ``named``: whether one has a level or a route. ``rows``: what they became at
    ``now_ms``.

    What is named may be defined otherwise when a repeat comes. Its rows then have other due times
    or another number, so no id could be told from them: it is another request.

    Errors: ``HttpError``: of a repeat it must be clear what its delays count from."""
    kinds = set(absolute)
    if len(kinds) > 1:
        raise HttpError(
            422,
            "due times and delays in one request with an Idempotency-Key",
            limit="due_ms in each message, or delay_ms or level in each",
            remedy="Give due_ms in all of them",
        )
    base_ms = 0 if kinds == {True} else now_ms
    if named:
        content += (times(rows, "due") - base_ms).astype("<i8").tobytes()
    return RequestKey.of(key, content, base_ms)


def moving_expiry() -> HttpError:
    """The error for a delay with an absolute expiry, under a key: a repeat, whose delay counts from
    later, could be refused although the first time it was stored."""
    return HttpError(
        422,
        "a delay and expires_ms in a request with an Idempotency-Key",
        limit="due_ms with expires_ms or ttl_ms, or a delay with ttl_ms",
        remedy="Give due_ms or ttl_ms instead",
    )
