"""The text of topic ids, as Kafka's tools write it. An id tells a topic from a deleted one that had
the same name."""

from __future__ import annotations

import base64
import re
import uuid

_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def id_text(topic_id: str | uuid.UUID | None) -> str:
    """The text of an id from kafka-python; empty if the broker has no topic ids."""
    raw = b"" if topic_id is None else uuid.UUID(str(topic_id)).bytes
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() if any(raw) else ""


def is_topic_id(text: str) -> bool:
    """Returns True for a text that may be that of a topic id: 16 bytes."""
    return _ID.fullmatch(text) is not None
