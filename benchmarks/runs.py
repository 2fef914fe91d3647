"""What the suite runs: which benchmarks, with which options, how often.

Rules
- One axis at a time; everything else stays as in ``durable ingest``.
- The whole of it stays within 60 minutes and 40 GB of disk on two cores (``SUITE_S``).
- A name here is the name in results.json: goals, plots and the guard find their figures by it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One benchmark with its options. ``about_s``: what one run takes, all included, measured on
    two idle cores. ``repeats``: 3 for what has a goal, where the hour allows it; fewer for what
    takes long, one for what has none. ``group``: what ``--only`` names together with others."""

    name: str
    module: str
    about_s: int
    options: tuple[str, ...] = ()
    repeats: int = 1
    group: str = ""

    @property
    def names(self) -> set[str]:
        """``--only`` finds it by any of them."""
        return {self.name, self.module, self.group} - {""}

    def arguments(self, *, quick: bool = False) -> list[str]:
        return [*self.options, *(["--quick"] if quick else [])]

    def command(self, *, quick: bool = False) -> str:
        """As a person types it."""
        return " ".join(["python -m", f"benchmarks.{self.module}", *self.arguments(quick=quick)])

    @property
    def most_s(self) -> float:
        """Longer than that, and it hangs."""
        return 120.0 + 5.0 * self.about_s


def _ingest(name: str, *options: str, seconds: int = 10, repeats: int = 1) -> Run:
    # Start, clients, raw limit, and what grows with the data: touching memory, removing files.
    about_s = seconds + 15 + 2 * seconds
    return Run(name, "ingest", about_s, ("--seconds", str(seconds), *options), repeats)


CALLERS = "callers"
"""Programs that wait, beside other delay queues: ``python -m benchmarks.suite --only callers``."""
_TO_KAFKA = ("--sink", "confluent", "--rate", "50000", "--seconds", "10")

# The most disk at one time is that of 100 M pending messages in slot files, 17 GB, and a journal of
# less than 1 GB.
SUITE = (
    Run("stages", "stages", 30),
    _ingest("durable ingest", seconds=60, repeats=2),
    _ingest("ingest, batches kept apart", "--apart"),
    _ingest("ingest, batches of 1", "--rows", "1"),
    _ingest("ingest, batches of 10", "--rows", "10"),
    _ingest("ingest, batches of 100", "--rows", "100"),
    _ingest("ingest, batches of 10,000", "--rows", "10000"),
    _ingest("ingest, 1 KB", "--value-bytes", "1000"),
    _ingest("ingest, 10 KB", "--value-bytes", "10000"),
    _ingest("ingest, one client", "--clients", "1"),
    _ingest("ingest, four clients", "--clients", "4"),
    # Short: after ten seconds delivery would begin, and this is about the intake.
    _ingest("ingest, due within 10 s", "--span-s", "10", seconds=8),
    Run("single sends", "single", 35, ("--seconds", "5"), 3, CALLERS),
    Run("HTTP", "gateway", 40, ("--connections", "64", "--seconds", "5"), 2, CALLERS),
    Run("burst, embedded", "burst", 32),
    Run("burst of a million, embedded", "burst", 40, ("--messages", "1000000"), 3),
    Run("burst, kafka-python", "burst", 66, ("--sink", "kafka-python"), 2),
    Run("burst, confluent", "burst", 46, ("--sink", "confluent"), 3),
    Run(
        "exactly once, confluent",
        "exactlyonce",
        75,
        ("--only", "burst", "--only", "lateness", "--seconds", "8"),
    ),
    Run(
        "exactly once, kafka-python",
        "exactlyonce",
        45,
        ("--sink", "kafka-python", "--only", "burst"),
    ),
    Run("lateness at 10,000/s", "lateness", 30, ("--rate", "10000", "--seconds", "10"), 3),
    Run("lateness at 50,000/s", "lateness", 32, ("--rate", "50000", "--seconds", "10")),
    Run("lateness at 100,000/s", "lateness", 44, ("--rate", "100000", "--seconds", "20"), 3),
    Run("lateness into Kafka at 50,000/s", "lateness", 45, _TO_KAFKA, 3),
    Run("highest rate into Kafka", "highest", 180),
    Run("empty node", "pending", 6, ("--rows", "0", "--warm-gib", "0"), 3, CALLERS),
    Run("pending", "pending", 300),
    Run("catching up", "catchup", 54, repeats=2),
    Run("cancelling", "cancel", 22),
    Run("spill", "spill", 32),
    Run("delay topic, kafka-python", "intake", 12, ("--messages", "200000"), 3),
    Run("delay topic, confluent", "intake", 14, ("--client", "confluent"), 3),
    Run("consumer, kafka-python", "consumer", 55, ("--repeats", "2")),
    Run("consumer, confluent", "consumer", 60, ("--client", "confluent", "--repeats", "2")),
    Run("replication", "replication", 151, repeats=2),
    Run("replay", "replay", 90, ("--rows", "5000000")),
    Run(
        "delay queues side by side",
        "queues",
        110,
        ("--measure", "intake", "--seconds", "3"),
        group=CALLERS,
    ),
    Run(
        "delay queues, 64 callers with connections of their own",
        "queues",
        65,
        (
            *("--clients", "2", "--under-way", "32", "--rows", "1"),
            *("--seconds", "4", "--measure", "intake"),
        ),
        group=CALLERS,
    ),
    # As in ingest: a client has five batches under way. All that Redis takes stays in memory.
    Run(
        "delay queues, two clients",
        "queues",
        170,
        (
            *("--clients", "2", "--under-way", "5", "--rows", "1000", "--seconds", "60"),
            *("--measure", "intake", "--only", "slotwheel", "--only", "Redis", "--warm-gib", "8"),
        ),
        group=CALLERS,
    ),
)

ON_REQUEST = (
    Run("beside topics that do not exist", "strangers", 75),
    Run("a large second", "bigsecond", 110),
    Run("TLS and rights", "secured", 110),
    Run("far ahead", "far", 420),
    Run("names", "named", 400),
    Run("schedules", "schedules", 330),
    # What each of them can do.
    Run(
        "delay queues, lateness at 500/s",
        "queues",
        210,
        ("--measure", "lateness", "--rate", "500", "--seconds", "10"),
    ),
    Run(
        "delay queues, lateness at 10,000/s",
        "queues",
        320,
        ("--measure", "lateness", "--rate", "10000", "--under-way", "4", "--seconds", "20"),
    ),
    Run("delay queues, burst", "queues", 320, ("--measure", "burst")),
)
"""What is beyond the suite's hour: run when it is named, as by ``--only queues``."""

SUITE_S = sum(run.about_s * run.repeats for run in SUITE)
