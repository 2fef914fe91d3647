"""Wheels of a fleet as real nodes with their gateways, and a gateway over all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.fakefleet import NAMES
from support.gatewayprocess import GatewayProcess, NodeWithGateway
from support.nodeprocess import command_line


class FrontProcess(GatewayProcess):
    """Runs ``slotwheel gateway --fleet FILE``; ready when the ``with`` block is entered."""

    def __init__(self, fleet: Path, first: NodeWithGateway, *options: str) -> None:
        """``first``: any of its nodes, beside whose data the log is written."""
        super().__init__(first, *options, beside=False)
        self._fleet = fleet

    def command(self) -> list[str]:
        listen = ("--listen", "127.0.0.1:0")
        return command_line("gateway", *listen, "--fleet", str(self._fleet), *self._options)


@dataclass(frozen=True, slots=True)
class FleetOfNodes:
    """``nodes``: by the wheels' names; ``file``: that names them; ``front``: the gateway."""

    nodes: dict[str, NodeWithGateway]
    file: Path
    front: FrontProcess


def fleet_file(path: Path, nodes: dict[str, NodeWithGateway]) -> Path:
    lines = ["[wheels]", *(f'{name} = "{node.address}"' for name, node in nodes.items())]
    lines += ["[gateways]", *(f'{name} = "{node.url}"' for name, node in nodes.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


@contextlib.contextmanager
def fleet_of_nodes(
    folder: Path, names: Sequence[str] = NAMES, *options: str, front: Sequence[str] = ()
) -> Iterator[FleetOfNodes]:
    """``options``: of each node; ``front``: of the gateway over them."""
    with contextlib.ExitStack() as stack:
        nodes = {
            name: stack.enter_context(NodeWithGateway(folder / name, "--group", name, *options))
            for name in names
        }
        file = fleet_file(folder / "fleet.toml", nodes)
        first = nodes[names[0]]
        yield FleetOfNodes(nodes, file, stack.enter_context(FrontProcess(file, first, *front)))
