"""Tokens: random, read from a private file, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotwheel.security.secretplace import SecretPlace
from slotwheel.security.tokens import TOKEN_BYTES_MAX, digest_of, new_token, read_token
from slotwheel.wheel.errors import InvalidConfiguration
from support.securing import write_private


def test_tokens_are_different_and_have_256_bits() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {47}
    assert len({digest_of(token) for token in tokens}) == 1000
    assert digest_of("") == ""


def test_a_token_is_read_anew_each_time(tmp_path: Path) -> None:
    path = write_private(tmp_path / "token", "swt_first\n")
    secret = SecretPlace.parse(f"file:{path}")
    assert read_token(secret) == "swt_first"
    write_private(path, "  swt_second")
    assert read_token(secret) == "swt_second"
    assert "swt_" not in repr(secret)


@pytest.mark.parametrize(
    "content", ["", " \n", "two words", "\N{BULLET}", "a\x00b", "x" * (TOKEN_BYTES_MAX + 1)]
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = write_private(tmp_path / "token", content)
    with pytest.raises(InvalidConfiguration) as refused:
        read_token(SecretPlace(f"file:{path}"))
    assert str(path) in str(refused.value)
    assert "two words" not in str(refused.value)


def test_a_file_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    path = write_private(tmp_path / "token", "swt_first")
    path.chmod(0o644)
    with pytest.raises(InvalidConfiguration, match="open to others; got mode 0644"):
        read_token(SecretPlace(f"file:{path}"))
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        read_token(SecretPlace(f"file:{tmp_path}/nothing"))


@pytest.mark.parametrize("text", ["swt_secret", "file:", "env:", ""])
def test_a_token_itself_is_no_place(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="file:PATH") as refused:
        SecretPlace.parse(text)
    assert "swt_secret" not in str(refused.value)


def test_a_variable_is_read_once_and_gone_for_whatever_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "swt_of_a_variable")
    place = SecretPlace.parse("env:PLANTED_TOKEN")
    assert [read_token(place), read_token(place)] == ["swt_of_a_variable"] * 2
    assert "PLANTED_TOKEN" not in os.environ
    assert "swt_" not in repr(place)
    with pytest.raises(InvalidConfiguration, match="the variable NOBODY_SET is empty"):
        SecretPlace.parse("env:NOBODY_SET").read()
