"""The v2 conventions of Kafka's REST proxy, over embedded topics or over Kafka.

Comes in: requests of that interface. Goes out: messages for the wheel; topics, their partitions and
their records, read as a member of a consumer group; errors in that interface's form.
"""
