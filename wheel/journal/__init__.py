"""The journal: the log on disk, and the order in which things get there.

Comes in: batches, marks and cancels to be written; entries of a peer.
Goes out: durable entries in their order, and after a crash what of them counts.
"""
