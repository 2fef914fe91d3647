"""Names that stand in Kafka: the headers slotwheel adds to a record, and the topic of its own.

They are a format: who reads topics later relies on them. Nothing is imported here, so that a reader
needs nothing of what delivers.
"""

ID_HEADER = "slotwheel-id"
DUE_HEADER = "slotwheel-due-ms"
CREATED_HEADER = "slotwheel-created-ms"

DEAD_LETTER_TOPIC = "slotwheel-dead-letters"
REASON_HEADER = "slotwheel-dead-reason"
TOPIC_HEADER = "slotwheel-dead-topic"
PARTITION_HEADER = "slotwheel-dead-partition"
