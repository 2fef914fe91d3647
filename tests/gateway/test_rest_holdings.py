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


def test_a_position_that_is_sought_while_its_partition_goes_is_not_committed() -> None:
    """It would be set in the middle of what another member reads."""
    holdings = Holdings(auto_commit=True)
    holdings.assigned([PLACE], None)
    assert holdings.missing([PLACE]) == []
    holdings.revoked([PLACE])
    holdings.sought({PLACE: 7})
    assert holdings.uncommitted() == {}


def test_a_commit_that_ends_when_its_partition_has_gone_counts_for_nothing() -> None:
    """The group may be elsewhere when the partition comes back, and there again later."""
    holdings = Holdings(auto_commit=True)
    holdings.assigned([PLACE], None)
    holdings.sought({PLACE: 7})
    committing = holdings.uncommitted()
    holdings.revoked([PLACE])
    holdings.committed(committing)
    holdings.assigned([PLACE], None)
    holdings.sought({PLACE: 7})
    assert holdings.uncommitted() == {PLACE: 7}
