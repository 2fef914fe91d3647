"""Accounts of messages: they came to a boundary, so many came out of it, and that means something.

Comes in: how often messages were seen on both sides of a boundary, one by one or as sums. Goes out:
a verdict for each. ``audit/`` looks beside a node, by sums; ``replay/`` in Spark, by ids.
"""
