"""``slotwheel dead``: dead letters are counted, shown, exported, deleted, and sent again.

Comes in: records of the topic. Goes out: counts, files, and messages for a node.
"""
