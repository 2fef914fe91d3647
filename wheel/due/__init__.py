"""Delivery and its exceptions: marks that move, held-back topics, cancels.

Comes in: the time, a sink's answers, requests to cancel.
Goes out: chunks of rows that are due, and true answers about cancels.
"""
