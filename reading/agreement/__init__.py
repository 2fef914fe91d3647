"""The comparison of two peers: their journals, and every row that is still to be delivered.

Comes in: two data directories. Goes out: one ``Agreement``: how much was compared, and each
difference.
"""
