"""A consumer in a process of its own, to be killed. ``main`` is what runs there.

It works on numbers: each message's value is one, and a number of which ``fails`` says so is retried
at its first attempt. What it has processed is a line in a file, or a record of ``out``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

QUICK: dict[str, dict[str, Any]] = {
    "kafka-python": {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300},
    "confluent": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300},
}
"""Settings of a group that soon sees that a member is gone."""


@dataclass
class Job:
    bootstrap: str
    topic: str
    group: str
    wheel: str
    client: str = "kafka-python"
    lines: str = ""
    """File of what is processed; empty: see ``out``."""
    out: str = ""
    delay_topic: str = ""
    """With it the consumer is transactional."""
    transactional_id: str = ""
    policy: str = "200ms 400ms"
    every: int = 5
    """Every so many numbers one fails at first; 0: none does."""
    sleep_s: float = 0.0
    dead: str = ""
    kafka: dict[str, Any] = field(default_factory=dict)

    def fails(self, number: int, attempt: int) -> bool:
        return bool(self.every) and number % self.every == 0 and attempt == 1


class ConsumerProcess:
    """Runs ``job`` from ``start`` on."""

    def __init__(self, job: Job, log: Path) -> None:
        self.job, self.log = job, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            text = json.dumps(asdict(self.job))
            program = [sys.executable, __file__, text]
            self.process = subprocess.Popen(program, stdout=log, stderr=log)
        return self

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def kill(self) -> None:
        self.running.kill()
        self.running.wait(60)

    def __enter__(self) -> Self:
        return self if self.process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self.running.poll() is None:
            self.kill()


def processed(path: Path) -> list[tuple[int, int]]:
    """Number and attempt of each line; the last one may be torn."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    found = [line.split() for line in lines if line.endswith("\n")]
    return [(int(one[0]), int(one[1])) for one in found if len(one) == 2]


def main(text: str) -> None:
    from slotwheel import Consumer, Received

    job = Job(**json.loads(text))
    transactional = bool(job.delay_topic)
    consumer = Consumer(
        job.topic,
        job.group,
        bootstrap=job.bootstrap,
        client=job.client,
        wheel=None if transactional else job.wheel,
        retry=job.policy,
        transactional=transactional,
        transactional_id=job.transactional_id or None,
        delay_topic=job.delay_topic or None,
        dead_letter_topic=job.dead,
        kafka=QUICK[job.client] | job.kafka,
    )
    lines = Path(job.lines).open("ab", buffering=0) if job.lines else None  # noqa: SIM115

    def handle(message: Received) -> None:
        number = int(message.value or b"")
        if job.sleep_s:
            time.sleep(job.sleep_s)
        if job.out:
            consumer.send(job.out, message.value, key=b"%d" % message.attempt)
        if job.fails(number, message.attempt):
            raise ValueError(f"number {number}")
        if lines is not None:
            lines.write(b"%d %d\n" % (number, message.attempt))

    consumer.run(handler=handle, workers=2)


if __name__ == "__main__":
    main(sys.argv[1])
