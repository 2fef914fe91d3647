"""Frames of the wire: whole, in pieces, and with bytes that are wrong."""

from __future__ import annotations

import itertools
import struct
import weakref

import pytest

from slotwheel.wheel.errors import (
    InvalidBatch,
    NodeUnreachable,
    SlotwheelError,
    UnsupportedVersion,
)
from slotwheel.wire.frames import (
    HELLO_BYTES_MAX,
    MAGIC,
    OF_NEWCOMER,
    OF_NODE,
    VERSION,
    WHOLE,
    Frame,
    FrameLimits,
    FrameReader,
    Kind,
    decode_action,
    encode_action,
    encode_error,
    encode_frame,
    encode_hello,
    encode_result,
    error_of,
    last_word,
)

LARGE = bytes(range(256)) * 400  # larger than what is copied
BODIES = [b"", b"a small one", LARGE, b"and another"]
TAKEN: FrameLimits = {Kind.HELLO: (0, 100), Kind.BATCH: (24, 1 << 20)}
STREAM = encode_hello(b"{}") + b"".join(
    encode_frame(Kind.BATCH, bytes([number]) * 8, len(body)) + body
    for number, body in enumerate(BODIES)
)
EXPECTED = [(Kind.HELLO, b"", b"{}")] + [
    (Kind.BATCH, bytes([number]) * 8, body) for number, body in enumerate(BODIES)
]


def read_in_pieces(reader: FrameReader, data: bytes, size: int) -> list[tuple[int, bytes, bytes]]:
    found: list[Frame] = []
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
        while (frame := reader.next()) is not None:
            found.append(frame)
    return [(one.kind, one.metadata, bytes(one.body)) for one in found]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000, 65_536, len(STREAM)])
def test_frames_are_the_same_whatever_the_pieces(size: int) -> None:
    reader = FrameReader(TAKEN)
    assert read_in_pieces(reader, STREAM, size) == EXPECTED
    assert reader.empty


def test_bytes_behind_the_last_whole_frame_wait_for_the_rest() -> None:
    reader = FrameReader(TAKEN, greeted=True)
    frame = encode_frame(Kind.BATCH, b"metadata", 3) + b"abc"
    expected = [(Kind.BATCH, b"metadata", b"abc")]
    assert read_in_pieces(reader, frame + frame[:-1], 1000) == expected
    assert not reader.empty
    assert read_in_pieces(reader, frame[-1:], 1) == expected


def test_a_large_body_is_bytes_like_a_small_one() -> None:
    body = bytes(range(256)) * 1000
    reader = FrameReader({Kind.BATCH: (0, len(body))}, greeted=True)
    sent = encode_frame(Kind.BATCH, b"", len(body)) + body
    reader.feed(sent[:1000])
    assert reader.next() is None
    assert reader.room is not None
    reader.room[:] = sent[1000:]
    reader.received(len(sent) - 1000)
    frame = reader.next()
    assert frame is not None
    assert frame.body == body


def test_a_large_body_is_kept_by_nobody_once_it_is_given_out() -> None:
    reader = FrameReader(TAKEN, greeted=True)
    reader.feed(encode_frame(Kind.BATCH, b"", len(LARGE)))
    assert reader.next() is None
    room = reader.room
    assert room is not None
    room[:] = LARGE
    assert reader.body_bytes == len(LARGE)
    reader.received(len(LARGE))
    del room
    frame = reader.next()
    assert frame is not None
    assert isinstance(frame.body, memoryview)
    kept = weakref.ref(frame.body.obj)
    assert kept() is not None
    del frame
    assert kept() is None
    assert reader.body_bytes == 0


@pytest.mark.parametrize("place", range(8))
def test_each_byte_of_the_magic_counts(place: int) -> None:
    wrong = bytearray(STREAM)
    wrong[place] ^= 0x10
    reader = FrameReader(TAKEN)
    with pytest.raises(InvalidBatch if place < len(MAGIC) else UnsupportedVersion):
        read_in_pieces(reader, bytes(wrong), len(wrong))


