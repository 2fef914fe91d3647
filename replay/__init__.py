"""Proves from the files of a wheel group, and from the records in its topics, that each accepted
message was delivered once, in time. PySpark; no node imports anything of it.

Data goes through the room in this order:

    reading/ -> facts/     a fact of 64 bytes for each row that was read, in Spark's tasks
             -> judging/   all facts of a message side by side: what became of it
             -> report/    the verdict as values, JSON and a page

``proof`` goes this way once; ``following/`` goes it window by window, beside running nodes.
"""
