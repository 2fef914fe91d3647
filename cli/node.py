"""``slotwheel node``: run one node."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..node.budget import FIELDS, MemoryLimit, fitting, memory_limit
from ..node.config import NodeConfig
from ..node.logs import event, set_up
from ..node.process import run
from ..replication.rules.group import Group
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration
from .configfile import read_policies, read_settings
from .settings import options_of, values_of
from .shared import keep_private, need_gateway

log = logging.getLogger("slotwheel.node")

OFF = "off"


@click.command("node")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=read_settings,
    help="Read these options from a TOML file; what is given here wins.",
)
@options_of(NodeConfig, WheelConfig)
def command(**options: Any) -> None:
    """Run one node on a data directory, until SIGTERM or Ctrl-C.

    It prints "listening on HOST:PORT" on stderr when it takes messages. Exit code 3 means that the
    disk could not be synced: what was acknowledged is safe, and a restart recovers it.
    """
    set_up(options["log_format"], options["log_level"], sys.stderr)
    keep_private(options["data"], options["data_mode"])
    settings = values_of(NodeConfig, options)
    limits = values_of(WheelConfig, options)
    settings["node_id"] = options["node_id"] or socket.gethostname()
    if settings["peers"]:
        group = Group.parse(settings["node_id"], settings["peers"])
        for warning in group.warnings:
            event(log, logging.WARNING, warning)
        settings["peers"] = dict(group.peers)
        if _is_default("listen") and "peer_cert" not in settings:
            settings["listen"] = group.address
    else:
        settings["peers"] = {}
    with_gateway = "http" in settings
    if with_gateway:
        need_gateway()
    if settings["metrics"] == OFF or (with_gateway and _is_default("metrics")):
        settings["metrics"] = None
    memory = settings.get("memory")
    settings["memory"] = memory_limit() if memory is None else MemoryLimit(memory, "--memory")
    if settings["memory"] is not None:
        given = {name: limits[name] for name in FIELDS if not _is_default(name)}
        limits |= fitting(settings["memory"].nbytes, gateway=with_gateway, given=given)
    if "policies" in settings:
        settings["policies"] = read_policies(settings["policies"])
    limits |= limits.pop("retain_ms", {})
    run(NodeConfig(**settings, wheel=wheel_config(limits)))


def _is_default(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def wheel_config(limits: dict[str, Any]) -> WheelConfig:
    """The engine's limits, checked against each other. Errors: ``InvalidConfiguration``."""
    if limits["tail_bytes_refuse"] < limits["tail_bytes_max"]:
        raise InvalidConfiguration(
            "appends would be refused before the tail is ever spilled",
            got=f"--tail-bytes-refuse {limits['tail_bytes_refuse']}",
            limit=f"{limits['tail_bytes_max']} bytes by --tail-bytes",
            remedy="Raise --tail-bytes-refuse; twice --tail-bytes is a good value",
        )
    if limits["message_bytes_max"] >= limits["batch_bytes_max"]:
        raise InvalidConfiguration(
            "the largest message would not fit into any batch",
            got=f"--message-bytes {limits['message_bytes_max']}",
            limit=f"{limits['batch_bytes_max']} bytes by --batch-bytes",
            remedy="Raise --batch-bytes",
        )
    return WheelConfig(**limits)
