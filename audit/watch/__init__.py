"""Follows the tiers and compares them: the wheel's files, its topics, and the audit topic.

Comes in: a data directory, brokers if topics are Kafka's. Goes out: reports of all buckets.
"""
