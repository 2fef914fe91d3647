"""``slotwheel gateway``: HTTP in front of a node or a group of nodes."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import click

from ..client.addresses import split
from ..node.descriptors import raise_limit
from ..node.logs import FORMATS, LEVELS, set_up
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..trace.events import TRACE_TOPIC
from ..wheel.protocol import DEFAULT_ADDRESS
from .shared import (
    data_mode_option,
    host_name,
    kafka_option,
    keep_private,
    need_gateway,
    node_addresses,
    positive_span,
    span_ms,
)

DEFAULT_LISTEN = "127.0.0.1:8082"


@click.command("gateway")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    help="Where HTTP is served; port 0 takes a free one. It has no authentication: keep it on a"
    " trusted network.",
)
@click.option(
    "--http-name",
    "names",
    type=host_name,
    metavar="NAME",
    multiple=True,
    help="Take requests for this name, too (*.example.com: for all below that one); may be"
    " repeated. Names that a page of another site could have are refused otherwise.",
)
@click.option(
    "--node",
    "nodes",
    type=node_addresses,
    metavar="HOST:PORT,…",
    default=DEFAULT_ADDRESS,
    help="The node; of a group of peers all of them, the one beside the gateway first.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory of the node beside the gateway, for search and embedded topics."
    " Without it search, and what is known of a message, are off.",
)
@data_mode_option
@click.option("--bootstrap", metavar="HOST:PORT,…", help="Kafka's brokers, for the REST proxy.")
@kafka_option
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    default=DEAD_LETTER_TOPIC,
    help="The dead-letter topic of the node.",
)
@click.option(
    "--trace-retain",
    type=positive_span,
    metavar="SPAN",
    help="Store the events of the trace topic, for so long, for `slotwheel trace` and /v1/trace."
    " [default: store none]",
)
@click.option(
    "--trace-topic",
    metavar="TOPIC",
    default=TRACE_TOPIC,
    help="Where clients and consumers send events: a topic of Kafka with --bootstrap, or else an"
    " embedded one.",
)
@click.option(
    "--trace-store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where they are stored, if it is not trace/ in the data directory.",
)
@click.option(
    "--audit", is_flag=True, help="Compare all tiers of the node beside it: /v1/audit, metrics."
)
@click.option(
    "--audit-interval",
    type=positive_span,
    default="10s",
    help="With --audit: as of 'slotwheel audit --interval'.",
)
@click.option(
    "--audit-ahead",
    type=positive_span,
    default="2h",
    help="With --audit: as of 'slotwheel audit --ahead'; a node tells its own.",
)
@click.option(
    "--others",
    metavar="TOPIC",
    multiple=True,
    help="With --audit: as of 'slotwheel audit --others'; may be repeated.",
)
@click.option("--access-log", is_flag=True, help="Log each request.")
@click.option(
    "--log-format", type=click.Choice(FORMATS), default=FORMATS[0], help="As of 'slotwheel node'."
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", help="As of 'slotwheel node'."
)
def command(
    listen: str,
    names: tuple[str, ...],
    nodes: str,
    data: Path | None,
    data_mode: str,
    bootstrap: str | None,
    kafka_settings: dict[str, str],
    dead_letter_topic: str,
    trace_retain: timedelta | None,
    trace_topic: str,
    trace_store: Path | None,
    audit: bool,
    audit_interval: timedelta,
    audit_ahead: timedelta,
    others: tuple[str, ...],
    access_log: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Serve HTTP for a node or a group: send and look for messages, Kafka's REST proxy, metrics.

    It runs until SIGTERM or Ctrl-C. 'slotwheel node --http' starts one beside its node.
    """
    set_up(log_format, log_level, sys.stderr)
    keep_private(None, data_mode)
    need_gateway()
    from ..gateway.server import run
    from ..gateway.settings import GatewaySettings

    if audit and data is None:
        raise click.UsageError("--audit needs --data.")
    raise_limit()
    settings = GatewaySettings(
        listen=listen,
        names=names,
        nodes=tuple(split(nodes)),
        data=data,
        bootstrap=bootstrap,
        kafka=kafka_settings,
        dead_letter_topic=dead_letter_topic,
        trace_retain_ms=0 if trace_retain is None else span_ms(trace_retain),
        trace_topic=trace_topic,
        trace_store=trace_store,
        audit=audit,
        audit_interval_ms=span_ms(audit_interval),
        audit_ahead_ms=span_ms(audit_ahead),
        audit_others=others,
        access_log=access_log,
    )
    run(settings)
    # Threads that wait for a node which is away would keep the process for as long as they do.
    logging.shutdown()
    os._exit(0)
