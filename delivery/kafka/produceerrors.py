"""The errors of Kafka's protocol for a record, and the answer of the sink for each.

Theory: a record that is wrong itself stays wrong, so it becomes a dead letter. Any other error is a
condition of the surroundings - clocks, rights, disks, settings - that passes or that a person mends
while the record waits. Were it taken for the record's fault, an hour with a wrong clock would bury
every message that is due in it.

The numbers are those of Kafka's protocol, so one table serves both clients. An error that is not in
it, as a client's own, is one of the surroundings, and its answer is UNKNOWN: an earlier try of the
record may have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..sink import Answer

INVALID_TIMESTAMP = 32


@dataclass(frozen=True, slots=True)
class ProduceError:
    """An error and its answer. REFUSED is the record's own fault. NOT_NOW is a condition for which
    the broker has refused every earlier try as well; after UNKNOWN an earlier try may have arrived.
    ``remedy`` is for a person; empty where the condition passes by itself."""

    name: str
    answer: Answer
    remedy: str = ""


_RIGHTS = "Give the node's user the right to write there"
_CLOCKS = "Set the clocks right"
UNCLEAR = ProduceError("unknown", Answer.UNKNOWN)

PRODUCE_ERRORS = {
    2: ProduceError("CORRUPT_MESSAGE", Answer.UNKNOWN),  # changed on its way
    3: ProduceError("UNKNOWN_TOPIC_OR_PARTITION", Answer.UNKNOWN),  # the topic book decides
    5: ProduceError("LEADER_NOT_AVAILABLE", Answer.UNKNOWN),
    6: ProduceError("NOT_LEADER_OR_FOLLOWER", Answer.UNKNOWN),
    7: ProduceError("REQUEST_TIMED_OUT", Answer.UNKNOWN),
    8: ProduceError("BROKER_NOT_AVAILABLE", Answer.UNKNOWN),
    9: ProduceError("REPLICA_NOT_AVAILABLE", Answer.UNKNOWN),
    10: ProduceError("MESSAGE_TOO_LARGE", Answer.REFUSED),
    13: ProduceError("NETWORK_EXCEPTION", Answer.UNKNOWN),
    17: ProduceError("INVALID_TOPIC_EXCEPTION", Answer.REFUSED),  # also a topic of Kafka's own
    18: ProduceError("RECORD_LIST_TOO_LARGE", Answer.REFUSED),
    19: ProduceError("NOT_ENOUGH_REPLICAS", Answer.UNKNOWN),
    20: ProduceError("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Answer.UNKNOWN),
    21: ProduceError("INVALID_REQUIRED_ACKS", Answer.NOT_NOW, "Leave acks=all"),
    29: ProduceError("TOPIC_AUTHORIZATION_FAILED", Answer.NOT_NOW, _RIGHTS),
    31: ProduceError("CLUSTER_AUTHORIZATION_FAILED", Answer.NOT_NOW, _RIGHTS),
    INVALID_TIMESTAMP: ProduceError("INVALID_TIMESTAMP", Answer.NOT_NOW, _CLOCKS),
    35: ProduceError("UNSUPPORTED_VERSION", Answer.NOT_NOW, "Use brokers of version 2.5 or newer"),
    42: ProduceError("INVALID_REQUEST", Answer.UNKNOWN),
    43: ProduceError(
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        Answer.NOT_NOW,
        "Let the topic use a message format with headers",
    ),
    44: ProduceError("POLICY_VIOLATION", Answer.UNKNOWN, "Look at the policies of the cluster"),
    45: ProduceError("OUT_OF_ORDER_SEQUENCE_NUMBER", Answer.UNKNOWN),
    46: ProduceError("DUPLICATE_SEQUENCE_NUMBER", Answer.UNKNOWN),
    47: ProduceError("INVALID_PRODUCER_EPOCH", Answer.UNKNOWN),
    48: ProduceError("INVALID_TXN_STATE", Answer.UNKNOWN),
    49: ProduceError("INVALID_PRODUCER_ID_MAPPING", Answer.UNKNOWN),
    51: ProduceError("CONCURRENT_TRANSACTIONS", Answer.UNKNOWN),
    53: ProduceError("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Answer.NOT_NOW, _RIGHTS),
    54: ProduceError("SECURITY_DISABLED", Answer.UNKNOWN),
    55: ProduceError("OPERATION_NOT_ATTEMPTED", Answer.UNKNOWN),
    56: ProduceError("KAFKA_STORAGE_ERROR", Answer.UNKNOWN, "Look at the broker's disks"),
    57: ProduceError("LOG_DIR_NOT_FOUND", Answer.UNKNOWN, "Look at the broker's disks"),
    58: ProduceError("SASL_AUTHENTICATION_FAILED", Answer.UNKNOWN, "Give the right credentials"),
    59: ProduceError("UNKNOWN_PRODUCER_ID", Answer.UNKNOWN),
    74: ProduceError("FENCED_LEADER_EPOCH", Answer.UNKNOWN),
    75: ProduceError("UNKNOWN_LEADER_EPOCH", Answer.UNKNOWN),
    76: ProduceError(
        "UNSUPPORTED_COMPRESSION_TYPE", Answer.NOT_NOW, "Choose another compression for the sink"
    ),
    77: ProduceError("STALE_BROKER_EPOCH", Answer.UNKNOWN),
    87: ProduceError("INVALID_RECORD", Answer.REFUSED),  # without a key in a compacted topic
    89: ProduceError("THROTTLING_QUOTA_EXCEEDED", Answer.UNKNOWN),
    90: ProduceError("PRODUCER_FENCED", Answer.UNKNOWN),
    100: ProduceError("UNKNOWN_TOPIC_ID", Answer.UNKNOWN),
    103: ProduceError("INCONSISTENT_TOPIC_ID", Answer.UNKNOWN),
    120: ProduceError("TRANSACTION_ABORTABLE", Answer.UNKNOWN),
}
"""The errors by their number in Kafka's protocol."""


def meaning_of(code: int) -> ProduceError:
    """The error with this number; ``UNCLEAR`` for one that is not in the table."""
    return PRODUCE_ERRORS.get(code, UNCLEAR)
