"""Fetches from another peer over a call of its own: a snapshot, or one slot's rows.

Comes in: a request that names what is missing. Goes out: chunks of files, or blocks of rows, which
the fetching peer checks by itself.
"""
