"""Replicated wheels: one master, standbys that hold the same log, failover without loss.

``rules/`` decides, ``transport/`` carries messages, ``snapshots/`` fetches files; ``driver.py`` is
the thread between them and the wheel, ``effects.py`` carries its decisions out.
"""
