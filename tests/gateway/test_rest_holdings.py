"""What a consumer instance holds, and up to where it may be committed."""

from __future__ import annotations

from slotwheel.consumer.message import Received, SourcePartition
from slotwheel.gateway.rest.holdings import Holdings

PLACE = SourcePartition("orders", 0)


def test_no_commit_passes_records_that_were_taken_and_put_back() -> None:
    """The client goes away while more is read for it, and a mark of a transaction comes behind."""
    holdings = Holdings(auto_commit=True)
    holdings.assigned([PLACE], None)
    records = [Received("orders", 0, offset, None, b"x", [], 0) for offset in range(3)]
    holdings.keep(records, {PLACE: 2})
    taken = holdings.take(1 << 20, 10, first=True)
    for _ in range(2):
        holdings.keep([], {PLACE: 3})
        assert holdings.finished([PLACE]) == {}
        holdings.put_back(taken)
        holdings.keep([], {PLACE: 3})
        assert holdings.finished([PLACE]) == {}
        taken = holdings.take(1 << 20, 10, first=True)
    holdings.gave(taken)
    assert holdings.finished([PLACE]) == {PLACE: 4}
