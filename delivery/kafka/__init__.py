"""Sinks that write to Kafka, with kafka-python or confluent-kafka.

Comes in: due rows. Goes out: records with their headers, and for each row the broker's answer.
"""
