"""What Spark's sources (``source.py``, ``stream.py``) are made of: options, paths, views."""
