"""Slot files: where rows rest until they are due; their catalog, their archive, their repair.

Comes in: the tail's rows, by a spill.
Goes out: the rows of a second, from file and tail; disk space, once all rows of a file have left.
"""
