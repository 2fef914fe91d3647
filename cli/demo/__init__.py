"""``slotwheel demo``: nodes in processes of their own, a client, kills, and the proof.

In come a few numbers (how many messages, over how long, how many peers). Out comes what the client
was promised, held against what stands in the topics' files; nothing that a node says is believed.
"""
