"""``slotwheel token``: random tokens, by which callers prove to a node who they are."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import click

from ..client.message import clock_ms
from ..security.securityfile import SecurityFile, check_token_name
from ..security.tokens import digest_of, new_token
from ..wheel.texts import time_text
from .printing import print_table
from .shared import epoch_ms, json_option, moment, print_json
from .terminal import echo


@click.group("token")
def command() -> None:
    """Tokens prove to a node who calls. A security file has their digests, and never a token."""


@command.command("new")
@click.argument("name")
@click.option(
    "--until",
    type=moment,
    help="The token proves nothing from that time on: 2027-06-30T00:00:00Z. [default: no end]",
)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    help="Write the token to this new file, which only its owner can read. [default: print it]",
)
@json_option
def new(name: str, until: datetime | None, path: Path | None, as_json: bool) -> None:
    """Make a token for the principal token:NAME, and print the lines for the security file.

    The token is printed once, or written to --file; nobody can print it again.
    """
    check_token_name(name)
    token = new_token()
    if path is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(token + "\n")
    fields: dict[str, object] = {"principal": f"token:{name}", "sha256": digest_of(token)}
    if until is not None:
        fields["until_ms"] = epoch_ms(until)
    if as_json:
        print_json(fields | ({"token": token} if path is None else {"file": str(path)}))
        return
    if path is None:
        echo(token)
        echo("", err=True)
        echo("For the security file:", err=True)
    echo(f"[tokens.{name}]" if "." not in name else f'[tokens."{name}"]', err=path is None)
    echo(f'sha256 = "{digest_of(token)}"', err=path is None)
    if until is not None:
        echo(f"until = {time_text(epoch_ms(until))}", err=path is None)


@command.command("list")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def list_command(path: Path, as_json: bool) -> None:
    """Show the tokens of a security file, until when they are valid, and their roles."""
    security, now_ms = SecurityFile.load(path), clock_ms()
    tokens = sorted(security.tokens.values(), key=lambda token: token.name)
    if as_json:
        for token in tokens:
            roles = list(security.members.get(token.principal, ()))
            valid = token.is_valid(now_ms)
            fields = {"principal": token.principal, "until_ms": token.until_ms}
            print_json({**fields, "valid": valid, "roles": roles})
        return
    rows = [
        (
            token.principal,
            "no end" if token.until_ms is None else time_text(token.until_ms),
            "valid" if token.is_valid(now_ms) else "expired",
            " ".join(security.members.get(token.principal, ())) or "no member",
        )
        for token in tokens
    ]
    print_table(rows, "llll", ("principal", "until", "state", "roles"))
