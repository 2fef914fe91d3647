"""The file that names the wheels of a fleet.

    [wheels]
    north = "a:7200,b:7200,c:7200"
    south = "tls://d:7200"

    [gateways]
    north = "http://a:8082,http://b:8082"
    south = "https://d:8082"

A wheel is named as its group (``--group`` of its nodes): an id begins with that name, so whoever
has an id knows its wheel. The value is what ``Client`` takes for the nodes of one group. Gateways
are those beside these nodes, each with the data directory of one: whoever searches asks them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.addresses import (
    SCHEMES,
    Nodes,
    check_addresses,
    place_of,
    split,
    without_scheme,
)
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration

if TYPE_CHECKING:
    from ..security.tls import Tls


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The content of a fleet's file: of each wheel, by its name, the addresses of its nodes, and
    those of its gateways, if it says any."""

    wheels: Mapping[str, str]
    gateways: Mapping[str, tuple[str, ...]]


WHEELS_MAX = 10_000
"""The most wheels of a fleet; routing was measured with 1,000."""
_EXAMPLE = '[wheels] and a line north = "a:7200,b:7200" for each wheel'


def read_fleet(path: str | os.PathLike[str]) -> FleetFile:
    """Read a fleet's file. Errors: ``InvalidConfiguration``, which names the place in the file."""
    try:
        fields = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(
            "the file of a fleet cannot be read",
            got=f"{os.fspath(path)}: {error}",
            remedy=f"Give a file with {_EXAMPLE}",
        ) from None
    if unknown := sorted(fields.keys() - {"wheels", "gateways"}):
        problem = f"the file of a fleet says {', '.join(unknown)}"
        raise _wrong(path, problem, "[wheels] and [gateways] alone")
    wheels = _texts(path, fields.get("wheels"), "wheels", "host:port,host:port")
    given = _texts(path, fields.get("gateways", {}), "gateways", "http://host:port,…")
    gateways = {name: split(addresses) for name, addresses in given.items()}
    for name, addresses in gateways.items():
        if name not in wheels:
            problem = f"[gateways] names {name!r}, and [wheels] does not"
            raise _wrong(path, problem, ", ".join(wheels)[:500])
        try:
            for address in addresses:
                place_of(address)
        except ValueError:
            problem = f"the gateways of the wheel {name!r} cannot be reached at {address!r}"
            raise _wrong(path, problem[:300], "http://host:port or https://host:port") from None
    return FleetFile(wheels, gateways)


def _texts(path: str | os.PathLike[str], table: object, title: str, example: str) -> dict[str, str]:
    """A table of the file: a text of addresses for each wheel."""
    if not isinstance(table, dict):
        raise _wrong(path, f"the file of a fleet names no {title}", _EXAMPLE)
    for name, addresses in table.items():
        if not isinstance(addresses, str):
            text = f"in [{title}] the addresses of the wheel {name!r} are no text: {addresses!r}"
            raise _wrong(path, text[:200], f'"{example}"')
    return table


def nodes_of(
    wheels: Mapping[str, str | Sequence[str] | Nodes],
    tls: Tls | None = None,
    token: str | None = None,
) -> dict[str, Nodes]:
    """The nodes of each wheel, reached by ``tls`` and ``token`` where they say nothing else.
    Errors: ``InvalidConfiguration`` for a name that no group can have, for an address that no node
    has, and for one that two wheels have: all their messages would go to one of them."""
    if not 1 <= len(wheels) <= WHEELS_MAX:
        raise InvalidConfiguration(
            "not a fleet",
            got=f"{len(wheels)} wheels",
            limit=f"1 to {WHEELS_MAX} wheels",
            remedy=f"Write {_EXAMPLE}",
        )
    owner: dict[str, str] = {}
    nodes: dict[str, Nodes] = {}
    for name, given in wheels.items():
        WheelConfig(group=name)
        nodes[name] = Nodes.of(given, tls, token)
        addresses = _addresses(name, nodes[name])
        for address in addresses:
            if address in owner:
                raise InvalidConfiguration(
                    "two wheels of a fleet have one address",
                    got=f"{address}: {owner[address]} and {name}",
                    limit="each node belongs to one wheel",
                    remedy="Write the nodes of one wheel into one line",
                )
            owner[address] = name
    return nodes


def _addresses(name: str, nodes: Nodes) -> Sequence[str]:
    _, addresses = without_scheme(split(nodes.given))
    if any(address.startswith(SCHEMES) for address in addresses):
        raise InvalidConfiguration(
            "a fleet is reached at its nodes",
            got=f"{name}: {', '.join(addresses)}"[:200],
            limit="host:port, or tls://host:port",
            remedy="Over HTTP, a gateway that was started with the fleet's file stands for all",
        )
    check_addresses(addresses)
    return addresses


def _wrong(path: str | os.PathLike[str], problem: str, limit: str) -> InvalidConfiguration:
    text: Any = os.fspath(path)
    return InvalidConfiguration(problem, got=text, limit=limit, remedy="Change the file")
