"""Replicated wheels: one master, standbys that hold the same log, failover without loss.

``rules/`` decides, ``transport/`` carries, ``snapshots/`` fetches; ``driver.py`` is the thread
between them.
"""
