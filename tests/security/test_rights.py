"""What rights allow: topics by name and by prefix, flags, and one right for each operation."""

from __future__ import annotations

import pytest

from slotwheel.security import rights
from slotwheel.security.rights import (
    EVERYTHING,
    FLAGS,
    TOPIC_RIGHTS,
    Operation,
    Right,
    Rights,
    TopicList,
)
from slotwheel.wheel.errors import Forbidden, from_wire


@pytest.mark.parametrize(
    ("pattern", "topic", "member"),
    [
        ("orders", "orders", True),
        ("orders", "orders-eu", False),
        ("orders", "order", False),
        ("orders-*", "orders-eu", True),
        ("orders-*", "orders-", True),
        ("orders-*", "orders", False),
        ("*", "orders", True),
        ("*", "slotwheel-dead-letters", False),
        ("*", "__consumer_offsets", False),
        ("s*", "slotwheel-trace", False),
        ("slotwheel*", "slotwheel-trace", False),
        ("slotwheel*", "slotwheels", True),
        ("_*", "__transaction_state", False),
        ("slotwheel-*", "slotwheel-trace", True),
        ("slotwheel-trace", "slotwheel-trace", True),
        ("__*", "__consumer_offsets", True),
        ("*", "", False),
        ("orders*", "orders*", True),
        ("*", "\ufffd", True),
    ],
)
def test_which_topics_a_pattern_means(pattern: str, topic: str, member: bool) -> None:
    topics = TopicList([pattern])
    for _ in range(2):  # the second time by the memo
        assert topics.has(topic) is member
        assert topics.has(topic.encode()) is member


def test_made_up_names_do_not_fill_the_memory() -> None:
    topics = TopicList(["a*"])
    for number in range(3 * rights._MEMO_MAX):
        assert topics.has(f"a{number}")
        assert not topics.has(b"b%d" % number)
    assert len(topics._memo) <= rights._MEMO_MAX


@pytest.mark.parametrize("operation", Operation)
def test_an_operation_needs_its_right_and_no_other(operation: Operation) -> None:
    right = operation.right
    for given in (*TOPIC_RIGHTS, *FLAGS):
        having = Rights({given: ["orders"]} if given in TOPIC_RIGHTS else {}, {given} & {*FLAGS})
        allowed = given is right or right in rights.OF_ALL or given is Right.GATEWAY
        assert having.may(operation, "orders") is allowed
        assert having.may(operation) is allowed
        if right in TOPIC_RIGHTS and given is right:
            assert not having.may(operation, "payments")
        if not allowed:
            with pytest.raises(Forbidden, match=f"{operation.label} for topic 'orders'"):
                having.demand(operation, "orders")
    assert Rights({}).may(operation, "orders") is (right in rights.OF_ALL)
    assert EVERYTHING.may(operation, "slotwheel-trace")


def test_every_operation_has_one_right() -> None:
    labels = [operation.label for operation in Operation]
    assert len(labels) == len(set(labels)) == len(Operation.__members__)
    assert all(type(operation.right) is Right for operation in Operation)
    assert all(Operation.named(operation.label) is operation for operation in Operation)
    assert Operation.named("made-up") is None


def test_a_refusal_names_operation_and_topic_over_the_wire() -> None:
    with pytest.raises(Forbidden) as refused:
        Rights({}).demand(Operation.APPEND, "orders")
    error = from_wire(refused.value.to_wire())
    assert isinstance(error, Forbidden)
    assert "append" in str(error)
    assert "'orders'" in str(error)
    assert not error.retryable


def test_a_flag_is_for_own_topics_only_with_a_role_that_names_them() -> None:
    operation = Operation.DELETE_TOPIC
    for patterns, allowed in ([], False), (["*"], False), (["slotwheel-trace*"], True):
        both = Rights({Right.SCHEDULE: patterns}, [Right.ADMIN])
        assert both.may(operation, "slotwheel-trace") is allowed
        assert both.may(operation, "orders")
        assert not Rights({Right.SCHEDULE: patterns}).may(operation, "orders")
        assert not both.may(operation, "__consumer_offsets")
    with pytest.raises(Forbidden, match="'schedule' that names the topic"):
        Rights({}, [Right.ADMIN]).demand(operation, "slotwheel-trace")
