"""A node that delivers to a real Kafka, proven from dumps of its topics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from slotwheel import Client, Message
from slotwheel.reading.files import Layout
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from support.broker import Cluster, TopicFactory
from support.kafkaread import held
from support.nodeprocess import NodeProcess, run_cli
from support.plainproof import prove_here
from support.waiting import eventually

ROWS = 3_000


def dump(broker: Cluster, topic: str, path: Path) -> str:
    done = run_cli("consume", topic, "--bootstrap", broker.bootstrap, "--arrow", path)
    assert done.returncode == 0, done.stderr
    return str(path)


def test_a_node_with_kafka(
    spark: Any, broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, dead_letters = topic("orders", 3), topic("dead")
    data, receipts = tmp_path / "data", tmp_path / "receipts"
    kafka = ("--sink", "kafka-python", "--bootstrap", broker.bootstrap)
    options = (*kafka, "--unknown-topics", "accept")
    with NodeProcess(data, *options, "--dead-letter-topic", dead_letters) as node:
        with Client(node.address, receipts=receipts) as client:
            client.send_many(
                Message(
                    name,
                    None if n % 11 == 0 else b"%d" % n,
                    b"%d" % (n % 17) if n % 5 else None,
                    [("own", b"%d" % n), ("own", None)][: n % 3],
                    n % 3 if n % 7 == 0 else None,
                    delay=0.001 * (n % 1500),
                )
                for n in range(ROWS)
            ).result(60)
            client.send("no-such-topic", b"x", key=b"k", delay=0.1).result(60)
        eventually(lambda: held(broker.bootstrap, [name]) == ROWS)
        eventually(lambda: held(broker.bootstrap, [dead_letters]) == 1)
        node.signal()
    dumps = [
        dump(broker, name, tmp_path / "orders"),
        dump(broker, dead_letters, tmp_path / "dead"),
    ]

    def layout(*dumps: str) -> Layout:
        found = find([str(data)], dumps=dumps, receipts=[str(receipts)])
        return replace(found, dead_letter_topic=dead_letters)

    once = Options(exactly_once=True)
    verdict = prove(spark, layout(*dumps), once)
    assert verdict.proven, (verdict.reasons, verdict.problems)
    counts = verdict.counts
    assert (counts["accepted"], counts["delivered"], counts["dead"]) == (ROWS + 1, ROWS, 1)
    # Without the dead letters nobody can say what became of that one.
    verdict = prove_here(layout(dumps[0]), once)
    assert verdict.problems == []
    assert [point.subject for point in verdict.open_points] == ["topic no-such-topic"]
    assert verdict.counts["undecided"] == 1
    # One record taken out of a dump, another one changed.
    with pa.OSFile(dumps[0]) as file, pa.ipc.open_stream(file) as stream:
        rows = stream.read_all().to_pylist()
        schema = stream.schema
    gone = rows.pop(1000)
    rows[2000]["value"] = b"another"
    with pa.OSFile(str(tmp_path / "changed"), "wb") as sink, pa.ipc.new_stream(sink, schema) as out:
        out.write_table(pa.Table.from_pylist(rows, schema))
    verdict = prove_here(layout(str(tmp_path / "changed"), dumps[1]), once)
    assert {problem.kind: problem.id for problem in verdict.problems} == {
        "lost": gone["headers"][-3]["value"].decode(),
        "altered": rows[2000]["headers"][-3]["value"].decode(),
    }
