"""The wire: frames over TCP, between clients and nodes and between peers.

Comes in: connections, bytes of anybody.
Goes out: frames of a known kind, each within its limit, and sessions of those who have said hello.
"""
