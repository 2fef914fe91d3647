"""Every error slotwheel raises on purpose, as one small tree.

Theory: a caller needs to know three things about an error - whose mistake it was, whether trying
again can help, and what to do next. So there is one base class, few leaves, and each carries the
offending value, the limit or what was expected instead, and a remedy. The same classes cross the
wire by their ``code``, so a client catches what the node raised.

An operating-system error is never dressed up as one of these: ``OSError`` passes through as it is.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Self, TypeVar

from .texts import shown_text


class SlotwheelError(Exception):
    """Base of all errors of this package.

    ``code`` is the stable name used on the wire and in ``--json`` output; ``retryable`` says
    whether the same call may succeed later without being changed.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    retry_after_ms: int = 0
    """The same call cannot succeed sooner, ms; 0: nothing is known of that."""
    limit_is: ClassVar[str] = ""
    """The word for ``limit`` in the text. By default a number with its unit, or a time, is a
    *limit*, and anything else is what was *expected*."""

    def __init__(
        self,
        message: str,
        *,
        got: Any = None,
        limit: Any = None,
        remedy: str = "",
        row: int | None = None,
        uncertain: bool = False,
    ) -> None:
        """``uncertain``: the request that failed may have been carried out all the same."""
        self.uncertain = uncertain
        self.message = message
        self.got = got
        self.limit = limit
        self.remedy = remedy
        self.row = row
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its fields, as each class has a constructor of its own. What need not survive
        the way, such as a view of a buffer, goes as text."""
        fields = {
            name: value if isinstance(value, _PLAIN) else str(value)
            for name, value in vars(self).items()
        }
        return _again, (type(self), self.args, fields)

    def __copy__(self) -> Self:
        """The same error, raised nowhere yet: for who keeps an error, or raises one that is kept.
        One that was raised refers to its frames, and by them to all that was in use."""
        return _again(type(self), self.args, vars(self))

    def __str__(self) -> str:
        parts = [self.message]
        if self.got is not None:
            parts.append(f"got {self.got}")
        if self.limit is not None:
            word = "limit" if _MEASURE.fullmatch(str(self.limit)) else "expected"
            parts.append(f"{self.limit_is or word} {self.limit}")
        text = "; ".join(parts)
        if self.row is not None:
            text = f"row {self.row}: {text}"
        return f"{text}. {self.remedy}" if self.remedy else text

    def showing(self, got: Any) -> Self:
        """This error with another value that was found."""
        error = copy(self)
        error.got = got
        return error

    def of_rows_from(self, first: int) -> Self:
        """This error for the caller whose rows begin at row ``first``."""
        error = copy(self)
        error.row = None if self.row is None else self.row - first
        return error

    def without_row(self) -> Self:
        """This error for a caller that does not know the batch in which its row has that number."""
        error = copy(self)
        error.row = None
        return error

    def perhaps_done(self) -> Self:
        """This error for whoever cannot know whether what was asked for was done."""
        error = copy(self)
        error.uncertain = True
        return error

    def in_doubt(self) -> Self:
        """This error for a caller that cannot know whether its messages are stored: the error was
        the answer to a repeat, whose first try may have been stored, or the reason for which no
        answer came. So it no longer says that nothing was stored."""
        doubt = self.perhaps_done()
        doubt.remedy = self.remedy.removeprefix(NOTHING_STORED).lstrip()
        if _NOT_KNOWN not in self.message:
            doubt.message = f"{self.message}; whether the messages are stored {_NOT_KNOWN}"
        return doubt

    def to_wire(self) -> dict[str, Any]:
        """The error as a JSON-able mapping; ``from_wire`` builds the same error again."""
        fields = {"uncertain": True} if self.uncertain else {}
        return fields | {
            "code": self.code,
            "message": self.message,
            "got": None if self.got is None else str(self.got),
            "limit": None if self.limit is None else str(self.limit),
            "remedy": self.remedy,
            "row": self.row,
        }


NOTHING_STORED = "Nothing was stored."
"""A remedy begins with this where it is certain."""
_NOT_KNOWN = "is not known"
_RETRY_AFTER_MAX_MS = 60_000
"""A client waits no longer than this, ms, whatever a node asks for."""
_MEASURE = re.compile(r"-?\d[\d.]*( (bytes|ms|s|rows)( .*)?)?|\d{4}-\d\d-\d\dT\S*")
"""``5``, ``10240 bytes``, ``7200 s ahead``, a time; not ``1 to 5`` or ``17 or newer``."""
_PLAIN = (str, bytes, int, float, list, type(None))


_Error = TypeVar("_Error", bound=SlotwheelError)


def _again(kind: type[_Error], args: tuple[Any, ...], fields: dict[str, Any]) -> _Error:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class InvalidMessage(SlotwheelError):
    """One message cannot be accepted: due time, topic, or size."""

    code = "invalid-message"


class Draining(SlotwheelError):
    """The wheel takes no new messages: an operator has it emptied. Another wheel of the fleet takes
    them."""

    code = "draining"


class NameTaken(InvalidMessage):
    """A pending message has the name, and the one that came was not to take its place. ``got``: the
    id of the pending one; ``row``: the row of the one that came. ``more``: further rows of the
    batch for which that is so, if the first one is left out, each with its ``got``; up to
    ``MORE_MAX`` of them. Otherwise a sender whose 5,000 names are all taken would learn of them one
    by one, and send 5,000 times."""

    code = "name-taken"
    MORE_MAX: ClassVar[int] = 1000
    more: Sequence[tuple[int, str]] = ()

    def of_rows_from(self, first: int) -> Self:
        error = super().of_rows_from(first)
        error.more = [(row - first, got) for row, got in self.more]
        return error

    def without_row(self) -> Self:
        error = super().without_row()
        error.more = ()
        return error

    def naming(self, more: Sequence[tuple[int, str]]) -> Self:
        """This error with further rows of the batch, each with its ``got``."""
        error = copy(self)
        error.more = [*more]
        return error

    def by_row(self, rows: int) -> dict[int, Self]:
        """The error of each row that it names, of a batch of so many rows."""
        named = [(-1 if self.row is None else self.row, self.got), *self.more]
        alone = self.without_row()
        return {row: alone.showing(got) for row, got in named if 0 <= row < rows}

    def to_wire(self) -> dict[str, Any]:
        fields = super().to_wire()
        return fields | {"more": [*self.more]} if self.more else fields


class UnknownSchedule(InvalidMessage):
    """There is no schedule of that name, or it may not be seen by who asks."""

    code = "unknown-schedule"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(
            "no such schedule",
            got=repr(name[:80]),
            limit="the name of one that the caller may see",
            remedy="List the schedules to see which there are",
        )


class ScheduleChanged(InvalidMessage):
    """A schedule has another version than the change was made for. ``got``: its version; ``limit``:
    the one that was expected."""

    code = "schedule-changed"

    @classmethod
    def of(cls, name: str, version: int, expected: int) -> Self:
        """``version``: of the schedule that is there, 0: there is none."""
        none = "no such schedule"
        return cls(
            f"schedule {name!r} is another one by now",
            got=f"version {version}" if version else none,
            limit=f"version {expected}" if expected else none,
            remedy="Look at it again, and then put it with the version that it has",
        )


class UnknownTopic(InvalidMessage):
    """Kafka lacks topics that messages are for. ``got``: their names; ``row``: the first row."""

    code = "unknown-topic"

    @classmethod
    def of(cls, topics: Sequence[str], row: int | None = None) -> Self:
        several = len(topics) > 1
        return cls(
            "Kafka has no such topics" if several else "Kafka has no such topic",
            got=", ".join(topics),
            remedy=f"Create {'them' if several else 'it'}: topics are never created by sending. A"
            " node that is started with --unknown-topics accept takes such messages",
            row=row,
        )

    @property
    def topics(self) -> list[str]:
        return str(self.got).split(", ")


class InvalidBatch(SlotwheelError):
    """A batch as a whole cannot be accepted: schema, limits, or broken Arrow data."""

    code = "invalid-batch"


class InvalidConfiguration(SlotwheelError):
    """A setting is not usable, or contradicts what the data directory was made with."""

    code = "invalid-configuration"


class UnsupportedVersion(SlotwheelError):
    """A file or a peer speaks a version this program does not know."""

    code = "unsupported-version"
    limit_is = "expected"


class UnknownId(SlotwheelError):
    """A text is no message id. One that nobody gave out is only *unknown*."""

    code = "unknown-id"


class Overloaded(SlotwheelError):
    """The node cannot take more right now; nothing was stored. Try again later."""

    code = "overloaded"
    retryable = True


class OverQuota(SlotwheelError):
    """A principal has used up its quota; nothing was stored. The same call succeeds after
    ``retry_after_ms`` milliseconds, if nobody else uses the quota meanwhile."""

    code = "over-quota"
    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int = 0, **more: Any) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(message, **more)

    def to_wire(self) -> dict[str, Any]:
        return {**super().to_wire(), "retry_after_ms": self.retry_after_ms}


class Unauthenticated(SlotwheelError):
    """The caller did not prove who it is. The text never says why: a stranger who learned that a
    token has expired would know that it was a good one. ``reason`` is for the server's own log; it
    stands neither in the text nor in what is sent."""

    code = "unauthenticated"

    def __init__(
        self, message: str = "who calls is not known here", *, reason: str = "", **more: Any
    ) -> None:
        self.reason = reason
        more.setdefault(
            "remedy", "Give a token or a certificate that the node's security file names"
        )
        super().__init__(message, **more)


class Forbidden(SlotwheelError):
    """The caller is known, and its roles do not have the right. Names operation and topic."""

    code = "forbidden"


class NodeUnreachable(SlotwheelError):
    """No node answered at the address in time."""

    code = "node-unreachable"
    retryable = True


class NotRunning(SlotwheelError):
    """The node, the wheel or the client is shutting down or closed."""

    code = "not-running"
    retryable = True


class NotMaster(NotRunning):
    """This peer is a standby, or has just been deposed. ``master``: the master's address, if known.

    What was on its way may be stored all the same: send it again, with the same sequence.
    """

    code = "not-master"
    retryable = True
    limit_is = "master"

    def __init__(
        self, message: str = "this peer is not the master", *, master: str = "", **more: Any
    ):
        self.master = master or str(more.get("limit") or "")
        more["limit"] = self.master or None
        more.setdefault("remedy", "Ask the master, or give all peers' addresses and wait")
        super().__init__(message, **more)


class SequenceTooOld(SlotwheelError):
    """A producer repeated a sequence so old that the wheel cannot tell whether it was stored."""

    code = "sequence-too-old"


class DirectoryInUse(SlotwheelError):
    """Another node holds the data directory."""

    code = "directory-in-use"


class MissingExtra(SlotwheelError):
    """An optional dependency is needed and not installed."""

    code = "missing-extra"


class AddressInUse(SlotwheelError):
    """The port to listen on is taken."""

    code = "address-in-use"


class Damaged(SlotwheelError):
    """Stored data is not what was written: names file, position, expected and found."""

    code = "damaged"

    def __init__(
        self, path: str, position: int, *, expected: object, found: object, remedy: str = ""
    ) -> None:
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        super().__init__(
            f"{path} is damaged at byte {position}: expected {expected}, found {found}",
            remedy=remedy
            or "Keep a copy of the directory, run 'slotwheel verify' on it, and restore from a peer"
            " or a backup",
        )


class DamagedThere(SlotwheelError):
    """Another node reported that its own data is ``Damaged``."""

    code = Damaged.code


class ClockBehind(SlotwheelError):
    """The wall clock stands behind what was already delivered; delivery waits for it.

    Going on could send a late row before its due time.
    """

    code = "clock-behind"
    retryable = True


class SyncFailed(SlotwheelError):
    """fsync or fdatasync failed. What the page cache holds can no longer be believed.

    The process has to end; a restart recovers from what is really on disk.
    """

    code = "sync-failed"


_BY_CODE: dict[str, type[SlotwheelError]] = {
    cls.code: cls
    for cls in (
        InvalidMessage,
        Draining,
        NameTaken,
        UnknownSchedule,
        ScheduleChanged,
        UnknownTopic,
        InvalidBatch,
        InvalidConfiguration,
        UnsupportedVersion,
        UnknownId,
        Overloaded,
        OverQuota,
        Unauthenticated,
        Forbidden,
        NodeUnreachable,
        NotRunning,
        NotMaster,
        SequenceTooOld,
        DamagedThere,
        DirectoryInUse,
        AddressInUse,
    )
}


def from_wire(fields: dict[str, Any]) -> SlotwheelError:
    """Build the error a node sent. An unknown code becomes the base class, message kept.

    Whatever answers at a node's address may have chosen the texts, and a program prints them to a
    terminal or a log: they come as ``shown_text``.
    """
    cls = _BY_CODE.get(str(fields.get("code")), SlotwheelError)
    row = fields.get("row")
    texts = {
        name: value if type(value) is int else shown_text(str(value), lines=False)
        for name in ("got", "limit")
        if (value := fields.get(name)) is not None
    }
    error = cls(
        shown_text(str(fields.get("message", "unknown error")), lines=False),
        got=texts.get("got"),
        limit=texts.get("limit"),
        remedy=shown_text(str(fields.get("remedy") or ""), lines=False),
        row=row if isinstance(row, int) else None,
        uncertain=fields.get("uncertain") is True,
    )
    if isinstance(error, NameTaken):
        error.more = _more_of(fields.get("more"))
    wait_ms = fields.get("retry_after_ms")
    if isinstance(error, OverQuota) and type(wait_ms) is int:
        error.retry_after_ms = max(0, min(wait_ms, _RETRY_AFTER_MAX_MS))
    return error


def _more_of(given: Any) -> list[tuple[int, str]]:
    more: list[tuple[int, str]] = []
    for pair in given if isinstance(given, list) else []:
        if isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is int:
            more.append((pair[0], shown_text(str(pair[1]), lines=False)))
    return more[: NameTaken.MORE_MAX]


_REMEDIES = {
    errno.ENOSPC: "Free disk space on the node",
    errno.EDQUOT: "Raise the disk quota of the node's user, or free some of it",
    errno.EFBIG: "Raise the limit for the size of the node's files (ulimit -f)",
    errno.EMFILE: "Raise the node's limit of open files (ulimit -n, systemd's LimitNOFILE)",
    errno.ENFILE: "Raise the limit of open files of the node's machine (sysctl fs.file-max)",
    errno.EROFS: "Make the node's data directory writable again",
    errno.EACCES: "Give the node's user the right to write its data directory",
    errno.ENOMEM: "Give the node's machine more memory",
}


def remedy_for(error: OSError) -> str:
    """Advice about an error of the operating system, for people."""
    return _REMEDIES.get(error.errno or 0, "Look at the node's log, and after its disk")
