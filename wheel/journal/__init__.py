"""The journal: the log on disk, and the order of what is appended to it.

Comes in: batches, marks and cancels to be written; entries of a peer.
Goes out: durable entries in their order, and after a crash what of them counts.
"""
