"""``slotwheel node``: run one node."""

from __future__ import annotations

import logging
import socket
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..delivery.semantics import SEMANTICS
from ..intake.sources import CHOICES
from ..node.budget import FIELDS, MemoryLimit, fitting, memory_limit
from ..node.config import DEFAULT_METRICS_ADDRESS, SINKS, UNKNOWN_TOPICS, NodeConfig
from ..node.logs import FORMATS, LEVELS, event, set_up
from ..node.process import run
from ..replication.rules.group import Group
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration
from ..wheel.protocol import DEFAULT_ADDRESS
from .configfile import read_policies, read_settings
from .shared import (
    F,
    data_mode_option,
    host_name,
    kafka_option,
    keep_private,
    need_gateway,
    partitions,
    positive_span,
    retention,
    size,
    span,
    span_ms,
)

log = logging.getLogger("slotwheel.node")

OFF = "off"
_LIMITS = WheelConfig()
_OWN = {"group", "slots", "retain_ms", "retain_bytes"}  # not in the table below

# Option, field of WheelConfig, help. The type follows from the unit in the field's name.
_LIMIT_OPTIONS = [
    ("--message-bytes", "message_bytes_max", "Largest message: key, value and headers together."),
    ("--batch-rows", "batch_rows_max", "Most messages in a batch."),
    ("--batch-bytes", "batch_bytes_max", "Largest batch."),
    ("--tail-bytes", "tail_bytes_max", "Spill all of the tail when it holds so much in memory."),
    ("--tail-bytes-refuse", "tail_bytes_refuse", "Refuse appends while the tail holds so much."),
    ("--tail-age", "tail_age_ms", "Spill the tail when its oldest message is so old."),
    ("--tail-keep", "tail_keep_ms", "Messages younger than this stay when a spill goes by age."),
    ("--segment-bytes", "segment_bytes", "Begin a new journal segment when one has this size."),
    ("--open-handles", "open_handles_max", "Most slot files held open."),
    ("--chunk-rows", "chunk_rows_max", "Most messages handed to the sink at once."),
    ("--chunk-bytes", "chunk_bytes_max", "Most bytes handed to the sink at once."),
    ("--window-bytes", "window_bytes_max", "Most bytes of a window: rows of one slot in memory."),
    ("--held-topics", "held_topics_max", "Most topics held back; one more pauses delivery."),
    ("--mark-interval", "mark_interval_ms", "Record progress at most so often."),
    ("--producers", "producers_max", "Most producers whose last batches are remembered."),
    ("--requests", "requests_max", "Most requests with an Idempotency-Key that are remembered."),
    ("--disk-reserve", "disk_reserve_bytes", "Refuse appends when less is free on the disk."),
    (
        "--cancels-remembered",
        "cancels_remembered_max",
        "Most cancels kept in memory; others are read when asked about.",
    ),
    ("--peer-journal", "peer_journal_bytes_max", "Journal kept for peers that fall behind."),
    ("--majority-lag", "majority_lag_bytes_max", "Refuse appends while so much waits for peers."),
]


def _limits(function: F) -> F:
    kind: Any
    for option, name, text in reversed(_LIMIT_OPTIONS):
        default = getattr(_LIMITS, name)
        if name.endswith("_ms"):
            kind, default = span, f"{default}ms"
        elif "bytes" in name:
            kind = size
        else:
            kind = click.IntRange(min=1)
        function = click.option(option, name, type=kind, default=default, help=text)(function)
    return function


