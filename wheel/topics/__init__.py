"""The files of embedded topics: their format, the log of one partition, and its damage.

Comes in: rows that leave. Goes out: files that readers in other processes take without asking.
"""
