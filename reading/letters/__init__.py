"""Dead letters: reading them, and sending them again to the topics they were addressed to.

Comes in: records of a dead-letter topic, embedded or of a Kafka. Goes out: letters as columns, and
messages for a node, each letter once. No node imports this room.
"""
