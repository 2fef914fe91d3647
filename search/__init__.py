"""What is pending in a data directory, found from outside. No node imports this room.

Comes in: a data directory, whether a node runs on it or not, and a query.
Goes out: pages of pending messages in due order, counts, what became of an id; and bulk cancels.
"""
