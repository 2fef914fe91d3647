"""``slotwheel gateway``: HTTP in front of a node or a group of nodes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from ..client.addresses import split
from ..gateway.settings import GatewaySettings
from ..node.descriptors import raise_limit
from ..node.logs import set_up
from .main import exit_code
from .settings import options_of, values_of
from .shared import is_typed, keep_private, need_gateway


@click.command("gateway")
@options_of(GatewaySettings)
def command(**options: Any) -> None:
    """Serve HTTP for a node, a group or a fleet: send and look for messages, metrics, Kafka's REST
    proxy.

    It runs until SIGTERM or Ctrl-C. 'slotwheel node --http' starts one beside its node.
    """
    if options["audit"] and options["data"] is None:
        raise click.UsageError("--audit needs --data.")
    if options["fleet"] is not None and is_typed("nodes"):
        raise click.UsageError("Give --node or --fleet, not both.")
    serve(values_of(GatewaySettings, options | {"nodes": tuple(split(options["nodes"]))}))


def serve_beside(share: Mapping[str, Any]) -> None:
    """Serve with the settings that a node hands to the gateway beside it, and no others: that
    process has the node's variables, whose ``SLOTWHEEL_LISTEN`` is the node's own address. Always
    ends with ``SystemExit``; errors are printed as those of a command."""
    sys.exit(exit_code(lambda: serve(share)))


def serve(values: Mapping[str, Any]) -> None:
    """Serve until SIGTERM or Ctrl-C, then end the process. ``values``: fields of
    ``GatewaySettings``. Errors: as of these, of ``need_gateway`` and of ``run``."""
    settings = GatewaySettings(**values)
    set_up(settings.log_format, settings.log_level, sys.stderr)
    keep_private(None, settings.data_mode)
    need_gateway()
    from ..gateway.server import run

    raise_limit()
    run(settings)
    # Otherwise threads that wait for a node which is away would keep the process alive.
    logging.shutdown()
    os._exit(0)
