"""A real Kafka broker for tests and benchmarks: one KRaft process on loopback.

    with Broker() as broker:
        broker.create_topic("orders", partitions=3)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

`Cluster` is any broker, also one of the user's own: it can be talked to and given topics. `Broker`
is one we started, so it can also be stopped, killed, paused and started again on the same port and
data. Where the jars come from: `KAFKA_HOME`, or what tests/support/fetch.sh fetched.

A broker lives no longer than the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    MemberToRemove,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError

from . import java
from .ports import free_port

ROOT = Path(__file__).resolve().parents[2]
NODE_ID = 1
# Any fixed value in the form Kafka wants (16 bytes, base64url); it only has to be the same for
# format and start.
CLUSTER_ID = "c2xvdHdoZWVsdGVzdHMtMQ"

# Runs before Java takes the process over: the kernel kills it when its parent ends, however that
# ends. The pid stays the same over exec, so signals to it reach the broker itself.
_LAUNCHER = """
import ctypes, os, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9)
if os.getppid() != int(sys.argv[1]):  # the parent ended before the call above
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""

# For the kernel "the parent" is the thread that forked. A test that restarts the broker from a
# short-lived thread would take it down with that thread, so one thread starts them all and lives
# as long as the interpreter.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-spawner")

_TOPICS_MS = 120_000
"""How long a busy broker may take to give new topics their leaders."""
_formatted: dict[str, bytes] = {}
"""The files of a formatted data directory. They are the same for every broker, and the tool that
writes them takes seconds."""

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a broker that may be told who may do what; until then everybody may do everything."""
_EVERY_RULE = ACLFilter(
    None,
    None,
    ACLOperation.ANY,
    ACLPermissionType.ANY,
    ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
)

# Of what is fine a broker writes a thousand lines as it starts: a tenth of what that costs.
_LOGGING = """
rootLogger.level = WARN
rootLogger.appenderRef.file.ref = File
appender.file.type = File
appender.file.name = File
appender.file.fileName = ${sys:slotwheel.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %-5p [%t] %c{1}: %m%n
"""


class BrokerError(Exception):
    """No broker can be had, or it did not do what was asked; says what to do about it."""


def jars() -> Path:
    """The directory of Kafka's jars: `KAFKA_HOME`'s, else the newest one fetched."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        return Path(home) / "libs"
    fetched = sorted((ROOT / ".cache").glob("kafka-[0-9]*"))
    if not fetched:
        raise BrokerError("Kafka's jars are not there: run `make kafka`, or set KAFKA_HOME")
    # Java takes classes that were kept (``java.options``) for those of these very paths.
    return fetched[-1].resolve()


class Cluster:
    """A broker that answers at `bootstrap`, whoever runs it."""

    bootstrap: str

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic and wait until it has a leader; returns its name (`create_topics`)."""
        self.create_topics([name], partitions, **config)
        return name

    def create_topics(self, names: Iterable[str], partitions: int = 1, **config: object) -> None:
        """Create topics and wait until they have leaders.

        `config` holds the topic's settings with `_` for `.`, as in `max_message_bytes=2000`. Unless
        told otherwise, records carry the time of their arrival, so that lateness can be measured.
        """
        settings = {"message.timestamp.type": "LogAppendTime"}
        settings |= {key.replace("_", "."): _setting(value) for key, value in config.items()}
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            topic = {"num_partitions": partitions, "replication_factor": 1, "configs": settings}
            admin.create_topics(new := dict.fromkeys(names, topic))
            admin.wait_for_topics(list(new), timeout_ms=_TOPICS_MS)

    def delete_topic(self, *names: str) -> None:
        """Delete topics and what is in them."""
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_topics(list(names))

    def delete_records(self, name: str) -> None:
        """Delete what is in partition 0 of a topic, which stays."""
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_records({TopicPartition(name, 0): -1})


class TopicFactory(Protocol):
    """Creates a topic under a name that no other test has, and returns that name."""

    def __call__(self, name: str = "topic", partitions: int = 1, **config: object) -> str: ...


class Broker(Cluster):
    """A broker process of our own, formatted and started on construction.

    `directory` is where it keeps its data and logs; by default a temporary one, which `close()`
    removes. `settings` are further lines of server.properties, with `.` in their names. `host` is
    the address it listens on and gives to its clients. `behind` is the `host:port` of a proxy:
    clients that come to `port_behind` are sent there by all that the broker tells them, and never
    to the broker itself. `steady`: it is measured, so its Java runs as one of production does.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: dict[str, str] | None = None,
        start_timeout_s: float = 90.0,
        host: str = "127.0.0.1",
        behind: str | None = None,
        steady: bool = False,
    ) -> None:
        libs = jars()
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="slotwheel-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._classpath = f"{libs}/*"
        options = ("-XX:MaxGCPauseMillis=20",) if steady else java.options("kafka")
        # A broker that is killed leaves the libraries that it has unpacked.
        unpacked = f"-Djava.io.tmpdir={self.directory}"
        self._options = ("-Xms768m", "-Xmx768m", unpacked, *options)
        port, controller_port = free_port(), free_port()
        super().__init__(f"{host}:{port}")
        self.host = host
        self.port = port
        self.behind = behind
        self.port_behind = None if behind is None else free_port()
        try:
            proxied = {} if behind is None else self._proxied(controller_port, behind)
            self._configure(controller_port, proxied | (settings or {}))
            self._format()
            self.start()
        except BaseException:
            self.close()
            raise

    # Life and death

    @property
    def pid(self) -> int:
        """The broker's process id; an error if it is not running."""
        return self._running().pid

    def start(self) -> None:
        """Start on the known port and data, and wait until every partition has a leader."""
        if self._process is not None:
            raise BrokerError("the broker is running already")
        self._process = self._java(self._options, "kafka.Kafka", str(self._properties))
        self._wait_until_it_answers()

    def stop(self, timeout_s: float = 15.0) -> None:
        """End it in good order (SIGTERM); kill it when that takes longer than `timeout_s`."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a paused process would not see the first
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # Its threads stop one by one, a moment after the signal.
        while process.poll() is None and _threads_not_stopped(process.pid):
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def renew(self) -> None:
        """Make it like a new one, for a tenth of what that costs: it runs, and has no topics, no
        groups, and, if it takes rules (``ACLS``), none of those."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            shutil.rmtree(self.directory / "data")
            self._format()
            self.start()
            return
        self.resume()
        self._wait_until_it_answers()
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_acls([_EVERY_RULE])
            if topics := [name for name in admin.list_topics() if not name.startswith("__")]:
                admin.delete_topics(topics)
            groups = admin.describe_groups([one["group_id"] for one in admin.list_groups()])
            for name, group in groups.items():
                left = [MemberToRemove(member_id=one["member_id"]) for one in group["members"]]
                if left:  # whoever was killed stays one until its session is over
                    admin.remove_group_members(name, left)
            if groups:
                admin.delete_groups(list(groups))

    def close(self) -> None:
        """Kill it and remove its temporary directory; may be called again."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _configure(self, controller_port: int, settings: dict[str, str]) -> None:
        controller = f"127.0.0.1:{controller_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(NODE_ID),
            "controller.quorum.voters": f"{NODE_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            # A misspelt topic must fail in a test, not appear.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Tests write records with old timestamps; none may be deleted under them.
            "log.retention.ms": "-1",
            # Small pools: the machine is shared with what is under test. The cleaner alone would
            # take 128 MB of heap.
            "log.cleaner.dedupe.buffer.size": "4194304",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
            # By default it writes a record into its metadata twice a second while nothing happens:
            # a third of what an idle broker costs, and several stand idle in a run.
            "metadata.max.idle.interval.ms": "0",
            # A killed and restarted broker is let in again after this time, not after 9 s.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        } | settings
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        self._properties.write_text("".join(lines))
        (self.directory / "log4j2.properties").write_text(_LOGGING)

    def _proxied(self, controller_port: int, behind: str) -> dict[str, str]:
        """Settings of one more listener, whose clients are told the proxy's address."""
        own, inner = f"PLAINTEXT://{self.bootstrap}", f"127.0.0.1:{self.port_behind}"
        kinds = ("PLAINTEXT", "PROXIED", "CONTROLLER")
        return {
            "listeners": f"{own},PROXIED://{inner},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"{own},PROXIED://{behind}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{kind}:PLAINTEXT" for kind in kinds),
        }

    def _format(self) -> None:
        data = self.directory / "data"
        if _formatted:
            data.mkdir()
            for name, content in _formatted.items():
                (data / name).write_bytes(content)
            return
        arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._properties)]
        options = ("-Xmx128m", *java.options("kafka"))
        tool = self._java(options, "kafka.tools.StorageTool", *arguments)
        if tool.wait(self._start_timeout_s) != 0:
            raise BrokerError(f"Kafka's storage could not be formatted:\n{self._last_output()}")
        _formatted.update((file.name, file.read_bytes()) for file in data.iterdir())

    def _java(self, options: Sequence[str], main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = os.environ.get("JAVA_HOME")
        program = str(Path(home) / "bin" / "java") if home else "java"
        if shutil.which(program) is None:
            raise BrokerError("Java is not there: run `make kafka`, or set JAVA_HOME")
        command = [
            *(program, *options),
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            f"-Dslotwheel.log={self.directory / 'broker.log'}",
            *("-cp", self._classpath, main, *arguments),
        ]
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]

        def spawn() -> subprocess.Popen[bytes]:
            with (self.directory / "output.txt").open("ab") as output:
                return subprocess.Popen(
                    launcher + command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is for the test run, which then stops its brokers in order.
                    start_new_session=True,
                )

        return _spawner.submit(spawn).result()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerError("the broker is not running")
        return self._process

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            if self._running().poll() is not None:
                raise BrokerError(f"Kafka ended while starting:\n{self._last_output()}")
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"Kafka did not answer within {self._start_timeout_s:.0f} s:\n"
                    f"{self._last_output()}"
                )
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
            # While Kafka starts, its port takes connections that nothing answers.
            with KafkaAdminClient(
                bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=2000
            ) as admin:
                brokers = admin.describe_cluster()["brokers"]
                topics = admin.describe_topics()
                admin.list_groups()  # refused while what groups committed is still being read
        except (OSError, KafkaError):
            return False
        leaders = [part["leader_id"] for topic in topics for part in topic["partitions"]]
        return bool(brokers) and all(leader == NODE_ID for leader in leaders)

    def _last_output(self, lines: int = 30) -> str:
        text: list[str] = []
        for name in ("output.txt", "broker.log"):
            path = self.directory / name
            if path.exists():
                text += path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(text)


def _threads_not_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return any(stat.rpartition(")")[2].split()[0] != "T" for stat in stats)


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_only(topic: str, *, prefix: bool = False) -> list[ACL]:
    """Rules: everybody may read and see the topic, or all whose names begin so, and nobody may
    write to it."""
    allow, deny = ACLPermissionType.ALLOW, ACLPermissionType.DENY
    wanted = {ACLOperation.READ: allow, ACLOperation.DESCRIBE: allow, ACLOperation.WRITE: deny}
    pattern = _named(topic, prefix=prefix)
    return [ACL("User:*", "*", operation, may, pattern) for operation, may in wanted.items()]


def every_rule(topic: str, *, prefix: bool = False) -> ACLFilter:
    """What finds those rules again."""
    pattern = _named(topic, prefix=prefix)
    return ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)


def _named(topic: str, *, prefix: bool) -> ResourcePattern:
    kind = ACLResourcePatternType.PREFIXED if prefix else ACLResourcePatternType.LITERAL
    return ResourcePattern(ResourceType.TOPIC, topic, kind)
