"""The gateway beside a node: a process of its own, started again when it ends."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..aside.process import Aside
from ..wheel.errors import NotRunning

if TYPE_CHECKING:  # the gateway, which imports this module, does without
    from .config import NodeConfig

_LOOK_EVERY_S = 0.2
GATEWAY_END_S = 2.0
"""The time, s, that the gateway gets to end: for its requests, and the last sums for the audit."""


class GatewayProcess:
    """The gateway's process. ``listening``: the address of the node beside it. ``turn`` is for a
    ``Loop``, whose waits after errors are the pauses between two starts."""

    def __init__(self, config: NodeConfig, listening: str) -> None:
        self._aside = Aside("the gateway", _serve, arguments(config, listening), nice=0)

    def turn(self) -> float:
        """Start the process if it does not run, and wait a moment for its end.

        Errors: ``NotRunning``: it has ended."""
        try:
            self._aside.receive(_LOOK_EVERY_S)
        except NotRunning:
            if not self._aside.closed:
                raise
            return _LOOK_EVERY_S
        return 0.0

    def stop(self) -> None:
        """End the process, by force if it does not end in time."""
        self._aside.close(GATEWAY_END_S)


def arguments(config: NodeConfig, listening: str) -> Sequence[str]:
    """The gateway's command-line options. The node sends them through the socket between the two,
    where nobody else sees them, so they may have passwords."""
    assert config.http is not None
    others = [address for peer, address in config.peers.items() if peer != config.node_id]
    given = {
        "listen": config.http,
        "node": ",".join([listening, *others]),
        "data": str(config.data),
        "data-mode": config.data_mode,
        "dead-letter-topic": config.dead_letter_topic,
        "log-format": config.log_format,
        "log-level": config.log_level,
    }
    if config.bootstrap is not None:
        given["bootstrap"] = config.bootstrap
    if config.trace_retain_ms:
        given["trace-retain"] = f"{config.trace_retain_ms}ms"
    if config.audit:
        given["audit-ahead"] = f"{config.wheel.horizon_ms}ms"
    options = [f"--{name}={value}" for name, value in given.items()]
    options += [f"--http-name={name}" for name in config.http_names]
    options += [f"--kafka={name}={value}" for name, value in config.kafka_settings.items()]
    options += ["--access-log"] if config.http_log else []
    options += ["--audit"] if config.audit else []
    return options


def _serve(_line: object, options: Sequence[str]) -> None:
    importlib.import_module("slotwheel.cli.main").main(["gateway", *options])
