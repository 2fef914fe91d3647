"""The library of an application: the client, its messages and its receipts.

A client gathers messages, sends each batch to a node as one Arrow record batch, and returns
receipts from which every message's id follows. Nothing here depends on how a node stores or
delivers; of the engine only formats, ids and errors are used.
"""

from typing import TYPE_CHECKING

from ..wheel.lazy import late

if TYPE_CHECKING:
    from .client import Client
    from .message import Message
    from .receipts import Receipt, Receipts
else:
    __getattr__ = late(
        __name__,
        {"Client": "client", "Message": "message", "Receipt": "receipts", "Receipts": "receipts"},
    )

__all__ = ["Client", "Message", "Receipt", "Receipts"]
