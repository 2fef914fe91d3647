"""Rights: what a caller may do, and the one table that says which right each operation needs.

Theory: a caller's roles are added up once, when it becomes known, into an immutable ``Rights``.
From then on a check is a lookup: a flag, or a topic in a memo. Nothing asks a file or another
process, so a check costs less than the row that it lets in. ``node/intake/callers.py`` asks for who
is on the wire, ``gateway/authentication.py`` for who sends requests, and the delay topics'
reader for their records.

Rules
- Everything is denied unless a role grants it; roles only ever add.
- Each operation has exactly one right (``Operation``). An operation without one could be reached by
  everybody, so callers of a table look their operation up here, and an unknown name is an error.
- A trailing ``*`` never means topics of slotwheel's own (``slotwheel-…``, ``__…``). Otherwise a
  role for ``*`` could forge dead letters and trace events. They are granted by a name, or by a
  prefix that begins as they do: ``slotwheel-trace*``. A topic of dead letters that has another name
  is granted by that name alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from ..wheel.errors import Forbidden

OWN_PREFIXES = ("slotwheel-", "__")
"""Topics whose names begin so belong to slotwheel, or to Kafka itself."""
_MEMO_MAX = 4096
"""So many topics are remembered for each list; one more begins the memo anew, so that a caller who
makes up names cannot fill the memory."""


class Right(Enum):
    """A right, by its key in a role. Those of ``TOPIC_RIGHTS`` have a list of topics."""

    PUBLIC = "public"
    """Everybody has it, also who is not known; it is no key of a role."""
    CONNECT = "connect"
    """Every caller that is known has it; it is no key of a role."""
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    READ = "read"
    CONSUME = "consume"
    REDRIVE = "redrive"
    OBSERVE = "observe"
    POLICIES = "policies"
    ADMIN = "admin"
    GATEWAY = "gateway"
    """Everything: a gateway holds the same security file, and acts for callers whom it has
    checked."""


OF_ALL = (Right.PUBLIC, Right.CONNECT)
TOPIC_RIGHTS = (Right.SCHEDULE, Right.CANCEL, Right.READ, Right.CONSUME, Right.REDRIVE)
QUESTIONS = (Right.READ, Right.OBSERVE)
"""Whoever does something by these asks a question, whose answer may be work (``Quota``)."""
FLAGS = (Right.OBSERVE, Right.POLICIES, Right.ADMIN, Right.GATEWAY)


class Operation(Enum):
    """Everything that a caller can ask for, over the wire, over HTTP or through a delay topic: the
    name that errors and the access log show, and the right that it needs."""

    DESCRIBE = "describe", Right.PUBLIC
    HEALTH = "health", Right.PUBLIC
    LOGIN = "login", Right.PUBLIC
    LOGOUT = "logout", Right.CONNECT
    HELLO = "hello", Right.CONNECT
    POLICIES = "policies", Right.CONNECT  # clients resolve levels and routes themselves
    APPEND = "append", Right.SCHEDULE
    SCHEDULE_PUT = "schedule-put", Right.SCHEDULE
    SCHEDULE_PAUSE = "schedule-pause", Right.SCHEDULE
    SCHEDULE_RESUME = "schedule-resume", Right.SCHEDULE
    SCHEDULE_RUN = "schedule-run", Right.SCHEDULE
    SCHEDULE_DELETE = "schedule-delete", Right.SCHEDULE
    SCHEDULE_LIST = "schedule-list", Right.READ
    SCHEDULE_SHOW = "schedule-show", Right.READ
    CANCEL = "cancel", Right.CANCEL
    RESCHEDULE = "reschedule", Right.CANCEL
    SEARCH = "search", Right.READ
    NAMED = "named", Right.READ
    TRACE = "trace", Right.READ
    LETTERS = "letters", Right.READ
    CONSUME = "consume", Right.CONSUME
    REDRIVE = "redrive", Right.REDRIVE
    PURGE = "purge", Right.REDRIVE
    JOBS = "jobs", Right.CONNECT  # of those that the caller has begun
    STATUS = "status", Right.OBSERVE
    METRICS = "metrics", Right.OBSERVE
    BROKERS = "brokers", Right.OBSERVE
    PAGE = "page", Right.OBSERVE
    AUDIT = "audit", Right.OBSERVE
    CLOCK_SHOW = "clock-show", Right.OBSERVE
    REGISTER = "register", Right.POLICIES
    FORGET = "forget", Right.POLICIES
    CLOCK_ACCEPT = "clock-accept", Right.ADMIN
    CLOCK_SET_BACK = "clock-set-back", Right.ADMIN
    STEP_DOWN = "step-down", Right.ADMIN
    ACKNOWLEDGE = "acknowledge", Right.ADMIN
    DRAIN = "drain", Right.ADMIN
    TOPICS = "topics", Right.ADMIN
    CREATE_TOPIC = "create-topic", Right.ADMIN
    ALTER_TOPIC = "alter-topic", Right.ADMIN
    DELETE_TOPIC = "delete-topic", Right.ADMIN

    def __init__(self, label: str, right: Right) -> None:
        self.label = label
        self.right = right

    @classmethod
    def named(cls, label: str) -> Operation | None:
        """The operation with that name; None: there is none."""
        return _BY_LABEL.get(label)


_BY_LABEL = {operation.label: operation for operation in Operation}


def is_own(topic: str) -> bool:
    """Returns True for a topic of slotwheel's own, or of Kafka's."""
    return topic.startswith(OWN_PREFIXES)


class TopicList:
    """The topics of one right: names, and prefixes that are written with a trailing ``*``.

    Example: of ``["orders", "pay-*"]`` the topics ``orders`` and ``pay-eu`` are members, and
    ``orders-eu`` is not.
    """

    __slots__ = ("_memo", "_own", "patterns", "prefixes")

    def __init__(self, patterns: Iterable[str] = (), own: Collection[str] = ()) -> None:
        """``own``: topics that are granted by their names alone."""
        self._own = own
        self.patterns = tuple(dict.fromkeys(patterns))
        self.prefixes = tuple(text[:-1] for text in self.patterns if text.endswith("*"))
        self._memo: dict[str | bytes, bool] = {}

    def has(self, topic: str | bytes) -> bool:
        """Returns True when the topic is a member. ``bytes`` are UTF-8; a text that is not has no
        topic."""
        known = self._memo.get(topic)
        if known is None:
            if len(self._memo) >= _MEMO_MAX:
                self._memo.clear()
            known = self._memo[topic] = self.pattern_of(topic) is not None
        return known

    def pattern_of(self, topic: str | bytes) -> str | None:
        """The pattern that makes the topic a member; None: it is none."""
        if isinstance(topic, bytes):
            topic = topic.decode(errors="replace")
        if not topic:
            return None
        if topic in self.patterns and not topic.endswith("*"):
            return topic
        if topic in self._own:
            return None
        for prefix in self.prefixes:
            if topic.startswith(prefix) and (not is_own(topic) or is_own(prefix)):
                return prefix + "*"
        return None

    def __bool__(self) -> bool:
        return bool(self.patterns)


class Rights:
    """The rights of one caller. Immutable but for its memo; any thread may ask."""

    __slots__ = ("_own", "_topics", "flags", "is_unlimited")

    def __init__(
        self,
        topics: Mapping[Right, Iterable[str]],
        flags: Iterable[Right] = (),
        own: Collection[str] = (),
    ) -> None:
        """``topics``: patterns by the right. ``flags``: those of ``FLAGS`` that it has. ``own``:
        topics that are slotwheel's own though their names do not say so."""
        self._own = own
        self._topics = {right: TopicList(topics.get(right, ()), own) for right in TOPIC_RIGHTS}
        self.flags = frozenset(flags)
        self.is_unlimited = Right.GATEWAY in self.flags
        """True when nothing is refused, so that a check may be left out."""

    def topics(self, right: Right) -> TopicList:
        """The topics for which it has the right, one of ``TOPIC_RIGHTS``."""
        return self._topics[right]

    def may(self, operation: Operation, topic: str = "") -> bool:
        """Returns True when the operation is allowed. Without a ``topic`` an operation on topics is
        allowed if there is any topic for which it is: the answer is filtered later. For a topic of
        slotwheel's own a flag is not enough: ``schedule`` has to name it, or an operator of topics
        could delete dead letters."""
        right = operation.right
        if self.is_unlimited or right in OF_ALL:
            return True
        topics = self._topics.get(right)
        if topics is None:
            own = is_own(topic) or topic in self._own
            return right in self.flags and (not own or self._topics[Right.SCHEDULE].has(topic))
        return topics.has(topic) if topic else bool(topics)

    def has_all_of(self, other: Rights, right: Right) -> bool:
        """Returns True when each entry of another caller's list for ``right`` stands in its own,
        too. Entries are compared as they are written: a list that was written anew in other words
        is another one."""
        if self.is_unlimited or other.is_unlimited:
            return self.is_unlimited
        return {*other.topics(right).patterns} <= {*self.topics(right).patterns}

    @property
    def scope(self) -> bytes:
        """Names the topics that it may schedule to; empty for who may everything. Keys of requests
        are apart for callers of different scopes: a caller must not use up the key of another one,
        and two tokens with the same roles, of which one replaces the other, share theirs."""
        if self.is_unlimited:
            return b""
        return "\n".join(sorted(self._topics[Right.SCHEDULE].patterns)).encode() or b"\n"

    def demand(self, operation: Operation, topic: str = "") -> None:
        """Errors: ``Forbidden``, which names operation and topic."""
        if not self.may(operation, topic):
            raise forbidden(operation, topic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[object, ...]:
        lists = tuple(frozenset(self._topics[right].patterns) for right in TOPIC_RIGHTS)
        return (self.flags, *lists)


EVERYTHING = Rights({}, [Right.GATEWAY])
"""The rights of ``local``, and of every caller of a node without a security file."""


def forbidden(operation: Operation, topic: str = "", row: int | None = None) -> Forbidden:
    """The error for an operation that the caller's roles do not allow."""
    right = operation.right
    where = f" for topic {topic[:250]!r}" if topic else ""
    limit = f"a role with the right {right.value!r}{where}"
    if right in FLAGS and is_own(topic):
        limit = (
            f"the right {right.value!r}, and 'schedule' that names the topic, as it is an own one"
        )
    return Forbidden(
        f"not allowed: {operation.label}{where}",
        limit=limit,
        remedy="Nothing was done. Ask for a role in the node's security file that has it",
        row=row,
    )
