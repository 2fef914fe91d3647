"""Tokens: random, read from a private file, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel.security.tokens import TOKEN_BYTES_MAX, SecretFile, digest_of, new_token
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
    secret = SecretFile.parse(f"file:{path}")
    assert secret.read() == "swt_first"
    write_private(path, "  swt_second")
    assert secret.read() == "swt_second"
    assert "swt_" not in repr(secret)


@pytest.mark.parametrize(
    "content", ["", " \n", "two words", "\N{BULLET}", "a\x00b", "x" * (TOKEN_BYTES_MAX + 1)]
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = write_private(tmp_path / "token", content)
    with pytest.raises(InvalidConfiguration) as refused:
        SecretFile(str(path)).read()
    assert str(path) in str(refused.value)
    assert "two words" not in str(refused.value)


def test_a_file_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    path = write_private(tmp_path / "token", "swt_first")
    path.chmod(0o644)
    with pytest.raises(InvalidConfiguration, match="open to others; got mode 0644"):
        SecretFile(str(path)).read()
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        SecretFile(str(tmp_path / "nothing")).read()


@pytest.mark.parametrize("text", ["swt_secret", "file:", "env:TOKEN", ""])
def test_a_token_itself_is_no_place(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="file:PATH") as refused:
        SecretFile.parse(text)
    assert "swt_secret" not in str(refused.value)
