"""``slotwheel dead``: what lies in a dead-letter topic, and sending it where it was meant to go.
Data: records of the topic in; counts, files and messages for a node out."""
