"""The ways out: the hand of the wheel, the sinks, and dead letters.

The hand takes due rows from the wheel at their own millisecond and gives them to a sink, which
answers for each row. Only after that answer does the mark move.
"""
