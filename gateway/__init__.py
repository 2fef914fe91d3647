"""The gateway: HTTP for programs without Arrow or a Kafka client, in a process of its own.

In: requests of many connections. Out: a few large batches to the master by one ``Client``, and
answers when they are stored. What can be read is read in the data directory, from outside.
"""
