"""What is known of a request after each way in which its tries can end."""

from __future__ import annotations

import itertools

import pytest

from slotwheel.client.tries import Tries
from slotwheel.wheel.errors import (
    InvalidMessage,
    NotMaster,
    NotRunning,
    Overloaded,
    SlotwheelError,
)

_CLEAR = [Overloaded("full"), InvalidMessage("too large")]
_UNCLEAR = [NotRunning("it ends"), NotMaster("a standby"), Overloaded("full").in_doubt()]
_LOST = None


def test_what_was_never_sent_leaves_no_doubt() -> None:
    assert not Tries().in_doubt


@pytest.mark.parametrize("count", [1, 2, 3])
def test_only_clear_refusals_leave_no_doubt(count: int) -> None:
    for answers in itertools.product([_LOST, *_CLEAR, *_UNCLEAR], repeat=count):
        tries = Tries()
        for answer in answers:
            tries.sent()
            assert tries.in_doubt
            if isinstance(answer, SlotwheelError):
                tries.refused(answer)
        assert tries.in_doubt == any(one not in _CLEAR for one in answers), answers
