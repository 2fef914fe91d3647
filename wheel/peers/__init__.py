"""A wheel that is one of several: what a standby stores, and what peers send one another.

Comes in: entries, positions and snapshots from ``replication/``.
Goes out: entries to ship, snapshots, the rows of a slot that is damaged elsewhere.
"""
