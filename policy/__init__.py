"""Decisions about a message besides its due time: levels, retries, rules over headers, routes, and
the headers of dead letters. Comes in: settings and a record's headers. Goes out: topics, delays and
headers. There is no file, no network and no clock here."""
