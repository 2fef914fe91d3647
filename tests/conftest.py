"""Fixtures that several folders of tests use."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator

import pytest

from support.broker import Broker, Cluster, TopicFactory
from support.java import SHORT_LIVED

# A test that asks for one of these needs Kafka, and is marked so: `pytest -m "not kafka"`.
KAFKA_FIXTURES = {"broker", "own_broker", "topic"}


def pytest_configure() -> None:
    # Read by each Spark that is started here or by a command under test.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED))
    # A job in a shell's background ignores SIGINT, and so would every process that a test starts
    # to interrupt it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if KAFKA_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.write_line(str(line))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes a line with what a test measured; all of them stand at the end of the run's report."""
    return functools.partial(record_property, "figure")


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """One broker for the whole run, started when the first test asks for it.

    It may be the user's own (SLOTWHEEL_TEST_BOOTSTRAP): a test that stops or pauses a broker takes
    `own_broker` instead.
    """
    bootstrap = os.environ.get("SLOTWHEEL_TEST_BOOTSTRAP")
    if bootstrap:
        yield Cluster(bootstrap)
    else:
        with Broker() as started:
            yield started


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for one test alone, which may do to it what it likes."""
    with Broker() as started:
        yield started


@pytest.fixture
def topic(broker: Cluster) -> Iterator[TopicFactory]:
    """A factory for topics on the common broker; they are deleted after the test."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count()
    made: list[str] = []

    def make(name: str = "topic", partitions: int = 1, **config: object) -> str:
        made.append(broker.create_topic(f"{name}-{run}-{next(numbers)}", partitions, **config))
        return made[-1]

    yield make
    for name in made:
        broker.delete_topic(name)
