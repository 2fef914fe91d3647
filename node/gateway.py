"""The gateway beside a node: a process of its own, started again when it ends."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ..aside.process import Aside
from ..wheel.config import settings_of
from ..wheel.errors import NotRunning
from ..wheel.protocol import split_address

if TYPE_CHECKING:  # the gateway, which imports this module, does without
    from .config import NodeConfig

_LOOK_EVERY_S = 0.2
GATEWAY_END_S = 2.0
"""The time, s, that the gateway gets to end: for its requests, and the last sums for the audit."""


class GatewayProcess:
    """The gateway's process. ``listening``: the address of the node beside it. ``turn`` is for a
    ``Loop``, whose waits after errors are the pauses between two starts."""

    def __init__(self, config: NodeConfig, listening: str) -> None:
        self._aside = Aside("the gateway", _serve, share(config, listening), nice=0)

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


def share(config: NodeConfig, listening: str) -> dict[str, Any]:
    """The node's share in the settings of its gateway: fields of ``GatewaySettings``. They go by
    the pipe, as they may have passwords."""
    others = [address for one, address in config.peers.items() if one != config.node_id]
    if config.peer_cert is not None:  # at those addresses peers meet, and no clients
        others = []
    if config.tls_cert is not None:
        listening = _secure_address(listening)
    return {
        "nodes": (listening, *others),
        "audit_ahead_ms": config.wheel.short_horizon_ms,
        **{
            declared.gateway: getattr(config, name)
            for name, declared in settings_of(type(config)).items()
            if declared.gateway
        },
    }


def _secure_address(listening: str) -> str:
    """The address of the node for a gateway beside it, with TLS. Where the node listens on every
    address, it is ``localhost``, which its certificate has to name then."""
    host, port = split_address(listening)
    with contextlib.suppress(ValueError):
        if ip_address(host).is_unspecified:
            host = "localhost"
    return f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"


def _serve(_line: object, values: Mapping[str, Any]) -> None:
    """In the process."""
    importlib.import_module("slotwheel.cli.gateway").serve_beside(values)
