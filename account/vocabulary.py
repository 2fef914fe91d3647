"""The words of an account: places, the boundaries between them, and verdicts.

    produced ──client to wheel──> accepted ──wheel to topic──> delivered ──topic to consumer──> ...

Theory: each tier is compared with the one before it alone. So a message that is lost on its way is
missing behind one boundary only, and no other boundary is blamed for it. For example, a message
that the wheel lost is in no topic and was consumed by nobody; between topic and consumer nothing is
missing, as the topic never had it.

Who counts sums (``audit/``) gives one verdict to a bucket; who knows ids (``replay/``) gives one to
each message. The tables of ``replay/`` name three of these verdicts by older words: a message that
passed (*equal*) is ``arrived`` there, *open* is ``waiting``, *unknown* is ``undecided``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Tier(StrEnum):
    """A place in which messages are seen."""

    PRODUCED = "produced"
    """A client has the node's acknowledgement for it."""
    ACCEPTED = "accepted"
    """It is in the wheel's files."""
    DELIVERED = "delivered"
    """It is in its topic."""
    CONSUMED = "consumed"
    """A consumer's application has answered for it."""
    LEFT_OUT = "left out"
    """A consumer group's rule has left it out, which counts as an answer."""
    CANCELLED = "cancelled"
    """A cancel names it: it is not to be delivered any more."""
    EXPIRED = "expired"
    """It was not delivered within its time to live, and is a dead letter."""
    DEAD = "dead"
    """It is a dead letter, as its topic did not take it."""


class Boundary(StrEnum):
    """The way of messages from one tier to the next. Each says which time a message takes there; it
    is late if that is more than ``AccountLimits.late_ms``."""

    CLIENT_WHEEL = "client to wheel"
    """From PRODUCED to ACCEPTED; a message takes from the call of the client to the acceptance."""
    WHEEL_TOPIC = "wheel to topic"
    """From ACCEPTED, without CANCELLED, to DELIVERED, EXPIRED and DEAD; a message takes from when
    it is ready (``limits.ready_ms``) to when it is in its topic."""
    TOPIC_CONSUMER = "topic to consumer"
    """From DELIVERED to CONSUMED and LEFT_OUT, for each group of consumers; a message takes from
    when it is in its topic to when the application has it, or has answered for it."""


class AuditVerdict(StrEnum):
    """The verdict of an account about one boundary, the worst first."""

    LOST = "lost"
    """It came to the boundary and did not come out of it, although it should have by now, and
    everything that could show it was seen."""
    REPEATED = "repeated"
    """It came out more often than it came in."""
    DIFFERS = "differs"
    """As many came out as came in, but not the same ones. Sums alone say so: who knows ids calls
    the one message lost and the other one repeated."""
    UNKNOWN = "unknown"
    """Both sides differ, and a part of what would explain that was not seen."""
    LATE = "late"
    """It passed, and took longer than ``AccountLimits.late_ms``."""
    OPEN = "open"
    """It may still pass: it waits, or its time and the grace are not over."""
    EQUAL = "equal"
    """It passed once."""


FAULTS = frozenset({AuditVerdict.LOST, AuditVerdict.REPEATED, AuditVerdict.DIFFERS})
RANK = {verdict: rank for rank, verdict in enumerate(AuditVerdict)}
"""0: the worst verdict."""


def worst(verdicts: Iterable[AuditVerdict]) -> AuditVerdict:
    """The worst of these verdicts; EQUAL if there is none."""
    return min(verdicts, key=lambda verdict: RANK[verdict], default=AuditVerdict.EQUAL)
