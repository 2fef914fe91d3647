"""The files and sockets that this process may have open, and how they are shared out.

Theory: connections, slot files, segments and sockets to Kafka are descriptors, and the kernel gives
them out in the order of requests: a thousand clients could keep the node from opening the slot that
is due. So clients' connections get at most half of all descriptors, and leave as many as files need
at their most.
"""

from __future__ import annotations

import contextlib
import resource

from ..delivery.embedded.sink import OPEN_FILES_MAX
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration
from ..wire.server import NEWCOMERS_MAX
from .intake.wire import CONNECTIONS_MAX

OTHERS = 100
"""Descriptors besides slot files and topics: segments, state, directories, listeners, Kafka."""
METRICS_MAX = 64
"""Connections to the port for metrics and health."""
CONNECTIONS_MIN = 16


def raise_limit() -> None:
    """Raise the process's limit of open files to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # otherwise it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def for_connections(config: WheelConfig, limit: int) -> int:
    """The most connections of clients where ``limit`` files may be open.

    Errors: ``InvalidConfiguration``: not even ``CONNECTIONS_MIN``."""
    files = config.open_handles_max + OPEN_FILES_MAX + OTHERS + METRICS_MAX + NEWCOMERS_MAX
    if limit < files + CONNECTIONS_MIN:
        raise InvalidConfiguration(
            "too few files may be open at a time",
            got=limit,
            limit=f"at least {files + CONNECTIONS_MIN}",
            remedy="Raise the limit for the node's process (ulimit -n, systemd's LimitNOFILE), or"
            " lower --open-handles",
        )
    return min(CONNECTIONS_MAX, limit // 2, limit - files)
