"""What do TLS and rights cost: batches, a caller that waits, the check of rights, HTTP?

Four nodes run at once: one without TLS, one with a certificate, one that asks for certificates of
clients as well and has a security file, and one whose file limits what is pending, too. One client
after the other sends to its own node, a few requests in a turn, so that all are measured on the
same machine at the same time.

The check of rights is measured alone, too: it is a part of what a batch costs, and too small to be
seen there. So is a record of TLS, by a processor that is awake and by one that has slept as long as
a disk syncs: whoever waits for a message wakes a processor some four times, and each time the first
code that runs takes ten times as long, whatever it does.

HTTP is one gateway after the other, in turns, by ``wrk``.

    python -m benchmarks.secured [--seconds 10] [--turns 3]

HTTP needs Debian's ``wrk`` (``make queues``).
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from slotwheel import Client, Tls
from slotwheel.node.intake.amounts import amounts_of
from slotwheel.node.intake.callers import Callers, ConnectedCaller
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.securityfile import SecurityFile
from slotwheel.security.tls import TlsFiles, TlsStream
from slotwheel.wheel.plain import PlainBatch
from slotwheel.wheel.rows import from_columns

from ._node import BenchNode
from .gateway import GatewayBesideNode, message_body
from .harness import Report, data_directory, options, warm_memory, with_tests_support
from .servers.server import Missing

_ESTIMATE = (
    "AES with the processor's own instructions takes 1 us for 4 kB, so a batch of 150 kB 40 us on"
    " each side, of 2,000 to 3,000 that both take for it: 1.04. A record of TLS costs some 3 us to"
    " make and 3 to read, both ways on both sides: 10 to 12 us of a caller that waits. The check is"
    " a look into a dict for each topic of a batch, and a kernel that finds which there are: 0.5 us"
    " for a row, 5 for 1,000"
)
_PLAIN, _TLS, _RIGHTS, _PENDING = _KINDS = (
    *("plain", "TLS", "TLS both ways and rights"),
    "the same and a quota of what is pending",
)
_TOPIC = "bench-orders"
_ROWS = 1_000
_BATCHES_A_TURN = 10
_STORED_A_TURN = 50
_CHECKS, _MEANS = 500, 100
_RECORDS, _SLEEP_S = 1_000, 0.0004
_SECURITY = f"""
[roles.bench]
schedule = ["{_TOPIC}", "a-*", "b-*", "c-*", "d", "e", "f"]
read = ["*"]

[members]
"cert:bench.example" = ["bench"]

[quotas."cert:bench.example"]
rows-per-second = 1000000000
bytes-per-second = 1000000000000
"""
_LIMITED = f"""{_SECURITY}
[quotas."cert:bench.example".pending."bench-*"]
rows = 1000000000
bytes = 1000000000000
"""


@dataclass
class _Case:
    """One node and its client. ``waits_s``: of a caller that waits; ``cpu_s``: processor time of
    node and client for what was counted by ``calls``."""

    node: BenchNode
    client: Client
    waits_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    calls: int = 0

    @property
    def each_us(self) -> float:
        """Processor time of node and client for a call."""
        return self.cpu_s / self.calls * 1e6


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure")
    parser.add_argument("--turns", type=int, default=3, help="of the gateways")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds, chosen.turns = min(chosen.seconds, 1.0), 1
    with data_directory(chosen.dir) as directory:
        report = Report("TLS and rights", _ESTIMATE, directory)
        report.begin()
        warm_memory(1.0 if chosen.warm_gib is None else chosen.warm_gib)
        given = _options(directory)
        with contextlib.ExitStack() as stack:
            cases = {kind: _case(stack, directory, kind, given) for kind in _KINDS}
            _tell_waits(report, cases, chosen.seconds)
            batch_us = _tell_batches(report, cases, chosen.seconds)
        _tell_records(report, given)
        _tell_checks(report, batch_us)
        _tell_http(report, directory, given, chosen.seconds / chosen.turns, chosen.turns)
        report.end(chosen.json)
    return 0


@dataclass(frozen=True)
class _Given:
    """Options of nodes and what clients prove, by kind. ``authority``: of the nodes; ``own``: a
    node's certificate."""

    authority: Path
    own: Tls
    node: dict[str, list[str]]
    client: dict[str, Tls | None]


