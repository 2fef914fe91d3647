"""The ways out. ``hand.py`` takes due rows from the wheel at their own millisecond and gives them
to a sink (``sink.py``), which answers for each row; the mark moves only after that answer.

A sink is a room of its own: ``kafka/``, ``embedded/``. A row that a sink refuses for good becomes a
dead letter.
"""
