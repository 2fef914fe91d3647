"""The tail: committed rows that are in no slot file yet, in memory.

Comes in: rows of committed entries, from one row up.
Goes out: pieces of many rows, for readers and for the spill.
"""
