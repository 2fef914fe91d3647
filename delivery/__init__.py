"""The ways out of a node: ``hand.py`` takes due rows from the wheel, and a sink answers for each.

Comes in: chunks of due rows. Goes out: records in Kafka (``kafka/``) or in topics of the data
directory (``embedded/``), dead letters, and the answers after which the mark moves.
"""
