"""Audit: counts and sums of ids by topic and due time, of each tier that messages pass.

Clients and consumers call an ``Auditor``, which sends a batch of sums every few seconds;
``audit/watch`` reads these and the wheel's files, and compares the tiers.
"""

from typing import TYPE_CHECKING

from ..trace.events import AUDIT_TOPIC
from ..wheel.lazy import late

if TYPE_CHECKING:
    from .auditor import Auditor
else:
    __getattr__ = late(__name__, {"Auditor": "auditor"})

__all__ = ["AUDIT_TOPIC", "Auditor"]
