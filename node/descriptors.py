"""How many files and sockets this process may have open, and who gets how many of them.

Theory: a connection, a slot file, a segment and a socket to Kafka are each a descriptor, and the
kernel gives them to whoever asks first. So clients' connections are the ones that are bounded: they
take at most half of what there is, and leave what the files need at their most.
"""

from __future__ import annotations

import contextlib
import resource

from ..delivery.embedded.sink import OPEN_FILES_MAX
from ..intake.connections import CONNECTIONS_MAX
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration

OTHERS = 100
"""Besides slot files and topics: segments, state, directories, listeners, Kafka, peers."""
METRICS_MAX = 64
"""Connections to the port for metrics and health."""
CONNECTIONS_MIN = 16


def raise_limit() -> None:
    """Let the process have as many as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def for_connections(config: WheelConfig, limit: int) -> int:
    """How many connections clients may have. Errors: ``InvalidConfiguration``."""
    files = config.open_handles_max + OPEN_FILES_MAX + OTHERS + METRICS_MAX
    if limit < files + CONNECTIONS_MIN:
        raise InvalidConfiguration(
            "too few files may be open at a time",
            got=limit,
            limit=f"at least {files + CONNECTIONS_MIN}",
            remedy="Raise the limit for the node's process (ulimit -n, systemd's LimitNOFILE), or"
            " lower --open-handles",
        )
    return min(CONNECTIONS_MAX, limit // 2, limit - files)
