"""Packets of the append protocol: whole, in pieces, and with bytes that are wrong."""

from __future__ import annotations

import struct

import pytest

from slotwheel.wheel.errors import InvalidBatch, SlotwheelError, UnsupportedVersion
from slotwheel.wheel.packets import MAGIC, Packet, PacketReader, encode_hello, encode_packet
from slotwheel.wheel.protocol import AppendCommand

LARGE = bytes(range(256)) * 400  # larger than what is copied
BODIES = [b"", b"a small one", LARGE, b"and another"]
STREAM = encode_hello(AppendCommand(7)) + b"".join(
    encode_packet(bytes([number]) * 8, len(body)) + body for number, body in enumerate(BODIES)
)
EXPECTED = [(AppendCommand(7).encode(), b"")] + [
    (bytes([number]) * 8, body) for number, body in enumerate(BODIES)
]


def read_in_pieces(reader: PacketReader, data: bytes, size: int) -> list[tuple[bytes, bytes]]:
    found: list[Packet] = []
    at = 0
    while at < len(data):
        room = reader.room
        piece = data[at : at + (size if room is None else min(size, len(room)))]
        if room is None:
            reader.feed(piece)
        else:
            room[: len(piece)] = piece
            reader.received(len(piece))
        at += len(piece)
        while (packet := reader.next()) is not None:
            found.append(packet)
    return [(one.metadata, one.body.to_pybytes()) for one in found]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000, 65_536, len(STREAM)])
def test_frames_are_the_same_whatever_the_pieces(size: int) -> None:
    reader = PacketReader(1024, 1 << 20)
    assert read_in_pieces(reader, STREAM, size) == EXPECTED
    assert reader.between_packets


def test_bytes_behind_the_last_whole_frame_wait_for_the_rest() -> None:
    reader = PacketReader(1024, 1 << 20, greeted=True)
    packet = encode_packet(b"metadata", 3) + b"abc"
    assert read_in_pieces(reader, packet + packet[:-1], 1000) == [(b"metadata", b"abc")]
    assert not reader.between_packets
    assert read_in_pieces(reader, packet[-1:], 1) == [(b"metadata", b"abc")]


@pytest.mark.parametrize("place", range(8))
def test_each_byte_of_the_magic_counts(place: int) -> None:
    wrong = bytearray(STREAM)
    wrong[place] ^= 0x10
    reader = PacketReader(1024, 1 << 20)
    with pytest.raises(InvalidBatch if place < len(MAGIC) else UnsupportedVersion):
        read_in_pieces(reader, bytes(wrong), len(wrong))


@pytest.mark.parametrize("lengths", [(1025, 0), (0, 1001), (2**32 - 1, 0), (0, 2**32 - 1)])
def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated(
    lengths: tuple[int, int],
) -> None:
    reader = PacketReader(1024, 1000, greeted=True)
    reader.feed(struct.pack("<II", *lengths))
    with pytest.raises(InvalidBatch, match="a packet is too large"):
        reader.next()


def test_another_protocol_is_named() -> None:
    reader = PacketReader(1024, 1000)
    reader.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(SlotwheelError, match="GET / HT"):
        reader.next()
