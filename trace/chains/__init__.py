"""Puts events of the store beside what the wheel's files say of messages: all that happened to one
of them in its order, how long each step took, and the anomalies of many."""
