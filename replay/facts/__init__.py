"""From rows to facts: the work of Spark's tasks on each file, and on Kafka's records."""
