"""The sink that needs no Kafka: topics as files in the data directory.

Comes in: due rows. Goes out: topic files that any Arrow reader opens, and an index of their durable
blocks.
"""
