"""Search for pending messages in a data directory, from outside. No node imports this room.

Comes in: a data directory, whether a node runs on it or not, and a query. Goes out: pages of
pending messages in due order, counts, the fates of ids, and bulk cancels.
"""
