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
"""For the requests that it has, and the last sums for the audit."""


class GatewayProcess:
    """``listening``: where the node beside it takes messages. ``turn`` is for a ``Loop``, whose
    waits after errors are those between two starts."""

    def __init__(self, config: NodeConfig, listening: str) -> None:
        self._aside = Aside("the gateway", _serve, arguments(config, listening), nice=0)

    def turn(self) -> float:
        """Start it if it does not run, and wait a moment for its end. Errors: ``NotRunning``."""
        try:
            self._aside.receive(_LOOK_EVERY_S)
        except NotRunning:
            if not self._aside.closed:
                raise
            return _LOOK_EVERY_S
        return 0.0

    def stop(self) -> None:
        """End it, by force if it does not end in time."""
        self._aside.close(GATEWAY_END_S)


def arguments(config: NodeConfig, listening: str) -> Sequence[str]:
    """The options of the gateway of a node. They go by its line, so they may have passwords."""
    assert config.http is not None
    others = [address for one, address in config.peers.items() if one != config.node_id]
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
    """In the process."""
    importlib.import_module("slotwheel.cli.main").main(["gateway", *options])
