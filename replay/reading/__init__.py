"""Finding and reading what nodes, topics and producers left. Damage is told, never raised."""
