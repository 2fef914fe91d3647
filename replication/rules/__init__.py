"""The rules of replication, without a clock, a socket, a thread or a file.

Comes in: messages, the time, what is durable here.
Goes out: one ``Ready`` each time: what to persist, then to send, then to commit.
"""
