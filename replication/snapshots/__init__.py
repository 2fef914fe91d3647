"""Fetches from another peer over a channel of its own: a snapshot, or one slot's rows.

Comes in: a request that names what is missing. Goes out: parts of files, or blocks of rows, which
the fetching peer checks by itself.
"""
