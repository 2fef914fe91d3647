"""Who connects: proofs of identity, and the files that they are made of.

Comes in: certificates, keys and other files of secrets, bytes of TLS.
Goes out: names that were proven, and bytes that nobody else can read. It opens no socket.
"""
