"""A crowd: what do hundreds of programs get that send a message over HTTP each second?

Each connection sends one message every second and waits for its answer, alone, and beside a client
that sends batches to the same node as fast as it takes them; with a key for each request, and
without. The time of an answer counts from when its request was due to be sent.

    python -m benchmarks.crowd [--connections 500] [--seconds 120]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ._load import Clients, Load, Sent
from .gateway import GatewayBesideNode
from .harness import Report, data_directory, options, raw_write_rate

_ESTIMATE = (
    "500 requests a second are a twentieth of what a gateway can do, so an answer takes what a sync"
    " takes, 2 to 5 ms; beside batches it waits for theirs in the node and for its turn on two"
    " cores that are full: some tens of ms. With a key a request is a batch of its own, which costs"
    " gateway and node a quarter of a millisecond each: 500 are a quarter of both cores"
)
_VALUE_BYTES = 100
_EVERY_S = 1.0
_BULK_ROWS = 1_000


@dataclass
class Answers:
    """``waits``: seconds, of those that were stored."""

    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120.0, help="beside batches")
    chosen = parser.parse_args(arguments)
    count = min(chosen.connections, 50) if chosen.quick else chosen.connections
    seconds = min(chosen.seconds, 3.0) if chosen.quick else chosen.seconds
    with data_directory(chosen.dir) as directory:
        report = Report("a crowd over HTTP", _ESTIMATE, directory)
        report.begin()
        raw = raw_write_rate(directory, 700, 1.0) / 700
        report.figure("raw write + fdatasync, 1/s", raw, f"{raw:,.0f}")
        for keys in (False, True):
            with GatewayBesideNode(directory / f"data-{keys}") as gateway:
                who = f"{count} connections{', with keys' if keys else ''}"
                _tell(report, who, _fleet(gateway, count, min(seconds, 20.0), keys=keys))
                load = Load(gateway.node.address, _BULK_ROWS, seconds=seconds + 2)
                bulk = Clients(load, 1)
                bulk.go()
                _tell(report, f"{who}, beside batches", _fleet(gateway, count, seconds, keys=keys))
                _tell_bulk(report, who, bulk.results(seconds + 120))
        report.end(chosen.json)
    return 0


def _tell(report: Report, who: str, found: Answers) -> None:
    report.figure(f"answers, {who}", len(found.waits), f"{len(found.waits):,}")
    report.figure(f"errors, {who}", len(found.errors), str(found.errors[:3] or 0), "0")
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(found.waits or [0.0], share)) * 1000
        report.figure(f"{name}, {who}, ms", value, f"{value:.1f}")


def _tell_bulk(report: Report, who: str, sent: Sequence[Sent]) -> None:
    rate = sum(one.messages / (one.ended - one.started) for one in sent)
    report.figure(f"messages/s in batches beside {who}", rate, f"{rate:,.0f}")


def _fleet(gateway: GatewayBesideNode, count: int, seconds: float, *, keys: bool) -> Answers:
    return asyncio.run(_all(gateway.place, count, seconds, keys=keys))


async def _all(place: tuple[str, int], count: int, seconds: float, *, keys: bool) -> Answers:
    found = Answers()
    run = os.urandom(6).hex()
    loop = asyncio.get_running_loop()
    begin = loop.time() + 1.0
    callers = (
        _caller(
            place,
            found,
            begin + _EVERY_S * number / count,
            begin + seconds,
            f"{run}-{number}" if keys else "",
        )
        for number in range(count)
    )
    await asyncio.gather(*callers)
    return found


async def _caller(
    place: tuple[str, int], found: Answers, first: float, end: float, key: str
) -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(*place)
    try:
        for number in itertools.count():
            at = first + number * _EVERY_S
            if at >= end:
                return
            await asyncio.sleep(max(0.0, at - loop.time()))
            writer.write(_request(f"{key}-{number}" if key else ""))
            status, body = await _answer(reader)
            if status == 201:
                found.waits.append(loop.time() - at)
            else:
                found.errors.append(f"{status} {body[:200]!r}")
    except (OSError, EOFError, ValueError) as error:
        found.errors.append(repr(error))
    finally:
        writer.close()


def _request(key: str) -> bytes:
    value = time.time_ns().to_bytes(8).hex().ljust(_VALUE_BYTES, "x")
    body = json.dumps({"topic": "fleet", "value": value, "delay_ms": 3_600_000})
    named = f"Idempotency-Key: {key}\r\n" if key else ""
    return (
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{named}Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


if __name__ == "__main__":
    sys.exit(main())
