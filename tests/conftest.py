"""Fixtures that several folders of tests use."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from support import java, nodeprocess
from support.broker import ACLS, Broker, BrokerError, Cluster, TopicFactory
from support.builtwheel import build_wheel
from support.commonbroker import CommonBroker, bootstrap_from
from support.kafkafaults import KafkaFaults
from support.ports import free_address
from support.warden import Warden

if TYPE_CHECKING:
    from support.certificates import Authority

HERE = Path(__file__).parent
# A test that asks for one of these needs Kafka, and is marked so: `pytest -m "not kafka"`.
KAFKA_FIXTURES = {"broker", "kept_broker", "secured", "topic"}
COMMON_BROKER = pytest.StashKey[CommonBroker]()
"""Of the process that hands the tests out to others."""
WARDEN = pytest.StashKey[Warden]()
"""Of the process that the user started."""

TOGETHER = (
    (
        "replay/test_follow",
        "replay/test_planted",
        "replay/test_routed_runs",
        "replay/test_dumps",
        "replay/test_kafka_topics",
        "replay/test_far_runs",
    ),
    (
        "replay/test_real_kafka",
        "replay/test_real_runs",
        "replay/test_source",
        "replay/test_redeliver",
        "replay/test_receipts",
        "replay/test_collects_nothing",
        "replay/test_traces",
        "replay/test_stream",
        "replay/test_account",
        "replay/test_command",
        "replay/test_contents",
        "replay/test_tables",
        "replay/test_running",
        "replay/test_scan",
    ),
    (
        "test_kafka_troubles",
        "test_exactly_once_chaos",
        "test_consuming_page",
        "test_cancel_truth",
        "node/intake/test_delay_topic",
        "delivery/test_transactions",
        "test_broker",
        "test_kafka_faults",
        "consumer/test_waiting",
    ),
    (
        "gateway/console/test_pages",
        "gateway/console/test_audit_page",
        "gateway/console/test_live_parts",
        "gateway/console/test_what_is_typed",
        "gateway/console/test_schedules_page",
    ),
    (
        "gateway/test_rest_consumers",
        "gateway/test_rest_failures",
        "gateway/test_rest_topics",
        "gateway/test_rest_administration",
    ),
    ("replay/test_cluster", "test_packaging"),
)
"""Files that run in the same worker, for what they share is made once in a worker: in two groups a
Spark session, then `own_broker`, the console's node, the gateway's nodes, the built wheel. And what
Java has compiled for one test is there for the next one."""

LONG = (
    *itertools.chain(*TOGETHER),
    "node/test_sources",
    "replay/test_account_follow",
    "node/intake/test_fleet",
    "test_fleet_kills",
    "test_peers_failover",
    "test_attacks",
    "test_names_chaos",
    "test_secured_kafka",
    "audit/test_planted_faults",
    "consumer/test_transactional",
    "audit/test_watchers",
    "consumer/test_sources",
    "test_departures_after_kills",
    "cli/test_dead_redrive",
    "test_schedule_outages",
    "test_schedule_kills",
    "test_kill",
    "test_peers_chaos",
    "gateway/test_gateway_process",
    "test_peers_damage",
    "benchmarks/test_benchmarks_run",
    "cli/test_demo",
    "test_kafka_refusals",
    "node/test_damage",
    "trace/test_whole_way",
    "gateway/test_messages",
    "consumer/test_consumer",
    "gateway/test_storing",
    "trace/store/test_writer",
    "consumer/test_consumer_kills",
    "fleet/test_drain",
    "test_peers_secured",
    "node/test_rights",
    "gateway/test_rights",
    "gateway/test_kills",
    "node/test_secured",
    "test_asked_again",
    "test_other_clocks",
    "gateway/test_https_client",
    "gateway/test_bad_input",
    "gateway/console/test_login",
    "test_planted_secrets",
    "replication/test_transport",
    "delivery/test_confluent_sink",
    "gateway/console/test_what_is_missing",
    "client/test_failover",
    "test_names_delay_topic",
    "wheel/test_names_machine",
    "test_kafka_end_to_end",
    "test_far_kafka",
    "wheel/test_crash_modes",
    "wheel/test_crash_sweep",
    "wheel/test_schedules_machine",
    "wheel/test_names_crash",
    "delivery/test_kafka_python_sink",
    "replication/test_driver_faults",
    "cli/test_bad_input",
    "cli/test_redeliver_command",
    "node/test_descriptors",
    "test_peers_exactly_once",
    "delivery/test_hand",
    "benchmarks/test_suite",
    "replay/test_interrupt",
    "gateway/test_dead_letters",
    "gateway/test_generated_clients",
    "gateway/test_schemathesis",
    "gateway/test_roles",
    "test_interrupted_run",
    "test_retries",
    "test_peers_bad_input",
    "test_peers_snapshot",
    "trace/store/test_reader",
    "wheel/test_switch_crash",
    "client/test_retry",
    "cli/test_commands",
    "node/test_policies",
    "node/test_node_process",
    "wheel/test_journal_crash",
    "node/test_node_goes_on",
    "node/test_node_with_kafka",
    "wheel/test_crash_sweep_finds",
    "test_peers_paused_master",
    "cli/test_policies_command",
    "wheel/test_archive_crash",
    "delivery/test_embedded_crash",
    "wheel/test_wheel_machine",
    "cli/test_repair",
    "replication/test_simulation",
    "test_waiting_kills",
    "wheel/test_far_cancel_histories",
    "wheel/test_append_together",
    "cli/test_verify",
    "node/test_budget",
    "node/test_topics_at_the_door",
    "consumer/test_positions",
    "node/test_clocks_apart",
    "consumer/test_lag",
    "node/test_duties",
    "delivery/test_exactly_once_schedules",
    "reading/test_every_place",
    "reading/search/test_against_a_model",
    "reading/search/test_beside_a_node",
    "node/intake/test_hostile",
    "wheel/test_peers_agree",
    "reading/test_growing",
    "audit/test_worker",
    "node/intake/test_callers",
    "node/intake/test_fuzz",
    "aside/test_process",
    "security/test_tls",
    "security/test_securityfile",
    "gateway/test_no_room",
    "gateway/test_search_with_peers",
    "gateway/test_rest_page",
    "gateway/test_framing",
    "test_http_page",
    "test_security_page",
    "wheel/test_delays",
    "node/test_expired",
    "node/test_clock",
    "benchmarks/test_page",
)
"""The files that take longest, the longest first: they are begun first, so that none is left over
at the end, and ``make test-quick`` leaves them out."""
PLACES = {HERE / f"{name}.py": place for place, name in enumerate(LONG)}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take whole files, or all files of a group."""
    from xdist.scheduler import LoadFileScheduling

    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope

    def unit(nodeid: str) -> str:
        name = file_of(nodeid).removeprefix("tests/").removesuffix(".py")
        return next((group[0] for group in TOGETHER if name in group), name)

    scheduling._split_scope = unit
    return scheduling


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to ask for the run's common broker."""
    stash: pytest.Stash = node.config.stash
    if COMMON_BROKER not in stash:
        stash[COMMON_BROKER] = CommonBroker()
    node.workerinput["common_broker"] = stash[COMMON_BROKER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    if common := config.stash.get(COMMON_BROKER, None):
        common.close()
    if warden := config.stash.get(WARDEN, None):
        warden.close()


RANDOM_EXAMPLES = "SLOTWHEEL_RANDOM_EXAMPLES"
"""A variable: if it is set, Hypothesis tries other examples in each run."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[WARDEN] = Warden()
        # Ends like Ctrl-C: with a summary, and with what was begun taken down.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    nodeprocess.told_to = os.dup(2)
    # Where fetch.sh unpacks what it may not install.
    os.environ["PATH"] = f"{HERE.parent / '.cache/tools/bin'}{os.pathsep}{os.environ['PATH']}"
    # Read by each Spark that is started here or by a command under test.
    for_spark = (*java.options("spark"), *java.INTERPRETED)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(for_spark))
    # Nothing here multiplies matrices; NumPy's library for that starts a thread for each core in
    # each of a thousand processes, and they spin for a while: a tenth of a command's start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # On a busy machine any example may take long. And whether a commit passes must not depend on
    # chance: each run tries the same examples, unless somebody looks for others.
    same = RANDOM_EXAMPLES not in os.environ
    settings.register_profile("slotwheel", deadline=None, derandomize=same)
    settings.register_profile("quick", deadline=None, derandomize=same, max_examples=25)
    settings.load_profile("quick" if leaves_out_long(config) else "slotwheel")
    # A job in a shell's background ignores SIGINT, and so would every process that a test starts
    # to interrupt it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Long files need not be read for a run without them: they import Spark and browsers, in each
    of its processes."""
    return (collection_path in PLACES and leaves_out_long(config)) or None


def leaves_out_long(config: pytest.Config) -> bool:
    """True for ``make test-quick``, which tries a quarter of the examples, too."""
    return "not long" in config.option.markexpr


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[Any]:
    """Nothing of what is read here becomes garbage: the collector would look through all of it
    again and again, a sixth of the time that it takes each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: PLACES.get(item.path, len(LONG)))
    for item in items:
        if item.path in PLACES:
            item.add_marker("long")
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
def broker(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """One broker for the whole run and all of its processes, started when the first test asks for
    it.

    It may be the user's own (SLOTWHEEL_TEST_BOOTSTRAP): a test that stops or pauses a broker takes
    `own_broker` instead.
    """
    bootstrap = os.environ.get("SLOTWHEEL_TEST_BOOTSTRAP")
    common = getattr(pytestconfig, "workerinput", {}).get("common_broker")
    if bootstrap:
        yield Cluster(bootstrap)
    elif common:
        yield Cluster(bootstrap_from(common))
    else:
        with Broker() as started:
            yield started


@pytest.fixture(scope="module")
def looks_often() -> Iterator[float]:
    """Files of certificates and rights are looked at after so many seconds, and not after ten, here
    and in processes that start from now on. A test waits for its look, not for the clock."""
    from slotwheel.security.watched import WatchedFiles

    assert WatchedFiles.every_s <= 10.0  # the rest of the fifteen that docs/security.md promises
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchedFiles, "every_s", 0.5)
        yield WatchedFiles.every_s


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Proves the certificates of a file's tests."""
    return _authority(tmp_path_factory, "authority")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody in a file's tests accepts."""
    return _authority(tmp_path_factory, "foreign")


def _authority(folders: pytest.TempPathFactory, name: str) -> Authority:
    from support.certificates import Authority  # most files need none: the library takes a while

    return Authority(folders.mktemp(name), name)


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is built."""
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def kept_broker() -> Iterator[Broker]:
    """What `own_broker` gives to one test after the other: a start costs seconds."""
    with Broker(settings=ACLS, behind=free_address()) as started:
        yield started


@pytest.fixture
def own_broker(kept_broker: Broker) -> Iterator[Broker]:
    """A broker for one test alone, which may do to it what it likes, also deny everybody a topic;
    it begins without topics and groups."""
    kept_broker.renew()
    yield kept_broker
    with suppress(BrokerError):  # it does not run
        kept_broker.pause()  # an idle one takes 2 % of a core


@pytest.fixture
def faults(own_broker: Broker) -> Iterator[KafkaFaults]:
    """A proxy in front of `own_broker` that its clients do not get around."""
    assert own_broker.behind is not None
    assert own_broker.port_behind is not None
    host, port = own_broker.behind.split(":")
    with KafkaFaults(own_broker.port_behind, (host, int(port)), seed=1) as proxy:
        yield proxy


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
    if made:
        broker.delete_topic(*made)
