"""Which message has which name: on disk as sorted runs, in memory what came since the last spill.

See ``wheel/names.py`` for what a name is, and docs/formats.md, "Names", for the files.
"""
