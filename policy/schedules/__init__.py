"""Schedules: messages that come again and again, as rules. Comes in: a schedule as JSON, how far it
has come, and the time. Goes out: which of its runs become messages now, and when the next ones are
due. There is no network and no clock here; of files, only Python's own table of time zones."""
