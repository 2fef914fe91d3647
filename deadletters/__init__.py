"""Dead letters: what lies in a dead-letter topic, and sending it where it was meant to go.

In: records of the topic, embedded or of a Kafka. Out: letters as columns, and messages for a node,
each letter once. No node imports this room.
"""
