"""How the tests' Java processes are run."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a process that lives for seconds or minutes: Java's second compiler and its collector
of many threads take as much processor time as all else, and pay it back only later."""
