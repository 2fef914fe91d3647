"""Topic ids, which tell a topic from another one that had its name, as Kafka's tools write them."""

from __future__ import annotations

import base64
import uuid


def id_text(topic_id: str | uuid.UUID | None) -> str:
    """The text of an id from kafka-python; empty if the broker has no topic ids."""
    raw = b"" if topic_id is None else uuid.UUID(str(topic_id)).bytes
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() if any(raw) else ""
