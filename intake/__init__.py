"""The ways in: the Arrow Flight server and the Kafka delay topic.

Here a message is encoded once, into a record batch, and every batch from outside is validated
before anything else looks at it. From here on no code touches single messages in Python.
"""