def _options(directory: Path) -> _Given:
    with_tests_support()
    from support.certificates import Authority
    from support.securing import write_private

    nodes = Authority(directory / "certificates", "nodes")
    clients = Authority(directory / "certificates", "clients")
    own = nodes.issue("127.0.0.1", file="node")
    bench = clients.issue("bench.example", file="bench")
    tls = ["--tls-cert", str(own.cert), "--tls-key", str(own.key)]
    security = write_private(directory / "security.toml", _SECURITY)
    limited = write_private(directory / "limited.toml", _LIMITED)
    both = [*tls, "--client-ca", str(clients.ca), "--security"]
    as_client = Tls(ca=nodes.ca, cert=bench.cert, key=bench.key)
    return _Given(
        nodes.ca,
        Tls(cert=own.cert, key=own.key),
        {
            _PLAIN: [],
            _TLS: tls,
            _RIGHTS: [*both, str(security)],
            _PENDING: [*both, str(limited)],
        },
        {_PLAIN: None, _TLS: Tls(ca=nodes.ca), _RIGHTS: as_client, _PENDING: as_client},
    )


def _case(stack: contextlib.ExitStack, directory: Path, kind: str, given: _Given) -> _Case:
    data = directory / f"data-{_KINDS.index(kind)}"
    node = stack.enter_context(BenchNode(data, *given.node[kind]))
    tls = given.client[kind]
    address = node.address if tls is None else f"tls://{node.address}"
    client = stack.enter_context(Client(address, tls=tls))
    client.store(_TOPIC, b"first", delay=3600)
    client.send_table(_table()).wait()
    return _Case(node, client)


def _table() -> pa.RecordBatch:
    now_ms = time.time_ns() // 1_000_000
    due = now_ms + np.random.default_rng(0).integers(60_000, 7_000_000, _ROWS)
    columns = [pa.array(due), pa.array([_TOPIC] * _ROWS), pa.array([bytes(100)] * _ROWS)]
    return pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])


def _in_turns(
    cases: dict[str, _Case], seconds: float, calls: int, call: Callable[[_Case], None]
) -> dict[str, float]:
    """So many calls of each case in turn, until each has had about so many ``seconds``; another one
    begins each time, as the first one finds the processor's caches as the last one has left them.
    Returns the processor time of the nodes, us, for a call."""
    for case in cases.values():
        case.cpu_s, case.calls = 0.0, 0
    before_s = {kind: case.node.cpu_s for kind, case in cases.items()}
    end = time.perf_counter() + seconds * len(cases)
    order = list(cases.values())
    while time.perf_counter() < end:
        for case in order:
            begun = time.process_time()
            for _ in range(calls):
                call(case)
            case.cpu_s += time.process_time() - begun
            case.calls += calls
        order = [*order[1:], order[0]]
    nodes_s = {kind: case.node.cpu_s - before_s[kind] for kind, case in cases.items()}
    for kind, case in cases.items():
        case.cpu_s += nodes_s[kind]
    return {kind: nodes_s[kind] / case.calls * 1e6 for kind, case in cases.items()}


