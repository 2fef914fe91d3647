"""The engine. The wheel as a whole is ``wheel.py``; ``dispatcher.py`` is what only a master has.

Lives here: what every room below shares (errors, schema, ids, mark, the two seams to the disk).
Comes in: record batches, the time, a directory. Goes out: receipts, and chunks of due rows.
No thread, no socket, no clock, no Kafka: a test stops it at any write and moves its time.
"""
