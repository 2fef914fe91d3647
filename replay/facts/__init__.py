"""From rows to facts: what Spark's tasks make of each file, and of Kafka's records."""
