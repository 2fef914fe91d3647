"""What is decided about a message besides when it is due: levels, retries, rules over headers,
routes, and what a dead letter says. Values go in and values come out: no file, no network, no
clock. Data: settings and a record's headers in; topics, due times and headers out."""
