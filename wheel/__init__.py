"""The engine: schema, ids, errors, journal, slot files, state, mark, and the wheel itself.

Files and time are handed in: nothing in this room starts a thread, opens a socket, reads a clock
or knows Kafka, so that a test can stop it at any write and move its time as it likes.
"""
