"""The parts of Spark's sources (``source.py``, ``stream.py``): options, paths, views."""
