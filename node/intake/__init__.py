"""The ways in: the node's end of the wire, and the Kafka delay topics.

Comes in: record batches and plain rows of clients, records of Kafka. Goes out: validated record
batches for the wheel, and the answers. Behind this room no Python code touches single messages.
"""
