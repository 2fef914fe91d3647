"""The v2 conventions of Kafka's REST proxy, over embedded topics or over Kafka.

In: its requests, content types and errors. Out: messages for the wheel; topics, their partitions
and their records, read as a member of a consumer group.
"""
