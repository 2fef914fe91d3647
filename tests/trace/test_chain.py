"""Events of a client and a consumer beside a real node, through the trace topic of that node."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from slotwheel import Client, Consumer, Message, Received
from slotwheel.consumer.observing import HELD_S
from slotwheel.trace import TRACE_TOPIC, Tracer, WheelTarget, decode
from support.nodeprocess import NodeProcess, topic_rows
from support.tracing import KeptEvents, listed
from support.waiting import eventually


def _events(data: Path) -> list[dict[str, Any]]:
    values = (row["value"] for row in topic_rows(data, TRACE_TOPIC))
    events = [event for value in values for event in listed(decode(value)[1])]
    return sorted(events, key=lambda event: event["number"])


def test_the_chain_of_each_message_is_what_happened_to_it(tmp_path: Path) -> None:
    """0 is processed, 1 fails once, 2 fails until it is a dead letter, 3 is given up at once."""
    with NodeProcess(tmp_path / "data") as node:
        tracer = Tracer(WheelTarget(node.address), client="test")
        with Client(node.address, observer=tracer) as client:
            ids = [client.send("orders", b"%d" % one, key=b"k", delay=0).id for one in range(4)]
        handled: list[str] = []
        with Consumer(
            *("orders", "billing"),
            data=node.data,
            wheel=node.address,
            retry="100ms 200ms",
            observer=tracer,
        ) as consumer:
            while len(handled) < 7:
                for message in consumer.take(10, 20.0):
                    number = int(message.value or b"")
                    handled.append(f"{number}:{message.attempt}")
                    if number == 3:
                        consumer.dead(message, "useless")
                    elif number == 2 or (number == 1 and message.attempt == 1):
                        consumer.retry(message, ValueError("not now"))
                    else:
                        consumer.done(message)
                        consumer.done(message)  # of two answers the first counts
            consumer.commit()
        tracer.close()
        assert (tracer.dropped, tracer.sent) == (0, tracer.noted)
        eventually(lambda: len(_events(node.data)) == tracer.noted)
        events = _events(node.data)
    chains: dict[str, list[str]] = defaultdict(list)
    sent: Counter[str] = Counter()
    for event in events:
        origin = event["origin"] or event["id"]
        if event["kind"] == "produced":
            sent[origin] += 1
        elif origin is not None:
            failed = "!" if event["error"] else ""
            chains[origin].append(f"{event['kind']}{failed}{event['attempt'] or ''}")
    tried = ["processed!1", "retried1"]
    assert chains == {
        ids[0]: ["processed1"],
        ids[1]: [*tried, "processed2"],
        ids[2]: [*tried, "processed!2", "retried2", "processed!3", "dead!3"],
        ids[3]: ["processed!1", "dead!1"],
    }
    assert sent == dict(zip(ids, [1, 2, 4, 2], strict=True))
    positions = {one["topic"]: one["offset"] for one in events if one["kind"] == "committed"}
    assert positions == {"orders": 4, "billing-retry": 3}
    assert all(one["group"] == "billing" for one in events if one["kind"] != "produced")
    processed = [one for one in events if one["kind"] == "processed"]
    assert all(0 <= one["took_us"] < 60_000_000 for one in processed)


def test_what_an_application_has_for_long_is_told_before_it_answers_and_at_the_end(
    tmp_path: Path,
) -> None:
    kept = KeptEvents()
    tracer = Tracer(kept)
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address) as client:
            client.send_many(Message("orders", b"v", delay=0) for _ in range(3)).result()
        with Consumer(
            "orders", "billing", data=node.data, wheel=node.address, observer=tracer
        ) as consumer:
            messages: list[Received] = []
            while len(messages) < 3:
                messages += consumer.take(3 - len(messages), 20.0)
            consumer.done(messages[0])
            eventually(lambda: "received" in {one["kind"] for one in kept.events})
            consumer.done(messages[1])
    events = [one for one in kept.of(tracer) if one["kind"] != "committed"]
    assert [(one["kind"], one["offset"]) for one in events if one["offset"] != 2] == [
        *(("processed", 0), ("received", 1), ("processed", 1))
    ]
    assert [one["kind"] for one in events if one["offset"] == 2] == ["received"]
    received, processed = (one for one in events if one["offset"] == 1)
    assert abs((received["at"] - processed["at"]).total_seconds()) < 0.1
    assert HELD_S * 1e6 < received["took_us"] <= processed["took_us"]


def test_what_an_application_still_has_at_the_end_is_told(tmp_path: Path) -> None:
    kept = KeptEvents()
    tracer = Tracer(kept)
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address) as client:
            client.send("orders", b"v", delay=0).result()
        with Consumer(
            "orders", "billing", data=node.data, wheel=node.address, observer=tracer
        ) as consumer:
            assert consumer.take(1, 20.0)
    (event,) = kept.of(tracer)
    assert (event["kind"], event["offset"], event["group"]) == ("received", 0, "billing")
    assert tracer.dropped == 0
