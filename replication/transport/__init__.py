"""Bytes between peers: mailboxes over the wire.

Comes in: messages and entries to send; streams of other peers.
Goes out: messages that were checked and decoded, in the order of their lane.
"""
