"""One open exchange to one peer: messages are written to it, and beats read from it report which
arrived.

Theory: a channel of the wire goes both ways. Messages go one way only; the other way carries
*beats*, the count of messages the receiver has read. Beats tell a slow link from a dead one: TCP
accepts megabytes for a machine that lost its power, and reports nothing for minutes. Within a large
message TCP is asked: whether the other machine acknowledges more of it, or is silent.

Rules
- An exchange lives until its first error and is never repaired.
- It ends by ``cut``, from any thread; the reading thread and the one that writes see that, and only
  then ``end`` frees what is left.
- Nothing waits without a limit: the greeting has a timeout, a blocked write ends by ``cut``.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...wheel.errors import InvalidBatch, SlotwheelError
from ...wheel.files import Bytes
from ...wheel.journal.scan import ENTRY_BYTES_MAX
from ...wire.channel import Channel, Secure, TcpProgress
from ...wire.frames import Frame, FrameLimits, Kind
from .encoding import HEADER_BYTES_MAX
from .handshake import BULK, CONTROL, Greeting

if TYPE_CHECKING:
    from ...security.tls import PeerCertificate

# The metadata of a beat that answers messages; one without it asks for an answer.
# +-----------+
# | taken u64 |
# +-----------+
_TAKEN = struct.Struct(
    "<Q"  # messages and beats of this exchange that the receiver has read
)

MESSAGES: dict[str, FrameLimits] = {
    CONTROL: {Kind.MESSAGE: (HEADER_BYTES_MAX, 0), Kind.BEAT: (0, 0)},
    BULK: {Kind.MESSAGE: (HEADER_BYTES_MAX, ENTRY_BYTES_MAX), Kind.BEAT: (0, 0)},
}
"""By lane, the frames that the receiver takes."""
_BEATS: FrameLimits = {Kind.BEAT: (_TAKEN.size, 0)}
"""The frames that the sender takes."""

CONNECT_S = 0.5
WELCOME_S = 5.0
"""A peer's server greets between two writes to its disk, of which one may take seconds: with less
patience, peers of a slow disk would connect again and again and never meet."""
_GOODBYE_S = 1.0


def encode_beat(taken: int) -> bytes:
    return _TAKEN.pack(taken)


def open_channel(
    address: str, greeting: Greeting, limits: FrameLimits, secure: Secure | None = None
) -> Channel:
    """A channel to a peer that has answered the greeting. ``limits``: of its frames. ``secure``:
    the peer proves its node id before it is greeted. Errors: ``SlotwheelError``: it is not
    reachable, or refuses."""
    return Channel.open(
        address, greeting.encode(), limits, CONNECT_S, welcome_s=WELCOME_S, secure=secure
    )


class Exchange:
    """An exchange, open on construction. ``on_change``: called in the reading thread after each
    beat and once after the end.

    Errors: ``SlotwheelError``: ``NodeUnreachable``, or the peer's refusal.
    """

    def __init__(
        self,
        address: str,
        greeting: Greeting,
        check: Callable[[Greeting], None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        secure: Secure | None = None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self.error: SlotwheelError | None = None
        """The error that ended it."""
        self.ended = False
        self.received_at = clock()
        self._unbeaten: deque[tuple[int, float]] = deque()  # (bytes, when written)
        self._acknowledged = 0
        self.unbeaten_bytes = 0
        self._lock = threading.Lock()
        self._moved = self.received_at  # when TCP was last seen to move
        self._sent = TcpProgress()
        self._channel = open_channel(address, greeting, _BEATS, secure)
        try:
            self.peer = Greeting.decode(self._channel.welcome)
            check(self.peer)
        except BaseException:
            self._channel.close()
            raise
        self._thread = threading.Thread(
            target=self._read, name=f"peer-beats-{greeting.to}", daemon=True
        )
        self._thread.start()

    def write(self, header: bytes, entries: Sequence[Bytes]) -> int:
        """Send one message; blocks while the peer reads nothing. One thread at a time. Returns the
        bytes of its entries.

        Errors: ``SlotwheelError`` when the exchange has ended, for any reason.
        """
        nbytes = sum(map(len, entries))
        self._write(nbytes, Kind.MESSAGE, header, *entries)
        return nbytes

    def ask(self) -> None:
        """Ask for a beat where there is no message, to find out if the link is up. As ``write``."""
        self._write(0, Kind.BEAT)

    def _write(self, nbytes: int, kind: int, header: bytes = b"", *body: Bytes) -> None:
        with self._lock:
            self._unbeaten.append((nbytes, self._clock()))
            self.unbeaten_bytes += nbytes
        try:
            self._channel.send(kind, header, *body)
        except SlotwheelError as error:
            # The reading side gets the reason why the channel ended.
            self._thread.join(_GOODBYE_S / 2)
            raise self.error or error from None

    def silence(self) -> tuple[float, float]:
        """The seconds for which something has been in flight without a beat and without TCP moving
        a long queue (0.0 if nothing is in flight), and those for which the peer's machine has been
        silent. Call it regularly, from one thread."""
        before, self._sent = self._sent, self._channel.progress()
        with self._lock:
            now = self._clock()
            if self._sent.queued and self._sent.acknowledged != before.acknowledged:
                self._moved = now
            if not self._unbeaten:
                return 0.0, 0.0
            silent_s = now - max(self.received_at, self._moved, self._unbeaten[0][1])
            return silent_s, self._sent.unacknowledged_s

    @property
    def certificate(self) -> PeerCertificate | None:
        """The certificate that the peer has proven; None without TLS."""
        return self._channel.certificate

    def cut(self) -> None:
        """End the exchange at once, from any thread; a blocked ``write`` returns with an error."""
        self._channel.shut()

    def end(self) -> None:
        """Wait a moment for the reading thread to end, and free all. In the thread that writes."""
        self._channel.shut()
        self._thread.join(_GOODBYE_S)
        self._channel.close()

    def _read(self) -> None:
        try:
            while (frame := self._channel.receive()) is not None:
                self._beat(frame)
                self._on_change()
        except SlotwheelError as error:
            self.error = error
        self.ended = True
        self._on_change()

    def _beat(self, frame: Frame) -> None:
        size = len(frame.metadata)
        acknowledged = _TAKEN.unpack(frame.metadata)[0] if size == _TAKEN.size else -1
        with self._lock:
            if not 0 <= acknowledged - self._acknowledged <= len(self._unbeaten):
                raise InvalidBatch(
                    "not a peer's answer",
                    got=f"{size} bytes: {frame.metadata.hex()}",
                    limit=f"from {self._acknowledged} to"
                    f" {self._acknowledged + len(self._unbeaten)} messages",
                )
            self.received_at = self._clock()
            for _ in range(acknowledged - self._acknowledged):
                self.unbeaten_bytes -= self._unbeaten.popleft()[0]
            self._acknowledged = acknowledged
