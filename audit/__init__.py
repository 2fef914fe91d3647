"""Audit: counts and sums of ids by topic and due time, of each tier that messages pass.

Comes in: what clients and consumers tell an observer. Goes out: a batch of sums each few seconds
(``Auditor``), and what a comparison of the tiers says (``compare``). Who compares: ``audit/watch``.
"""

from typing import TYPE_CHECKING

from ..trace.events import AUDIT_TOPIC
from ..wheel.lazy import late

if TYPE_CHECKING:
    from .auditor import Auditor
else:
    __getattr__ = late(__name__, {"Auditor": "auditor"})

__all__ = ["AUDIT_TOPIC", "Auditor"]
