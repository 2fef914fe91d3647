"""``slotwheel demo``: nodes in processes of their own, a client, kills, and the proof.

Comes in: how many messages, over how long, how many peers. Goes out: the client's receipts compared
with the topics' files. Reports of nodes do not count: a node that loses messages may miscount them.
"""
