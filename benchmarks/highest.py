"""What is the highest steady rate into a real Kafka at which messages are still punctual?

One node and one broker; rates are tried from the lowest on, each with messages of its own topic in
and out for ``--seconds``, until p99 of lateness is above ``--p99`` ms or the rate is not kept up.
Beside it stands what a bare producer of the same client makes on the same broker, with the same
records and settings; it runs last, when the broker is warmest.

    python -m benchmarks.highest [--rates 50000,100000,150000,200000] [--seconds 8]
"""

from __future__ import annotations

import sys

import numpy as np

from ._node import BenchNode
from .burst import bare_producer
from .harness import Report, data_directory, options, warm_memory
from .lateness import (
    CONFLUENT,
    SINKS,
    create_topic,
    kafka_lateness,
    send_paced,
    start_broker,
    wait_until_delivered,
)

_ESTIMATE = (
    "of two cores the broker takes 3 us a record, who sends 1, the node 12: 16 us a message,"
    " 125,000 a second"
)
_RATES = "50000,100000,150000,200000"
_KEPT_UP = 0.98
_BARE = "bare"
_BARE_RECORDS = 500_000


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS[1:], default=CONFLUENT)
    parser.add_argument("--rates", default=_RATES, help="messages a second, the lowest first")
    parser.add_argument("--p99", type=float, default=100.0, help="ms")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each rate")
    chosen = parser.parse_args(arguments)
    rates = [int(text) for text in chosen.rates.split(",")]
    seconds, records = chosen.seconds, _BARE_RECORDS
    if chosen.quick:
        rates, seconds, records = [1_000], min(seconds, 1.0), 5_000
    with data_directory(chosen.dir) as directory, start_broker() as broker:
        report = Report(f"the highest steady rate, {chosen.sink}", _ESTIMATE, directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        highest = 0.0
        for rate in rates:
            topic = f"at-{rate}"
            create_topic(broker, topic)
            sink = ["--sink", chosen.sink, "--bootstrap", broker.bootstrap]
            with BenchNode(directory / topic, *sink) as node:
                sent = send_paced(node, rate, seconds, topic)
                wait_until_delivered(node, sent)
                micros = node.cpu_s / sent * 1e6
            p99 = float(np.percentile(kafka_lateness(broker.bootstrap, topic, sent), 99))
            text = f"{p99:.0f}; {sent / seconds:,.0f}/s, {micros:.1f} us of the node"
            report.figure(f"lateness p99 at {rate:,}/s, ms", p99, text, f"<= {chosen.p99:g}")
            if p99 > chosen.p99 or sent < rate * seconds * _KEPT_UP:
                break
            highest = sent / seconds
        report.figure("highest steady rate, messages/s", highest, f"{highest:,.0f}")
        create_topic(broker, _BARE)
        bare = bare_producer(chosen.sink, broker.bootstrap, _BARE, records)
        report.figure("bare producer, records/s", bare, f"{bare:,.0f}")
        report.ratio("highest steady rate, to the bare producer", highest, bare)
        report.end(chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
