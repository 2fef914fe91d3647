"""Names in Kafka: the headers that slotwheel adds to a record, and its own topic.

They are a format: readers of topics rely on them. Nothing is imported here, so that a reader does
not load what delivers.
"""

ID_HEADER = "slotwheel-id"
DUE_HEADER = "slotwheel-due-ms"
CREATED_HEADER = "slotwheel-created-ms"

DEAD_LETTER_TOPIC = "slotwheel-dead-letters"
REASON_HEADER = "slotwheel-dead-reason"
EXPIRED_REASON = "expired"
"""The reason of a dead letter whose time was over when it would have been delivered."""
TOPIC_HEADER = "slotwheel-dead-topic"
PARTITION_HEADER = "slotwheel-dead-partition"
