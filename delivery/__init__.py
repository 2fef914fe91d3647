"""The ways out. ``hand.py`` takes due rows from the wheel at their own millisecond and gives them
to a sink (``sink.py``), which answers for each row; only after that answer does the mark move.

A sink is a room of its own: ``kafka/``, ``embedded/``. What none takes becomes a dead letter.
"""
