"""A data directory seen from outside, whether a node runs on it or not. No node imports this room.

Comes in: directories (journal, slot files, state, topics), perhaps damaged, perhaps being written.
Goes out: what is in them, as events and columns; damage is reported, never raised.
"""
