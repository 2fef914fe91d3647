"""What one peer fetches from another over a call of its own: a snapshot, or one slot's rows.

Comes in: a request of what is missing.
Goes out: chunks of files, or blocks of rows, that whoever asked checks by itself.
"""
