"""Every byte of a data directory against its checksum, its catalog and its neighbours.

Comes in: the files and the state of one directory.
Goes out: one ``CheckedFile`` a file, with all that is wrong with it; what can be saved of a slot.
"""