def _tell_waits(report: Report, cases: dict[str, _Case], seconds: float) -> None:
    value = bytes(100)

    def store(case: _Case) -> None:
        begun = time.perf_counter()
        case.client.store(_TOPIC, value, delay=3600)
        case.waits_s.append(time.perf_counter() - begun)

    _in_turns(cases, seconds, _STORED_A_TURN, store)
    median = {kind: statistics.median(case.waits_s) * 1e6 for kind, case in cases.items()}
    for kind, case in cases.items():
        report.figure(f"receipt p50, one caller, {kind}, us", median[kind], f"{median[kind]:.0f}")
        name = f"processor time of node and client, one message, {kind}, us"
        report.figure(name, case.each_us, f"{case.each_us:.0f}")
    for kind in (_TLS, _RIGHTS):
        more = median[kind] - median[_PLAIN]
        report.figure(f"{kind}, us more of one caller", more, f"{more:+.1f}", "<= 15")
        more = cases[kind].each_us - cases[_PLAIN].each_us
        report.figure(f"{kind}, us more of processor time, one message", more, f"{more:+.1f}")


def _tell_batches(report: Report, cases: dict[str, _Case], seconds: float) -> float:
    """Returns the processor time, us, that a batch with rights takes of the node."""
    table = _table()

    def send(case: _Case) -> None:
        case.client.send_table(table).wait()

    nodes_us = _in_turns(cases, seconds, _BATCHES_A_TURN, send)
    for kind, case in cases.items():
        name = f"processor time of node and client, batch of {_ROWS:,}, {kind}, us"
        report.figure(name, case.each_us, f"{case.each_us:,.0f}")
    for kind in (_TLS, _RIGHTS):
        name = f"{kind}, processor time of a batch of {_ROWS:,}, to plain"
        report.ratio(name, cases[kind].each_us, cases[_PLAIN].each_us, "<= 110 %")
    name = f"a quota of what is pending, the node's time of a batch of {_ROWS:,}, to one without"
    report.ratio(name, nodes_us[_PENDING], nodes_us[_RIGHTS], "<= 101 %")
    return nodes_us[_RIGHTS]


def _tell_records(report: Report, given: _Given) -> None:
    """What a record of a small message takes, beside a checksum of the same bytes."""
    client, node = _shaken(given)
    message, room = bytes(170), memoryview(bytearray(1 << 10))
    slept = f"after {_SLEEP_S * 1e6:.0f} us of sleep"
    for name, sleep_s in (("awake", 0.0), (slept, _SLEEP_S)):
        sealing, reading, summing = "a record of TLS made", "a record of TLS read", "a checksum"
        took: dict[str, list[float]] = {sealing: [], reading: [], summing: []}
        for _ in range(_RECORDS):
            _sleep(sleep_s)
            begun = time.perf_counter()
            sealed = client.seal(message)
            took[sealing].append(time.perf_counter() - begun)
            _sleep(sleep_s)
            begun = time.perf_counter()
            node.read_into(room, sealed)
            took[reading].append(time.perf_counter() - begun)
            _sleep(sleep_s)
            begun = time.perf_counter()
            zlib.crc32(message)
            took[summing].append(time.perf_counter() - begun)
        for what, each_s in took.items():
            micros = statistics.median(each_s) * 1e6
            report.figure(f"{what}, processor {name}, us", micros, f"{micros:.1f}")


def _sleep(seconds: float) -> None:
    if seconds:  # to sleep for nothing would let others run
        time.sleep(seconds)


def _shaken(given: _Given) -> tuple[TlsStream, TlsStream]:
    """A client's and a node's side of one connection, whose handshake is over."""
    client = TlsFiles.of_client(Tls(ca=given.authority)).dial("127.0.0.1")
    node = TlsFiles(given.own, accepts=True).accept()
    while not node.is_ready:
        if not client.is_ready:
            client.shake_hands()
        node.feed(client.outgoing())
        node.shake_hands()
        client.feed(node.outgoing())
    return client, node