@click.command("node")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=read_settings,
    help="Read these options from a TOML file; what is given here wins.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The data directory; made if it is not there.",
)
@data_mode_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_ADDRESS,
    help="Where clients connect; port 0 takes a free one. With peers the default is this node's own"
    " address among them. It has no authentication: keep it on a trusted network.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT|off",
    default=DEFAULT_METRICS_ADDRESS,
    help="Where /metrics, /healthz and /readyz are served.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Start a gateway beside the node, which serves HTTP there: messages, Kafka's REST proxy,"
    " search, and metrics and health instead of --metrics. It has no authentication.",
)
@click.option(
    "--http-name",
    "http_names",
    type=host_name,
    metavar="NAME",
    multiple=True,
    help="Let --http and --metrics answer requests for this name, too; may be repeated.",
)
@click.option("--http-log", is_flag=True, help="With --http: log each request.")
@click.option(
    "--audit",
    is_flag=True,
    help="With --http: compare what was sent, stored, delivered and consumed.",
)
@click.option("--group", default=_LIMITS.group, help="Name of the wheel group.")
@click.option("--node-id", help="Name of this node. [default: the machine's name]")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="ID=HOST:PORT",
    help="A peer of the group: node id, and where others reach it. Name all of them, this node too,"
    " the same on each.",
)
@click.option(
    "--election",
    type=span,
    default=f"{NodeConfig.__dataclass_fields__['election_ms'].default}ms",
    help="With peers: how long without a word from the master before another is elected.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=2),
    default=_LIMITS.slots,
    help="Slots of one second: how far ahead a message may be due.",
)
@click.option(
    "--sink",
    type=click.Choice(SINKS),
    default=SINKS[0],
    help="Where due messages go: topics in the data directory, or Kafka by either client.",
)
@click.option("--bootstrap", metavar="HOST:PORT,…", help="Kafka's brokers.")
@kafka_option
@click.option(
    "--delay-topic",
    "delay_topics",
    metavar="TOPIC",
    multiple=True,
    help="Take messages from this Kafka topic, too; may be repeated.",
)
@click.option(
    "--delay-partitions",
    type=partitions,
    metavar="N,N-N,…",
    help="The partitions of the delay topics that this node reads. [default: all]",
)
@click.option(
    "--delay-from",
    type=click.Choice(CHOICES),
    help="Where to begin in a partition of which the data directory has no position: at the offset"
    " that the group has stored in Kafka, at the first record, or behind the last one. [default:"
    " at the stored one; without it at the first record, if that cannot repeat anything]",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    default=NodeConfig.__dataclass_fields__["dead_letter_topic"].default,
    help="Where messages go that no topic takes or that have expired, with the reason.",
)
@click.option(
    "--unknown-topics",
    type=click.Choice(UNKNOWN_TOPICS),
    default=UNKNOWN_TOPICS[0],
    help="With a Kafka sink, what to do with a message to a topic that Kafka does not have: refuse"
    " it when it is sent, or accept it. Once accepted, it becomes a dead letter if the topic is"
    " still missing when it is due.",
)
@click.option(
    "--delivery",
    type=click.Choice(SEMANTICS),
    default=SEMANTICS[0],
    help="Whether a crash may repeat messages that are just leaving, lose them, or neither; the"
    " same on all peers.",
)
@click.option(
    "--accept-repeats",
    is_flag=True,
    help="With exactly-once: begin although nobody knows which of the last messages have left.",
)
@click.option(
    "--policies",
    "policies_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with levels, retry policies and routes: those of the group when this node"
    " becomes its master.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    help="One line an event on stderr, as text or as JSON.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    help="The least important events that are logged.",
)
@click.option(
    "--retain",
    type=retention,
    metavar="SPAN|BYTES",
    help="Keep what is delivered in archive/, for `slotwheel replay`: for so long (24h), up to so"
    " much (10GiB), or both (24h,10GiB). [default: keep nothing]",
)
@click.option(
    "--trace-retain",
    type=positive_span,
    metavar="SPAN",
    help="Keep for so long which messages left, when and how, for `slotwheel search --id` and"
    " tracing; and with --http the events of the trace topic. [default: keep nothing]",
)
@click.option(
    "--memory",
    type=size,
    metavar="BYTES",
    help="How much memory the node and its gateway may use. Where that is less than they need,"
    " --tail-bytes, --tail-bytes-refuse, --window-bytes and --chunk-bytes have smaller defaults."
    " [default: the limit of the process's control group, or the machine's memory]",
)
@_limits
def command(
    data: Path,
    data_mode: str,
    listen: str,
    metrics: str,
    http: str | None,
    http_names: tuple[str, ...],
    http_log: bool,
    audit: bool,
    group: str,
    node_id: str | None,
    peers: tuple[str, ...],
    election: timedelta,
    slots: int,
    sink: str,
    bootstrap: str | None,
    kafka_settings: dict[str, str],
    delay_topics: tuple[str, ...],
    delay_partitions: tuple[int, ...] | None,
    delay_from: str | None,
    dead_letter_topic: str,
    unknown_topics: str,
    delivery: str,
    accept_repeats: bool,
    policies_path: Path | None,
    log_format: str,
    log_level: str,
    retain: dict[str, int] | None,
    trace_retain: timedelta | None,
    memory: int | None,
    **limits: int | timedelta,
) -> None:
    """Run one node on a data directory, until SIGTERM or Ctrl-C.

    It prints "listening on HOST:PORT" on stderr when it takes messages. Exit code 3 means that the
    disk could not be synced: what was acknowledged is safe, and a restart recovers it.
    """
    set_up(log_format, log_level, sys.stderr)
    keep_private(data, data_mode)
    me = node_id or socket.gethostname()
    among = Group.parse(me, peers) if peers else None
    if among is not None:
        for text in among.warnings:
            event(log, logging.WARNING, text)
        if click.get_current_context().get_parameter_source("listen") is ParameterSource.DEFAULT:
            listen = among.address
    if http is not None:
        need_gateway()
        if click.get_current_context().get_parameter_source("metrics") is ParameterSource.DEFAULT:
            metrics = OFF
    limit = memory_limit() if memory is None else MemoryLimit(memory, "--memory")
    if limit is not None:
        limits |= fitting(limit.nbytes, gateway=http is not None, given=_given(limits))
    config = NodeConfig(
        data=data,
        data_mode=data_mode,
        node_id=me,
        peers={} if among is None else dict(among.peers),
        election_ms=span_ms(election),
        listen=listen,
        metrics=None if metrics == OFF else metrics,
        http=http,
        http_names=http_names,
        http_log=http_log,
        audit=audit,
        log_format=log_format,
        log_level=log_level,
        wheel=wheel_config(group, slots, {**limits, **(retain or {})}),
        sink=sink,
        bootstrap=bootstrap,
        kafka_settings=kafka_settings,
        delay_topics=delay_topics,
        delay_partitions=delay_partitions,
        delay_from=delay_from,
        dead_letter_topic=dead_letter_topic,
        unknown_topics=unknown_topics,
        delivery=delivery,
        accept_repeats=accept_repeats,
        policies=None if policies_path is None else read_policies(policies_path),
        trace_retain_ms=0 if trace_retain is None else span_ms(trace_retain),
        memory=limit,
    )
    run(config)


