"""Slot files: where rows rest until they are due; their catalog, their archive, their repair.

Comes in: the tail's rows, by a spill.
Goes out: a second's rows as they stand in file and tail, and room on the disk once all have left.
"""