FOREIGN = {
    "another version": (MAGIC + struct.pack("<H", 7), "version 7", "version 1"),
    "HTTP/1": (b"GET / HTTP/1.1\r\n", "GET / HT", "version 1"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI", "version 1"),
    "an append edge's client": (b"SWAPPND\x01" + bytes(8), "SWAPPND", "version 1"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", r"\\x16\\x03", "version 1"),
}


@pytest.mark.parametrize("whose", FOREIGN)
def test_who_speaks_something_else_is_told_what_is_spoken_here(whose: str) -> None:
    sent, got, limit = FOREIGN[whose]
    reader = FrameReader(OF_NEWCOMER)
    reader.feed(sent)
    with pytest.raises(SlotwheelError, match=f"{got}.*{limit}"):
        reader.next()


ANSWERS = {
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n", NodeUnreachable, "no slotwheel node"),
    "an HTTP/2 server": (bytes(3) + b"\x04" + bytes(5), UnsupportedVersion, "Arrow Flight"),
    "an SSH server": (b"SSH-2.0-OpenSSH_9.2\r\n", NodeUnreachable, "SSH-2.0"),
}


@pytest.mark.parametrize("whose", ANSWERS)
def test_a_client_is_told_that_no_node_answers(whose: str) -> None:
    sent, kind, text = ANSWERS[whose]
    reader = FrameReader(OF_NODE, greeted=True)
    reader.feed(sent)
    with pytest.raises(kind, match=text):
        reader.next()


def test_what_comes_behind_a_first_frame_is_judged_as_a_frame() -> None:
    reader = FrameReader(OF_NODE, greeted=True)
    reader.feed(encode_frame(Kind.WELCOME) + b"HTTP/1.1")
    assert reader.next() is not None
    with pytest.raises(InvalidBatch, match="kind 72"):
        reader.next()


LENGTHS = [0, 1, 99, 100, 101, 1 << 31, (1 << 32) - 1]


@pytest.mark.parametrize("body", LENGTHS)
def test_a_length_is_compared_with_its_kinds_limit_before_anything_is_allocated(body: int) -> None:
    limits: FrameLimits = {Kind.BATCH: (24, 100), Kind.ACTION: (0, 1)}
    for kind, metadata in itertools.product(range(16), (0, 1, 24, 25, (1 << 16) - 1)):
        reader = FrameReader(limits, greeted=True)
        reader.feed(encode_frame(Kind.BATCH) + struct.pack("<BBHI", kind, 0, metadata, body))
        assert reader.next() is not None
        limit = limits.get(kind)
        if limit is None or metadata > limit[0] or body > limit[1]:
            with pytest.raises(InvalidBatch, match="may send here" if limit is None else "large"):
                reader.next()
        else:
            assert (reader.next() is None) == bool(metadata or body)
        assert reader.body_bytes == 0


def test_the_reserved_byte_is_zero() -> None:
    reader = FrameReader(TAKEN)
    reader.feed(encode_hello(b"{}")[:8] + struct.pack("<BBHI", Kind.BATCH, 1, 0, 0))
    with pytest.raises(InvalidBatch, match="1 where 0 has to be"):
        reader.next()


def test_a_hello_is_bounded() -> None:
    reader = FrameReader(OF_NEWCOMER)
    reader.feed(encode_hello(bytes(HELLO_BYTES_MAX + 1)))
    with pytest.raises(InvalidBatch, match=str(HELLO_BYTES_MAX)):
        reader.next()


def test_actions_results_and_errors_have_a_number() -> None:
    assert decode_action(encode_action(5, "cancel")) == (5, "cancel")
    reader = FrameReader({Kind.RESULT: (8, 100), Kind.ERROR: (8, 10_000)}, greeted=True)
    error = InvalidBatch("no good", got=1, limit=2, remedy="three")
    reader.feed(encode_result(6, b"{}") + encode_error(WHOLE, error))
    result, failure = reader.next(), reader.next()
    assert result is not None
    assert failure is not None
    assert decode_action(result.metadata) == (6, "")
    assert decode_action(failure.metadata) == (WHOLE, "")
    assert str(error_of(failure)) == str(error)
    with pytest.raises(InvalidBatch, match="7 bytes"):
        decode_action(bytes(7))


def test_the_last_word_is_in_the_newcomers_own_protocol() -> None:
    error = InvalidBatch("not a client of slotwheel's wire")
    text = str(error).encode()
    assert last_word(b"GET / HT", error).startswith(b"HTTP/1.1 400 ")
    assert last_word(b"GET / HT", error).endswith(b"\r\n\r\n" + text + b"\n")
    goaway = last_word(b"PRI * HT", error)
    assert goaway[:9] == b"\0\0\0\4\0\0\0\0\0"  # SETTINGS
    assert (goaway[12], goaway[26:]) == (7, text)
    assert int.from_bytes(goaway[9:12], "big") == 8 + len(text)
    assert last_word(b"SWAPPND\1", error) == encode_error(WHOLE, error)


def test_the_version_and_the_magic_stand_where_any_version_finds_them() -> None:
    assert encode_hello(b"")[:8] == b"SWWIRE" + bytes([VERSION, 0])
    assert encode_error(3, InvalidBatch("x"))[:2] == b"\x08\0"
