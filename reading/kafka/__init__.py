"""A topic of a real Kafka from outside, as Arrow batches: from its beginning to where it ends."""