def _given(limits: dict[str, int | timedelta]) -> dict[str, int]:
    """The limits of memory that stand on the command line, in a variable or in a file."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in limits.items()
        if name in FIELDS and isinstance(value, int) and source(name) is not ParameterSource.DEFAULT
    }


def wheel_config(group: str, slots: int, limits: dict[str, int | timedelta]) -> WheelConfig:
    """The engine's limits, checked against each other. Errors: ``InvalidConfiguration``."""
    assert set(limits) | _OWN == {field.name for field in fields(WheelConfig)}
    plain = {
        name: span_ms(value) if isinstance(value, timedelta) else value
        for name, value in limits.items()
    }
    if plain["tail_bytes_refuse"] < plain["tail_bytes_max"]:
        raise InvalidConfiguration(
            "appends would be refused before the tail is ever spilled",
            got=f"--tail-bytes-refuse {plain['tail_bytes_refuse']}",
            limit=f"{plain['tail_bytes_max']} bytes by --tail-bytes",
            remedy="Raise --tail-bytes-refuse; twice --tail-bytes is a good value",
        )
    if plain["message_bytes_max"] >= plain["batch_bytes_max"]:
        raise InvalidConfiguration(
            "the largest message would not fit into any batch",
            got=f"--message-bytes {plain['message_bytes_max']}",
            limit=f"{plain['batch_bytes_max']} bytes by --batch-bytes",
            remedy="Raise --batch-bytes",
        )
    return WheelConfig(group=group, slots=slots, **plain)
