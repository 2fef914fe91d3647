"""The message that had a name before, as an application sees it."""

from __future__ import annotations

from typing import NamedTuple, Self

from ..wheel.answers import Before
from ..wheel.ids import MessageId
from ..wheel.protocol import PriorRow


class Predecessor(NamedTuple):
    """The message that had the name of a new one before it. ``what`` became of it: ``"replaced"``:
    it was cancelled; ``"kept"``: it is still pending, and the new message was dropped;
    ``"already delivered"``: it had left, so both are delivered; ``"unknown"``: it is not pending
    any more, and may have left or not. ``id``: that message's.
    ``dropped_id``: that of the new message, where it was dropped."""

    what: str
    id: str
    dropped_id: str | None = None

    @classmethod
    def of(cls, prior: PriorRow, group: str, own_id: str) -> Self:
        """``own_id``: that of the new message; both are of ``group``."""
        prior_id = str(MessageId(group, prior.due, prior.offset, prior.check))
        return cls(prior.before.value, prior_id, own_id if prior.before is Before.KEPT else None)


class NamedId(str):
    """The id that ``store`` returns for a message with a name: a text with ``before``, the message
    that had the name until then; None: no message of that name was known. Of a message that was
    dropped because another one was kept, it is the id of the kept one."""

    __slots__ = ("before",)

    before: Predecessor | None

    def __new__(cls, message_id: str, before: Predecessor | None) -> Self:
        named = super().__new__(cls, message_id)
        named.before = before
        return named

    @classmethod
    def of(cls, message_id: str, prior: PriorRow | None, group: str) -> Self:
        """``message_id``: of the new message; ``prior``: the row before it, in ``group``."""
        if prior is None:
            return cls(message_id, None)
        before = Predecessor.of(prior, group, message_id)
        return cls(message_id if before.dropped_id is None else before.id, before)
