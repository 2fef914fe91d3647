"""What an application uses: the client, its messages and its receipts.

A client batches what it is given, sends each batch to a node as one Arrow record batch, and
answers with receipts from which every message's id follows. Nothing here knows how a node stores
or delivers; of the engine it uses only formats, ids and errors.
"""

from .client import Client
from .message import Message
from .receipts import Receipt, Receipts

__all__ = ["Client", "Message", "Receipt", "Receipts"]
