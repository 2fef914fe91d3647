"""Follows the wheel's files, its topics and the audit topic, and reports the comparison of all
buckets. What it needs is a data directory, and the brokers if topics are Kafka's."""
