"""Each wheel is asked in bounded time, whatever the others do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slotwheel.client.httpconnection import GatewayAccess
from slotwheel.gateway.authentication import TOPICS
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.front.asking import WheelGateways
from slotwheel.wheel.errors import NodeUnreachable
from support.ports import free_port
from support.stubgateway import silent_gateway, stub_gateway

ANSWER_S = 2.0


@contextlib.contextmanager
def gateways_at(**addresses: list[str]) -> Iterator[WheelGateways]:
    gateways = WheelGateways(tuple(addresses), addresses, GatewayAccess(), ANSWER_S)
    try:
        yield gateways
    finally:
        gateways.close()


def answers(status: int, body: Any) -> Any:
    return lambda *_: (status, body)


def test_a_wheel_that_hangs_keeps_no_other_from_being_asked() -> None:
    """With one pool of 64 threads, 200 questions to a wheel that hangs would hold all of them for
    three seconds, and the wheel that answers would be missing in most."""
    with (
        silent_gateway() as hanging,
        stub_gateway(answers(200, {"n": 1})) as well,
        gateways_at(north=[hanging], south=[well]) as gateways,
    ):

        async def ask_many() -> list[tuple[dict[str, Any], list[str]]]:
            questions = dict.fromkeys(gateways.names, "/v1/x")
            return await asyncio.gather(*(gateways.ask_each(questions, dict) for _ in range(200)))

        began = time.monotonic()
        found = asyncio.run(ask_many())
        assert time.monotonic() - began < 4 * ANSWER_S
        for answered, problems in found:
            assert answered == {"south": {"n": 1}}
            assert [text.partition(": ")[0] for text in problems] == ["the wheel north is missing"]


def test_who_hangs_is_named_in_time_also_where_all_threads_wait_for_it() -> None:
    """And it is asked again as soon as it is well."""
    with (
        silent_gateway() as hanging,
        gateways_at(north=[hanging]) as gateways,
    ):
        begun = [gateways.submit("north", "GET", "/v1/x", dict, busy=True) for _ in range(8)]
        began = time.monotonic()
        answered, problems = gateways.ask_now({"north": "/v1/x"}, dict, None)
        assert time.monotonic() - began < 4 * ANSWER_S
        assert (answered, len(problems)) == ({}, 1)
        assert not any(call.done() for call in begun)


def test_a_question_that_is_given_up_frees_its_thread() -> None:
    with silent_gateway() as hanging, gateways_at(north=[hanging]) as gateways:

        async def ask_many() -> list[tuple[dict[str, Any], list[str]]]:
            question = {"north": "/v1/x"}
            return await asyncio.gather(*(gateways.ask_each(question, dict) for _ in range(20)))

        assert all(not answered for answered, _ in asyncio.run(ask_many()))
        with stub_gateway(answers(200, {"n": 4})) as well:
            gateways._addresses["north"] = [well]
            assert gateways.submit("north", "GET", "/v1/x", dict).result(ANSWER_S) == {"n": 4}


def test_the_next_gateway_is_asked_where_one_cannot_be_reached() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    with (
        stub_gateway(answers(200, {"n": 2})) as second,
        gateways_at(north=[gone, second], south=[gone]) as gateways,
    ):
        assert gateways.ask("north", "GET", "/v1/x", dict) == {"n": 2}
        with pytest.raises(NodeUnreachable, match="gateway not reachable"):
            gateways.ask("south", "GET", "/v1/x", dict)


def test_a_gateway_that_is_silent_is_asked_last_from_then_on() -> None:
    with (
        silent_gateway() as hanging,
        stub_gateway(answers(200, {"n": 3})) as second,
        gateways_at(north=[hanging, second]) as gateways,
    ):
        with pytest.raises(NodeUnreachable, match="does not answer"):
            gateways.ask("north", "POST", "/v1/x", dict)
        began = time.monotonic()
        assert gateways.ask("north", "POST", "/v1/x", dict) == {"n": 3}
        assert time.monotonic() - began < ANSWER_S / 2


def test_what_the_question_caused_is_the_answer_and_what_the_gateways_lack_is_not() -> None:
    with (
        stub_gateway(answers(422, {"message": "too much", "place": "query", "got": "7"})) as strict,
        stub_gateway(answers(403, {"message": "may not"})) as closed,
        stub_gateway(answers(200, ["no object"])) as strange,
        gateways_at(strict=[strict], closed=[closed], strange=[strange], none=[]) as gateways,
    ):
        with pytest.raises(HttpError) as error:
            gateways.ask("strict", "GET", "/v1/x", dict)
        assert (error.value.status, error.value.place, error.value.got) == (422, "query", "7")
        questions = dict.fromkeys(("closed", "strange", "none"), "/v1/x")
        answered, problems = asyncio.run(gateways.ask_each(questions, dict))
        assert not answered
        assert "403" in problems[0]
        assert "Expected `object`" in problems[1]
        assert "names no gateway" in problems[2]


def test_a_job_is_looked_for_at_each_gateway_of_its_wheel() -> None:
    with (
        stub_gateway(answers(404, {"message": "no such job"})) as other,
        stub_gateway(answers(200, {"id": "1"})) as keeper,
        gateways_at(north=[other, keeper], south=[other]) as gateways,
    ):
        assert gateways.ask("north", "GET", "/v1/jobs/1", dict, kept_by_one=True) == {"id": "1"}
        with pytest.raises(NodeUnreachable, match="forgotten"):
            gateways.ask("south", "GET", "/v1/jobs/1", dict, kept_by_one=True)
        with pytest.raises(HttpError):
            gateways.ask("north", "GET", "/v1/jobs/1", dict)


def test_a_gateway_hears_of_the_callers_topics_only_where_they_are_limited() -> None:
    heard: list[dict[str, str]] = []

    def hear(_: str, __: str, headers: dict[str, str]) -> tuple[int, Any]:
        heard.append(headers)
        return 200, {}

    with stub_gateway(hear) as address, gateways_at(north=[address]) as gateways:
        gateways.ask("north", "GET", "/v1/x", dict)
        gateways.ask("north", "GET", "/v1/x", dict, topics=["a", "b-*"])
        gateways.ask("north", "GET", "/v1/x", dict, topics=[])
    name = TOPICS.decode()
    assert name not in heard[0]
    assert [json.loads(headers[name]) for headers in heard[1:]] == [["a", "b-*"], []]
