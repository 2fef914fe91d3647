"""``slotwheel security``: what a security file says, before a node goes by it."""

from __future__ import annotations

from pathlib import Path

import click

from ..security.rights import FLAGS, TOPIC_RIGHTS, Operation
from ..security.securityfile import SecurityFile
from ..wheel.errors import InvalidMessage
from .invocation import Exit
from .printing import print_table
from .shared import json_option, print_json
from .terminal import echo

_OPERATIONS = tuple(operation.label for operation in Operation)


@click.group("security")
def command() -> None:
    """A security file says who may connect to a node, what they may do, and how much."""


@command.command("check")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--principal", help="Show what this one may do, and by which role: token:billing.")
@click.option(
    "--operation",
    type=click.Choice(_OPERATIONS),
    help="With --principal: say only if it may do this, and why; exit code 1 if not.",
)
@click.option("--topic", help="With --operation: for messages of this topic.")
@json_option
def check(
    path: Path, principal: str | None, operation: str | None, topic: str | None, as_json: bool
) -> int:
    """Check a security file as a node does, and show what its principals may do.

    The exit code is 1 if the node would refuse the file.
    """
    security = SecurityFile.load(path)
    if operation is not None and principal is None:
        raise click.UsageError("--operation needs --principal.")
    if topic and operation is None:
        raise click.UsageError("--topic needs --operation.")
    if principal is not None and principal not in security.members:
        raise InvalidMessage(
            "no member of the security file",
            got=repr(principal)[:100],
            limit=", ".join(sorted(security.members)[:20]) or "a file with [members]",
            remedy="Who is no member cannot connect",
        )
    if principal is not None and operation is not None:
        return _answer(security, principal, Operation[_name(operation)], topic or "", as_json)
    for name in [principal] if principal is not None else sorted(security.members):
        _show(security, name, as_json)
    return Exit.DONE


def _name(operation: str) -> str:
    return operation.upper().replace("-", "_")


def _answer(
    security: SecurityFile, principal: str, operation: Operation, topic: str, as_json: bool
) -> int:
    reasons = security.grants(principal, operation, topic)
    if as_json:
        fields = {"principal": principal, "operation": operation.label, "topic": topic}
        print_json({**fields, "allowed": bool(reasons), "because": reasons})
    elif reasons:
        echo(f"yes: {'; '.join(reasons)}")
    else:
        echo(f"no: none of its roles has the right {operation.right.value!r} for it")
    return Exit.DONE if reasons else Exit.FAILED


def _show(security: SecurityFile, principal: str, as_json: bool) -> None:
    rights, roles = security.rights_of([principal]), security.members[principal]
    topics = {right.value: list(rights.topics(right).patterns) for right in TOPIC_RIGHTS}
    flags = [flag.value for flag in FLAGS if flag in rights.flags]
    if as_json:
        granted = {name: patterns for name, patterns in topics.items() if patterns}
        print_json({"principal": principal, "roles": list(roles), **granted, "flags": flags})
        return
    echo(f"{principal}  ({', '.join(roles) or 'no role'})")
    rows = [("", name, " ".join(patterns)) for name, patterns in topics.items() if patterns]
    rows += [("", flag, "yes") for flag in flags]
    print_table(rows, "lll", ("", "right", "topics"))
    echo()
