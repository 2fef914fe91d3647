"""One file of ``crashfs``: live and durable bytes, and what lies between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

SECTOR = 512
Mode = Literal["durable", "live", "random"]
MODES: tuple[Mode, ...] = ("durable", "live", "random")


@dataclass
class Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        _write(content, self.position, self.data)


@dataclass
class Truncate:
    length: int

    def apply(self, content: bytearray) -> None:
        if len(content) > self.length:
            del content[self.length :]
        else:
            content.extend(bytes(self.length - len(content)))


@dataclass
class Node:
    """One file. ``pending`` is what a sync would still write to make ``durable`` equal ``live``."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    modified_ms: int | None = None
    """As it was set; None: it was not."""

    def change(self, operation: Write | Truncate) -> None:
        operation.apply(self.live)
        self.pending.append(operation)

    def sync(self) -> None:
        for operation in self.pending:
            operation.apply(self.durable)
        self.pending.clear()


def surviving(node: Node, mode: Mode, rng: Random) -> Node:
    content = bytearray(node.durable)
    if mode == "live":
        return Node(bytearray(node.live), content, list(node.pending))
    if mode == "random":
        for operation in node.pending:
            if isinstance(operation, Truncate):
                if rng.random() < 0.5:
                    operation.apply(content)
            else:
                _survive(content, operation, rng)
    return Node(bytearray(content), content)


def _survive(content: bytearray, write: Write, rng: Random) -> None:
    fate = rng.choice(("whole", "sectors", "none"))
    if fate == "whole":
        write.apply(content)
    elif fate == "sectors":
        end = write.position + len(write.data)
        at = write.position
        while at < end:
            edge = min(end, at - at % SECTOR + SECTOR)
            if rng.random() < 0.5:
                _write(content, at, write.data[at - write.position : edge - write.position])
            at = edge
    if rng.random() < 0.5:  # the new size may reach the disk without the bytes
        content.extend(bytes(max(0, write.position + len(write.data) - len(content))))


def _write(content: bytearray, position: int, data: bytes) -> None:
    if data and position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
