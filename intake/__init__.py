"""The ways in: the node's end of the wire, and the Kafka delay topic.

Here a message is encoded once, into a record batch, and every batch from outside is validated
before it is used. From here on no Python code touches single messages.
"""
