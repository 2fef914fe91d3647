"""How to reach a Kafka, for whoever talks with one: settings, sources, calls with limits.

Comes in: settings as a user writes them. Goes out: those of each client, and errors with remedies.
"""
