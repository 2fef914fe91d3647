"""The command line: one click command a file, and one place that turns errors into exit codes.

This is the only room that reads the environment.
"""
