"""Chains: events and what the wheel knows, put together for one message or for many.

Comes in: events of the store, and what became of messages by the wheel's files. Goes out: what
happened to a message in its order, how long each step took, and what was out of order.
"""
