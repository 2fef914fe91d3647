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
from .shared import keep_private, need_gateway


@click.command("gateway")
@options_of(GatewaySettings)
def command(**given: Any) -> None:
    """Serve HTTP for a node or a group: send and look for messages, Kafka's REST proxy, metrics.

    It runs until SIGTERM or Ctrl-C. 'slotwheel node --http' starts one beside its node.
    """
    if given["audit"] and given["data"] is None:
        raise click.UsageError("--audit needs --data.")
    serve(values_of(GatewaySettings, given | {"nodes": tuple(split(given["nodes"]))}))


def serve_beside(share: Mapping[str, Any]) -> None:
    """Serve with what a node gives to the gateway that it starts, and nothing else: the node's
    variables are those of its own options, and ``SLOTWHEEL_LISTEN`` is the node's address there.
    Always ends with ``SystemExit``; errors are printed as those of a command."""
    sys.exit(exit_code(lambda: serve(share)))


def serve(values: Mapping[str, Any]) -> None:
    """Serve until SIGTERM or Ctrl-C, then exit: it never returns. ``values``: fields of
    ``GatewaySettings``. Errors: as of those, of ``need_gateway`` and of ``run``."""
    settings = GatewaySettings(**values)
    set_up(settings.log_format, settings.log_level, sys.stderr)
    keep_private(None, settings.data_mode)
    need_gateway()
    from ..gateway.server import run

    raise_limit()
    run(settings)
    # Threads that wait for a node which is away would keep the process for as long as they do.
    logging.shutdown()
    os._exit(0)
