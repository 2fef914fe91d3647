"""The memory that a node may use, and its limits that follow from that.

Theory: a container is given 400 MB, say. A node that uses more is killed, and again after each
restart, as it finds the same journal. So the node's limits follow from the smallest memory limit of
the process's control group and of those above it, or from the machine's memory where that is less.
From about 1.4 GB on they are those of ``WheelConfig``; with less they shrink together.

    +---------+---------+---------------------+-----------+------------------+-----------------+
    | at rest | gateway | tail, refused above | a spill's | what connections | windows, chunks |
    |         |         |                     | copy      | hold             |                 |
    +---------+---------+---------------------+-----------+------------------+-----------------+

Rules: a limit that an operator gave stays as it is. When the limits together do not fit, an alarm
says so at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..wheel.config import KIB, MIB, WheelConfig
from .descriptors import CONNECTIONS_MIN

NODE_BYTES = 130 * MIB
"""The memory of a node's process at rest, with a Kafka client."""
GATEWAY_BYTES = 130 * MIB
"""The memory of the gateway's process at rest."""
TLS_BYTES = 32 * KIB
"""The memory of a client's connection with TLS, most of it OpenSSL's."""
_WINDOWS = 10
"""The most windows at one time: two of the slot that is delivered and the runs that join them,
those that are ready before their time, one of open files, and those of held-back topics."""
_CHUNKS = 10
"""The most chunks at one time: one of the main line and of four held-back topics each, and a copy
of each for the sink."""
_SLACK = 1.25
"""An allocator holds so many times the memory that is used."""
FIELDS = ("tail_bytes_max", "tail_bytes_refuse", "window_bytes_max", "chunk_bytes_max")
_LEAST = {
    "tail_bytes_max": 4 * MIB,
    "tail_bytes_refuse": 8 * MIB,
    "window_bytes_max": MIB,
    "chunk_bytes_max": MIB // 4,
}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit, bytes, and the file that it stands in."""

    nbytes: int
    source: str


def memory_limit(proc: Path = Path("/proc")) -> MemoryLimit | None:
    """The smallest memory limit of this process; None where no file below ``proc`` has one."""
    limits: list[MemoryLimit] = []
    with suppress(OSError, ValueError, IndexError):
        for path in _files(proc):
            with suppress(OSError, ValueError):  # "max", or no such file in this group
                limits.append(MemoryLimit(int(path.read_text()), str(path)))
    with suppress(OSError, ValueError, IndexError):
        meminfo = proc / "meminfo"
        total = next(line for line in meminfo.read_text().splitlines() if "MemTotal" in line)
        limits.append(MemoryLimit(int(total.split()[1]) * 1024, f"MemTotal in {meminfo}"))
    return min(limits, key=lambda limit: limit.nbytes, default=None)


def _files(proc: Path) -> Iterator[Path]:
    """The files that may hold a limit, of this process's groups and of all above them."""
    groups = {}
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups[controllers] = path
    v1 = next((path for names, path in groups.items() if "memory" in names.split(",")), None)
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields, _, filesystem = line.partition(" - ")
        root, mount = fields.split()[3:5]
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2" and "" in groups:
            yield from _upwards(mount, root, groups[""], "memory.max")
        elif kind == "cgroup" and v1 is not None and "memory" in options.split()[0].split(","):
            yield from _upwards(mount, root, v1, "memory.limit_in_bytes")


def _upwards(mount: str, root: str, group: str, name: str) -> Iterator[Path]:
    """The files ``name`` of a group and of all above it. ``root`` is the group at the mount point.
    In a container the group's path may not be below it: only the mount point can be seen then."""
    inner = PurePosixPath(group)
    inside = inner.relative_to(root) if inner.is_relative_to(root) else PurePosixPath(".")
    while True:
        yield Path(mount) / inside / name
        if inside == PurePosixPath("."):
            return
        inside = inside.parent


def secured_connections(most: int, limit: MemoryLimit | None) -> int:
    """The most connections of clients with TLS: ``most``, or as many as take a tenth of the memory
    that may be used, ``TLS_BYTES`` each. Example: of 256 MiB, 819; else those that are idle would
    take more than the tail."""
    if limit is None:
        return most
    return min(most, max(CONNECTIONS_MIN, limit.nbytes // 10 // TLS_BYTES))


def needed(wheel: WheelConfig, *, gateway: bool) -> int:
    """An estimate of the most bytes that a node takes, with the gateway beside it if it has one."""
    busy = (
        wheel.tail_bytes_refuse
        + 2 * wheel.tail_bytes_max  # a spill's copy; batches that connections hold
        + _WINDOWS * wheel.window_bytes_max
        + _CHUNKS * wheel.chunk_bytes_max
    )
    return int(NODE_BYTES + GATEWAY_BYTES * gateway + _SLACK * busy)


def is_scarce(limit: MemoryLimit | None, *, gateway: bool) -> bool:
    """Returns True when the defaults of ``WheelConfig`` would take more memory than ``limit``."""
    return limit is not None and limit.nbytes < needed(WheelConfig(), gateway=gateway)


def fitting(memory_bytes: int, *, gateway: bool, given: Mapping[str, int]) -> dict[str, int]:
    """The limits that take memory, by their names in ``WheelConfig`` (``FIELDS``): those ``given``
    as they are, and the others so that together they fit into ``memory_bytes``, if they can."""
    usual = WheelConfig()
    available = memory_bytes - needed_at_rest(gateway=gateway)
    share = available / (needed(usual, gateway=gateway) - needed_at_rest(gateway=gateway))
    limits: dict[str, float] = {
        name: max(_LEAST[name], min(1.0, share) * getattr(usual, name)) for name in FIELDS
    }
    limits.update(given)
    if "tail_bytes_refuse" not in given:
        limits["tail_bytes_refuse"] = max(limits["tail_bytes_refuse"], 2 * limits["tail_bytes_max"])
    if "tail_bytes_max" not in given:
        limits["tail_bytes_max"] = min(limits["tail_bytes_max"], limits["tail_bytes_refuse"])
    return {name: int(value) for name, value in limits.items()}


def needed_at_rest(*, gateway: bool) -> int:
    """The bytes that the processes take before the first message."""
    return NODE_BYTES + GATEWAY_BYTES * gateway
