"""Joins the answers of a fleet's wheels to one.

Rules
- Counts are summed, and messages are in the order of due time, wheel and offset. What one of a
  wheel that does not answer would add is missing: the answer says so, and is not complete.
- A page ends where the first of the wheels' pages ends that has messages behind it: behind that,
  messages of this wheel are missing.

*Example.* North has messages due at 1, 2, 9 and South at 3, 4, 5; pages have two. North's page ends
at 2 and South's at 4, so the joined one is 1, 2, and its token is behind North's offset at 2.
South is asked for what is behind 2 then, and North for what is behind its last message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ...reading.search.query import INT64_END, PageKey
from ...wheel.ids import MessageId
from .found import FoundMessage
from .pending import FoundMessages, KnownMessage, PendingCounts, SlotCount


def of_each(texts: Iterable[Iterable[str]], names: Iterable[str]) -> list[str]:
    """The texts of several wheels, each behind the name of its wheel."""
    return [f"{name}: {text}" for name, given in zip(names, texts, strict=True) for text in given]


def behind(after: PageKey | None, wheel: str) -> PageKey | None:
    """Where the page of a wheel begins, if that of all begins behind ``after``."""
    if after is None or after.wheel == wheel:
        return after and after._replace(wheel="")
    return PageKey(after.due, INT64_END - 1 if wheel < after.wheel else -1)


def key_of(message: FoundMessage) -> tuple[int, str, int]:
    """The place of a message among those of all wheels."""
    name = MessageId.parse(message.id)
    return message.due_ms, name.group, name.offset


def joined_page(
    pages: Mapping[str, FoundMessages], limit: int, missing: Sequence[str]
) -> FoundMessages:
    """A page of at most ``limit`` messages out of those of several wheels. ``missing``: a line for
    each wheel that is not among them."""
    ends = [
        (end.due, name, end.offset)
        for name, page in pages.items()
        if page.next is not None
        for end in [PageKey.parse(page.next)]
    ]
    end = min(ends, default=None)
    # A page has its messages in the order of their offsets, which need not be read of their ids.
    places = sorted(
        (message.due_ms, name, number)
        for name, page in pages.items()
        for number, message in enumerate(page.messages)
    )
    if end is not None:
        places = [place for place in places if place[:2] <= end[:2]]
    messages = [pages[name].messages[number] for _, name, number in places[:limit]]
    if len(places) > limit:
        end = key_of(messages[-1])
    following = None
    if end is not None:
        due, wheel, offset = end
        following = str(PageKey(due, offset, wheel))
    problems = [*missing, *of_each((page.problems for page in pages.values()), pages)]
    return FoundMessages(
        next=following,
        complete=not problems,
        looked_through=sum(page.looked_through for page in pages.values()),
        read_point=None,
        problems=problems,
        limited_by_rights=any(page.limited_by_rights for page in pages.values()),
        messages=messages,
    )


def joined_counts(
    counts: Mapping[str, PendingCounts],
    by: Literal["slot", "topic"] | None,
    missing: Sequence[str],
) -> PendingCounts:
    """The sums of several wheels; slots are one if they begin and end together."""
    slots: Counter[tuple[int, int]] = Counter()
    topics: Counter[str] = Counter()
    for counted in counts.values():
        for slot in counted.slots or ():
            slots[slot.from_ms, slot.seconds] += slot.messages
        topics.update(counted.topics or {})
    problems = [*missing, *of_each((each.problems for each in counts.values()), counts)]
    in_order = [SlotCount(from_ms, count, s) for (from_ms, s), count in sorted(slots.items())]
    return PendingCounts(
        messages=sum(each.messages for each in counts.values()),
        complete=not problems,
        looked_through=sum(each.looked_through for each in counts.values()),
        read_point=None,
        problems=problems,
        limited_by_rights=any(each.limited_by_rights for each in counts.values()),
        slots=in_order if by == "slot" else None,
        topics=dict(topics) if by == "topic" else None,
    )


def unknown_message(message_id: str, why: str) -> KnownMessage:
    """A message of which nobody can tell anything."""
    return KnownMessage(message_id, "unknown", why, None, None, None, None, None)
