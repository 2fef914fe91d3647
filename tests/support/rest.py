"""What requests of Kafka's REST proxy and its answers have in common."""

from __future__ import annotations

import httpx

V2 = "application/vnd.kafka.v2+json"
BINARY = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


def refused(answer: httpx.Response, code: int) -> str:
    """The message of an error in that interface's form."""
    assert answer.headers["content-type"] == V2, answer.text
    body = answer.json()
    assert set(body) == {"error_code", "message"}
    assert body["error_code"] == code, body
    assert answer.status_code == int(str(code)[:3])
    return str(body["message"])
