"""The check of a data directory: every byte against its checksum, its catalog and its neighbours.

Comes in: the files and the state of one directory. Goes out: one ``CheckedFile`` a file, with all
its faults; the rows that can be saved of a slot.
"""
