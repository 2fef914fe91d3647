"""The hello between a client and a node, before a message is sent."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from ..security.secretplace import SecretPlace
from ..security.tokens import read_token
from ..wheel.errors import NotMaster, SlotwheelError
from ..wheel.protocol import JSON_BYTES_MAX, PRODUCER_LIMIT, AppendCommand, decode_json
from ..wire.frames import FrameLimits, Kind
from .columns import Limits
from .message import clock_ms


def new_producer() -> int:
    """A random number for a new producer. It is never 0, which stands for no producer, and never
    the number of a source."""
    return secrets.randbelow(PRODUCER_LIMIT - 1) + 1


OF_APPENDS: FrameLimits = {Kind.ANSWER: (0, 64 + 16 * JSON_BYTES_MAX)}
"""The limits of frames that a node sends to a producer."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's answer to a hello. Without peers a node serves, its epoch is 0, and ``master`` is
    empty; else ``master`` is the master's address, empty if unknown."""

    group: str
    limits: Limits
    serving: bool
    epoch: int
    master: str

    def check_master(self) -> None:
        """Errors: ``NotMaster``."""
        if not self.serving:
            raise NotMaster(master=self.master)


def hello_body(command: AppendCommand, token: SecretPlace | None) -> bytes:
    """The body of a hello with the token that stands in its file now; None: without one. Errors:
    ``InvalidConfiguration``."""
    return (command if token is None else replace(command, token=read_token(token))).encode()


def hello_of(welcome: bytes) -> Hello:
    """Decode a node's welcome. Errors: ``SlotwheelError``."""
    fields = decode_json(welcome)
    alone = "role" not in fields
    try:
        limits = fields["limits"]
        return Hello(
            str(fields["group"]),
            Limits(
                message_bytes=int(limits["message_bytes"]),
                batch_rows=int(limits["batch_rows"]),
                batch_bytes=int(limits["batch_bytes"]),
                horizon_ms=int(limits["horizon_ms"]),
                clock_ahead_ms=int(fields["now_ms"]) - clock_ms(),
                requests=int(limits.get("requests", 0)),
            ),
            alone or bool(fields["serving"]),
            0 if alone else int(fields["epoch"]),
            "" if alone else str(fields["master_address"] or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SlotwheelError("the node's hello is not readable", got=repr(error)) from None