def _tell_checks(report: Report, batch_us: float) -> None:
    caller, limited = _caller(_SECURITY), _caller(_LIMITED)

    def rows(count: int) -> pa.RecordBatch:
        none = [None] * count
        values = [bytes(100)] * count
        return from_columns([0] * count, [_TOPIC] * count, none, none, values, [()] * count)

    plain = PlainBatch([(0, _TOPIC.encode(), None, None, b"x", ())], 100, 0, -1)
    one, many = rows(1), rows(_ROWS)

    def charge() -> None:
        caller.charge(1, 100, dict)

    def offer() -> None:
        topics = limited.check_rows(many)
        offer = limited.charge(_ROWS, 100, lambda: amounts_of(many, topics))
        assert offer is not None
        offer.settle(-1)

    micros = _micros(lambda: caller.check_plain(plain))
    report.figure("check of one plain row, us", micros, f"{micros:.2f}", "<= 1")
    micros = _micros(lambda: caller.check_rows(one))
    report.figure("check of an Arrow batch of one row, us", micros, f"{micros:.2f}")
    micros = _micros(charge)
    report.figure("two quotas of a batch, us", micros, f"{micros:.2f}")
    micros += _micros(lambda: caller.check_rows(many))
    report.figure(f"check and quotas of a batch of {_ROWS:,}, us", micros, f"{micros:.2f}")
    pending = _micros(offer)  # with the check
    report.figure(
        f"the same and what is pending, of a batch of {_ROWS:,}, us", pending, f"{pending:.2f}"
    )
    name = f"check and quotas, to the node's time of a batch of {_ROWS:,}"
    report.ratio(name, micros, batch_us, "<= 1 %")


def _caller(security: str) -> ConnectedCaller:
    authenticator = Authenticator(SecurityFile.parse(security.encode()))
    proof = IdentityProof(certificate_names=("bench.example",))
    identity = authenticator.authenticate(proof)
    return ConnectedCaller(Callers(authenticator), identity, proof, "")


def _micros(call: Callable[[], object]) -> float:
    """The lowest of some means of processor time: whatever else runs makes it only longer."""
    means = []
    for _ in range(_MEANS):
        begun = time.thread_time()
        for _ in range(_CHECKS):
            call()
        means.append((time.thread_time() - begun) / _CHECKS * 1e6)
    return min(means)


def _tell_http(report: Report, directory: Path, given: _Given, seconds: float, turns: int) -> None:
    # The gateway beside a node goes to it by TLS, too.
    secured = [*given.node[_TLS], "--tls-ca", str(given.authority)]
    more: dict[str, list[str]] = {_PLAIN: [], _TLS: secured}
    rates: dict[str, list[float]] = {kind: [] for kind in more}
    spent: dict[str, list[float]] = {kind: [] for kind in more}
    with contextlib.ExitStack() as stack:
        gateways = {
            kind: stack.enter_context(
                GatewayBesideNode(directory / f"http-{_KINDS.index(kind)}", *node_options)
            )
            for kind, node_options in more.items()
        }
        try:
            for turn in range(turns + 1):
                for kind, gateway in gateways.items():
                    before_s = gateway.cpu_s
                    found = gateway.load(directory, 64, seconds if turn else 1.0, message_body())
                    if found["errors"]:
                        raise RuntimeError(f"errors over HTTP, {kind}: {found['errors']}")
                    if turn:  # in the first one both import, connect and shake hands
                        requests = max(1, found["requests"])
                        rates[kind].append(requests / found["seconds"])
                        spent[kind].append((gateway.cpu_s - before_s) / requests * 1e6)
        except Missing as error:
            report.figure("HTTP", 0.0, str(error))
            return
    for kind in more:
        rate, micros = statistics.median(rates[kind]), statistics.median(spent[kind])
        report.figure(f"messages/s, HTTP, 64 connections, {kind}", rate, f"{rate:,.0f}")
        report.figure(f"us of the gateway a message, {kind}", micros, f"{micros:.0f}")
    name = f"HTTP, {_TLS}, the gateway's time of a message, to plain"
    report.ratio(name, statistics.median(spent[_TLS]), statistics.median(spent[_PLAIN]))


if __name__ == "__main__":
    sys.exit(main())
