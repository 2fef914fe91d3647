"""All endpoints below ``/v1``."""

from __future__ import annotations

from typing import Any

from ...security.rights import Operation
from ..endpoint import AnyEndpoint, Endpoint, NoQuery
from ..idempotency import KEY_PARAMETER
from ..requests import ARROW, NDJSON
from . import (
    audit,
    cancellations,
    cancelling,
    dead,
    group,
    joblist,
    names,
    schedules,
    searching,
    tracing,
)
from .types import MessageBody, StoredMessages

_SENT: Any = MessageBody | list[MessageBody]
_SEND: AnyEndpoint = Endpoint(
    Operation.APPEND,
    "POST",
    "/v1/messages",
    handler=None,
    query=NoQuery,
    body=_SENT,
    answers={200: StoredMessages, 201: StoredMessages},
    errors=(409,),
    text="Store one message, or many. An array, lines of JSON, or an Arrow stream is stored whole"
    " or not at all, and answered 200; one message is answered 201, with the same"
    " fields. An answer comes when what was sent is durable, with peers on a majority of them.",
    headers=(KEY_PARAMETER,),
    body_media={
        NDJSON: "A message as JSON in each line.",
        ARROW: "An Arrow IPC stream, uncompressed: columns `due` (a timestamp with time zone, or"
        " milliseconds since 1970), `topic` and `value`, and if need be `partition`, `key` and"
        " `headers`.",
    },
    name="sendMessage",
)

V1: list[AnyEndpoint] = [
    _SEND,
    *searching.ENDPOINTS,
    *cancelling.ENDPOINTS,
    *cancellations.ENDPOINTS,
    *names.ENDPOINTS,
    *schedules.ENDPOINTS,
    *dead.ENDPOINTS,
    *joblist.ENDPOINTS,
    *tracing.ENDPOINTS,
    *audit.ENDPOINTS,
    *group.ENDPOINTS,
]
