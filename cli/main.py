"""The command line: one group, one file a command, one error handler, which turns errors into exit
codes (``invocation.Exit``).

A command is the object ``command`` in the module that the table names. It is imported when it is
used, so that ``slotwheel send`` does not load what only ``slotwheel node`` needs, and
``slotwheel --help`` loads neither.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from .. import __version__
from ..wheel.errors import SlotwheelError
from ..wheel.withoutpandas import hide_pandas
from .invocation import Exit, Invocation, long_name, note_json
from .terminal import echo

PREFIX = "SLOTWHEEL"
_NICENESS = 10
"""Added for commands that read what a node writes: beside one busy process they get a tenth of a
core, so that the node does not feel them."""
REPORT = "Please report it with these lines; CONTRIBUTING.md says where"

COMMANDS = {
    "node": ("node", "Run one node on a data directory, until SIGTERM or Ctrl-C."),
    "gateway": ("gateway", "Serve HTTP: a REST proxy, search, metrics."),
    "send": ("send", "Send messages to a topic, due after a delay or at a time."),
    "cancel": ("cancel", "Take messages back by their ids."),
    "reschedule": ("reschedule", "Give a message another due time."),
    "schedule": ("schedule", "Send messages again and again, by cron or every so often."),
    "search": ("search", "Find pending messages in a data directory."),
    "trace": ("trace", "Show what happened to messages: chains, latency, anomalies."),
    "consume": ("consume", "Print the messages of a topic, embedded or in Kafka."),
    "dead": ("dead.command", "Look at dead letters, and send them again."),
    "status": ("status", "Show what a node holds, and its peers."),
    "fleet": ("fleet", "Show the wheels of a fleet: who answers, who has how much."),
    "drain": ("drain", "Have a wheel take no new messages, and empty itself."),
    "undrain": ("undrain", "Have a wheel take messages again."),
    "clock": ("clock", "Show a node's clock; accept a jump, set the mark back."),
    "policies": ("policies", "Show levels and retry policies of a group."),
    "routes": ("routes", "Show and try routes, and rules of consumer groups."),
    "token": ("token", "Make tokens for a security file, and list them."),
    "security": ("security", "Check who may do what by a security file."),
    "step-down": ("step_down", "Have the master hand over to one of its peers."),
    "inspect": ("inspect", "Print what stands in a data directory's files."),
    "verify": ("verify", "Check a data directory; change nothing."),
    "repair": ("repair", "Deliver what can be had of damaged slot files."),
    "audit": ("audit", "Compare what was sent, stored, delivered and consumed."),
    "replay": ("replay", "Prove that each message was delivered once, in time."),
    "demo": ("demo.command", "Show nodes at work, killed in the middle."),
}
"""Each command's module in this package and its line on the help page, in the page's order."""

METAVARS = {
    "directory": "DIR",
    "file": "FILE",
    "integer range": "N",
    "moment": "TIME",
    "pair": "NAME=VALUE",
    "positive_span": "SPAN",
    "size": "BYTES",
    "span": "SPAN",
}
"""The word for an option's value on a help page, by the name of the option's type; a function that
is a type has its own name."""


class Commands(click.Group):
    """Imports a command when it is used, and gives its options their variables."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command: click.Command = module.command
        prepare(command)
        return command


def prepare(command: click.Command) -> None:
    """Set up what all commands share: ``--some-option`` is also read from ``SLOTWHEEL_SOME_OPTION``
    unless it names a variable of its own, its help shows default and type, and with ``--json``
    errors are JSON, too."""
    command.context_settings.update(max_content_width=100, show_default=True)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if parameter.envvar is None:
                name = long_name(parameter).replace("-", "_").upper()
                parameter.envvar = f"{PREFIX}_{name}"
            parameter.show_envvar = True
            parameter.metavar = parameter.metavar or METAVARS.get(parameter.type.name)
            if "--json" in parameter.opts:
                parameter.callback = note_json
                parameter.is_eager = True
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            prepare(inner)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Hold messages and hand each one over at its due time: never early, never lost.

    Every option can also be given as a variable SLOTWHEEL_OPTION, for example SLOTWHEEL_NODE.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Always ends with ``SystemExit``."""
    os.umask(0o077)  # files that a command writes have messages in them
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else ""
    if command != "replay":  # PySpark looks for pandas
        hide_pandas()
    if command in ("search", "trace"):
        os.nice(_NICENESS)
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code."""
    session = Invocation()
    # A wrong option stops click before it has parsed the right ones.
    wants_json = "--json" in arguments
    return exit_code(
        lambda: cli.main(list(arguments), "slotwheel", standalone_mode=False, obj=session),
        session,
        wants_json=wants_json,
    )


def exit_code(
    work: Callable[[], int | None],
    session: Invocation | None = None,
    *,
    wants_json: bool = False,
) -> int:
    """Do a command's work, print its error if it fails, and return the exit code."""
    session = session or Invocation()
    try:
        code = work()
    except click.UsageError as error:
        if session.json or wants_json:
            _print_error({"code": "usage", "message": error.format_message()})
        else:
            error.show()
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except click.ClickException as error:
        _fail(session, {"code": "error", "message": error.format_message()})
        return error.exit_code
    except SlotwheelError as error:
        _fail(session, error.to_wire(), str(error))
        return Exit.FAILED
    except OSError as error:
        # Such as permissions, a full disk, an address of another machine: no defect of ours.
        _fail(session, {"code": "os-error", "message": str(error)})
        return Exit.FAILED
    except Exception as error:
        return _defect(session, error)
    return code or Exit.DONE


def _fail(session: Invocation, fields: dict[str, object], text: str = "") -> None:
    if session.json:
        _print_error(fields)
    else:
        echo(f"error: {text or fields['message']}", err=True)


def _print_error(fields: dict[str, object]) -> None:
    echo(json.dumps({"error": fields}), err=True)


def _defect(session: Invocation, error: Exception) -> int:
    message = f"{type(error).__name__}: {error}"
    if session.json:
        _print_error({"code": "defect", "message": message, "remedy": REPORT})
    else:
        frames = traceback.format_exception(error)[-4:]
        echo("".join(frames).rstrip(), err=True)
        echo(f"error: a defect of slotwheel: {message}. {REPORT}", err=True)
    return Exit.DEFECT


if __name__ == "__main__":
    main()
