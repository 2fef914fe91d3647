"""The options by which a command reaches a node, a group or a fleet, and the client they make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..client import Client
from ..client.addresses import Nodes
from ..fleet.file import nodes_of, read_fleet
from ..wheel.protocol import DEFAULT_ADDRESS
from .shared import FILE, combined, is_typed, node_addresses, positive_span

if TYPE_CHECKING:
    from ..fleet.fleet import Fleet
    from ..security.tls import Tls

F = TypeVar("F", bound=Callable[..., Any])
Reached = Nodes | Mapping[str, Nodes]
"""The nodes of one group; or of each wheel of a fleet, by its name."""
_PROOFS = {
    "tls-ca": "With tls://: the authorities that prove the node's certificate, in PEM. [default:"
    " those that the system trusts]",
    "tls-cert": "With tls://: the certificate by which this command proves who it is, in PEM.",
    "tls-key": "The key of --tls-cert, without a password, if it is not in the same file.",
    "token-file": "A file with mode 0600 and the token that proves to the node who calls.",
}


def _reaching(*, whole_fleet: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the addresses and the proofs of the options as one
    ``address``: ``Nodes``; or with ``whole_fleet``, where a fleet and none of its wheels is named,
    the nodes of each wheel by its name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def reaching(
            *arguments: Any,
            address: str,
            fleet: Path | None,
            wheel: str | None,
            tls_ca: Path | None,
            tls_cert: Path | None,
            tls_key: Path | None,
            token_file: Path | None,
            **given: Any,
        ) -> Any:
            tls = None
            if (tls_ca, tls_cert, tls_key) != (None, None, None):
                from ..security.tls import Tls  # OpenSSL: 5 MB that a plain client lacks

                tls = Tls(tls_ca, tls_cert, tls_key)
            token = None if token_file is None else f"file:{token_file}"
            reached: Reached = Nodes(address, tls, token)
            if is_typed("address") and not is_typed("fleet"):
                fleet = None  # of the environment; what was typed is meant
            if fleet is not None:
                reached = _of_fleet(fleet, wheel, tls, token, whole=whole_fleet)
            elif is_typed("wheel"):
                raise click.UsageError("--wheel is for --fleet, the file that names the wheels.")
            return function(*arguments, address=reached, **given)

        return reaching

    return decorate


def _of_fleet(
    fleet: Path, wheel: str | None, tls: Tls | None, token: str | None, *, whole: bool
) -> Reached:
    """The nodes of a fleet's wheels, or of the one that is named. Errors: ``click.UsageError``."""
    if is_typed("address"):
        raise click.UsageError("Give --node or --fleet, not both.")
    wheels = nodes_of(read_fleet(fleet).wheels, tls, token)
    if wheel is None:
        if not whole:
            raise click.UsageError(
                f"This command is about one wheel; name it by --wheel: {', '.join(wheels)}"[:500]
            )
        return wheels
    if wheel not in wheels:
        raise click.UsageError(f"{fleet} has no wheel {wheel!r}; it has {', '.join(wheels)}"[:500])
    return wheels[wheel]


def connected(address: Reached, timeout: timedelta, **options: Any) -> Client | Fleet:
    """A client of the nodes, or of a whole fleet. ``options``: further ones of both."""
    if isinstance(address, Nodes):
        return Client(address, timeout_s=timeout.total_seconds(), **options)
    from ..fleet.fleet import Fleet

    return Fleet(address, timeout_s=timeout.total_seconds(), **options)


def _reach(*, whole_fleet: bool) -> Callable[[F], F]:
    return combined(
        click.option(
            "--node",
            "address",
            type=node_addresses,
            metavar="HOST:PORT,…",
            default=DEFAULT_ADDRESS,
            help="The node to talk to; of a group of peers all of them, the master is found. With"
            " TLS: tls://HOST:PORT,….",
        ),
        click.option(
            "--fleet",
            type=FILE,
            help="In place of --node: the file that names the wheels of a fleet.",
        ),
        click.option(
            "--wheel",
            help="With --fleet: the wheel to talk to."
            + (" [default: that of the message, or all]" if whole_fleet else ""),
        ),
        *(click.option(f"--{name}", type=FILE, help=text) for name, text in _PROOFS.items()),
        click.option(
            "--timeout",
            type=positive_span,
            default="30s",
            help="How long to try when the node does not answer or is overloaded.",
        ),
        _reaching(whole_fleet=whole_fleet),
    )


node_options = _reach(whole_fleet=False)
"""How a command that is about one node or group reaches it; its ``address`` is ``Nodes``."""
wheel_options = _reach(whole_fleet=True)
"""How a command reaches a node, a group or a fleet; ``address`` is for ``connected``."""
