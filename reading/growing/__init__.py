"""Reading beside a node that writes: how far its files reach now, and what is new in them.

Comes in: the positions of the last look. Goes out: the next positions, and the parts of files that
lie between.
"""
