"""Options, their types and checks that several commands share.

Every option can also be given as ``SLOTWHEEL_<OPTION>``; click reads these.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..broker.settings import is_secret, named
from ..broker.sources import PARTITIONS_MAX, parse_partitions
from ..client.addresses import SCHEMES, check_addresses, split, without_scheme
from ..policy.levels import SPAN_EXAMPLES, span_of
from ..security.secretplace import is_place
from ..wheel.checks import check_topic
from ..wheel.config import KIB, MIB
from ..wheel.errors import InvalidConfiguration, MissingExtra, SlotwheelError
from ..wheel.names import check_name
from ..wheel.protocol import DEFAULT_ADDRESS
from .terminal import echo

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_RETRY_S = 0.5
GIB = 1024 * MIB
SIZE_MAX = 1 << 62
_BYTES = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
_BYTES |= {f"{unit}IB": number for unit, number in _BYTES.items() if number > 1}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SETTING = re.compile(r"\s*([^\s=#]+)(?: = |=)(.*)")
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_GATEWAY_PACKAGES = ("httptools", "jinja2", "starlette", "uvloop")


def span(value: str) -> timedelta:
    """Option type: ``500ms``, ``30s``, ``5m``, ``2h``, ``7d``, also ``1.5h``; ``3`` is seconds."""
    ms = span_of(value)
    if ms is None:
        raise click.BadParameter(f"{value!r} is not a time span; write {SPAN_EXAMPLES}")
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        days = timedelta.max.days
        raise click.BadParameter(f"{value!r} is too long; the limit is {days}d") from None


def positive_span(value: str) -> timedelta:
    """Option type: a time span longer than zero."""
    length = span(value)
    if not length:
        raise click.BadParameter(f"{value!r} is no time at all; write {SPAN_EXAMPLES}")
    return length


def moment(value: str) -> datetime:
    """Option type: ISO 8601 with a time zone, ``2026-11-20T18:00:00Z``."""
    try:
        instant = datetime.fromisoformat(value.strip())
    except ValueError:
        message = f"{value!r} is not a time; write 2026-11-20T18:00:00Z"
        raise click.BadParameter(message) from None
    if instant.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z for UTC, or +01:00")
    return instant


def epoch_ms(value: datetime) -> int:
    """Milliseconds since 1970. ``value`` has a time zone."""
    return int(value.timestamp() * 1000)


def span_ms(value: timedelta) -> int:
    return value // timedelta(milliseconds=1)


def size(value: str | int) -> int:
    """Option type: bytes, ``1000000``, ``64K``, ``128M``, ``1G`` (powers of 1024)."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value.strip())
    unit = None if match is None else _BYTES.get(match[2].upper())
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise click.BadParameter(f"{value!r} is not a size; write 1000000, 64K, 128M or 1G")
    nbytes = float(match[1]) * unit
    if nbytes > SIZE_MAX:
        raise click.BadParameter(f"{value!r} is too large; the limit is {SIZE_MAX // GIB}G")
    return int(nbytes)


def retention(value: str) -> dict[str, int]:
    """Option type: a time span, a size, or both: ``24h,10G`` limits ``retain_ms`` and
    ``retain_bytes`` of ``WheelConfig``."""
    limits: dict[str, int] = {}
    for part in value.split(","):
        match = _SIZE.fullmatch(part.strip())
        if span_of(part) is not None and part.strip()[-1].isalpha():
            name, limit = "retain_ms", span_ms(span(part))
        elif match is not None and match[2] and match[2].upper() in _BYTES:  # no bare number
            name, limit = "retain_bytes", size(part)
        else:
            message = (
                f"{part!r} is neither a time span (24h, 7d) nor a size (10GiB);"
                " units are s, m, h, d, and K, M, G, T"
            )
            raise click.BadParameter(message)
        if name in limits:
            raise click.BadParameter(f"{value!r} has two limits of one kind; one span, one size")
        if limit < 1:
            raise click.BadParameter(f"{part!r} keeps nothing; leave --retain out for that")
        limits[name] = limit
    return limits


def pair(value: str) -> tuple[str, str]:
    """Option type: ``name=value``."""
    name, equals, content = value.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} is not name=value")
    return name, content


def partitions(value: str) -> tuple[int, ...]:
    """Option type: numbers of partitions, ``0,3-5``."""
    try:
        return parse_partitions(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} are not partitions; write 0,3-5; the limit is {PARTITIONS_MAX - 1}"
        ) from None


def kafka_settings(value: str) -> dict[str, str]:
    """Option type: ``name=value``, or a file of such lines."""
    path = Path(value)
    if "=" in value and not path.is_file():
        name, content = pair(value)
        settings = named({name: content})
        return settings if is_place(content) else _Typed(settings)
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"{value!r} is neither name=value nor a file of such lines: {error}"
        ) from None
    settings = {}
    for number, line in enumerate(lines, 1):
        setting = _SETTING.fullmatch(line)
        if setting is not None:
            settings[setting[1]] = setting[2]
        elif line.strip() and not line.lstrip().startswith("#"):
            raise click.BadParameter(f"line {number} of {value!r} is not name=value")
    return named(settings)


class _Typed(dict[str, str]):
    """A setting that was given by its value, and not by a file or a place."""


def check_typed(
    context: click.Context, option: click.Parameter, values: tuple[dict[str, str], ...]
) -> None:
    """Errors: ``click.BadParameter`` for a secret on the command line, where everybody on the
    machine can read it, and many a shell keeps it."""
    if context.get_parameter_source(str(option.name)) is not ParameterSource.COMMANDLINE:
        return
    for setting in values:
        for name in setting if isinstance(setting, _Typed) else ():
            if is_secret(name):
                raise click.BadParameter(
                    f"{name} stands on the command line, where everybody on this machine can read"
                    f" it; write {name}=file:PATH or {name}=env:NAME, or give a file of settings"
                )


def merged(
    context: click.Context, option: click.Parameter, values: tuple[dict[str, str], ...]
) -> dict[str, str]:
    """Callback of ``--kafka``: the settings of all its values, the last of each name. Errors: as of
    ``check_typed``."""
    check_typed(context, option, values)
    # Others can see the environment of each process that this one starts, and the passwords in it.
    os.environ.pop(str(option.envvar), None)
    return {name: value for setting in values for name, value in setting.items()}


KAFKA: dict[str, Any] = {
    "type": kafka_settings,
    "callback": merged,
    "multiple": True,
    "metavar": "NAME=VALUE",
    "help": "A setting of every Kafka client, in librdkafka's names, such as"
    " security.protocol=SSL; or a file of such lines. A secret is given in a file, or as"
    " NAME=file:PATH or NAME=env:VARIABLE, as others can see a command line. May be repeated.",
}
"""``--kafka``: settings of every Kafka client that a command makes."""
kafka_option = click.option("--kafka", "kafka_settings", **KAFKA)


def awaited(call: Callable[[], T], until_s: float) -> T:
    """Call again until a node, or brokers, answer, or the monotonic clock has passed ``until_s``;
    print once that they do not. Errors: those of the call."""
    reported = False
    while True:
        try:
            return call()
        except SlotwheelError as error:
            if not error.retryable or time.monotonic() > until_s:
                raise
            if not reported:
                echo(f"waiting: {error}", err=True)
                reported = True
            time.sleep(_RETRY_S)


def host_name(value: str) -> str:
    """Option type: a host's name in lower case; ``*.example.com`` is every name below that one."""
    name = value.lower().rstrip(".")
    if not _HOST_NAME.fullmatch(name):
        raise click.BadParameter(
            f"{value!r} is not the name of a host, without a port; give one that is not ASCII as"
            " xn--…"
        )
    return name


def node_addresses(value: str) -> str:
    """Option type: ``host:port``, or several, separated by commas; ``tls://host:port`` with TLS."""
    addresses = split(value)
    if any(address.startswith(SCHEMES) for address in addresses):
        raise click.BadParameter(
            f"{value!r} is the address of a gateway, and this command talks to nodes; give"
            f" host:port as the node has it by --listen, {DEFAULT_ADDRESS} by default"
        )
    try:
        check_addresses(without_scheme(addresses)[1])
    except InvalidConfiguration as error:
        raise click.BadParameter(str(error)) from None
    return value


def combined(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator that adds all these options; the help page has them in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON, one object a line; errors as JSON on stderr.",
)
data_argument = click.argument(
    "directory", type=click.Path(path_type=Path), envvar="SLOTWHEEL_DATA", metavar="DIR"
)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
due_options = combined(
    click.option(
        "--delay",
        type=span,
        help="Due after that time: 500ms, 30s, 5m, 2h, 30d; 3 is 3s.",
    ),
    click.option(
        "--at",
        type=moment,
        help="Due at that time, ISO 8601 with a time zone: 2026-11-20T18:00:00Z.",
    ),
)
"""``check_due`` requires exactly one of them."""
DATA_MODE: dict[str, Any] = {
    "type": click.Choice(["0700", "0750"]),
    "default": "0700",
    "help": "Who may read the data directory: its owner, or its group as well. Messages lie there,"
    " and the key by which ids are known to be genuine.",
}
"""``--data-mode``, for ``keep_private``."""


def keep_private(data: Path | None, data_mode: str) -> None:
    """Let only those whom ``data_mode`` names read the files of this process, and its data
    directory if it exists: an older version made directories that everybody could read."""
    mode = int(data_mode, 8)
    os.umask(0o777 & ~mode)
    if data is None or not data.is_dir() or data.stat().st_uid != os.geteuid():
        return
    # Who should read a directory with other things in it, only its owner knows.
    if (data / "state").is_dir() or not any(data.iterdir()):
        data.chmod(mode | data.stat().st_mode & 0o7000)


name_option = click.option(
    "--name", help="The name of the message: at most one pending message of a topic has it."
)


NO_ID_HINT = (
    "What is no message id is unknown: `slotwheel send` prints ids. Give a name by --name, with"
    " --topic."
)
"""Otherwise whoever writes a name where an id belongs would take *unknown* for the message's
state."""


def place_of(ids: object, topic: str | None, name: str | None, hint: str) -> tuple[str, str] | None:
    """The topic and the name by which a message is meant; None: it is meant by ``ids``. ``hint``:
    how to say which one is meant. Errors: ``click.UsageError`` unless it is one of the two;
    ``InvalidMessage`` for a topic or a name that no message can have."""
    if topic is None and name is None:
        return None
    if topic is None or name is None or ids:
        raise click.UsageError(hint)
    check_topic(topic)
    check_name(name)
    return topic, name


def check_due(**given: object) -> None:
    """Errors: ``click.UsageError`` unless exactly one of these options, by name, is not None."""
    if sum(value is not None for value in given.values()) != 1:
        *first, last = (f"--{name}" for name in given)
        raise click.UsageError(f"Give exactly one of {', '.join(first)} and {last}.")


def is_typed(name: str) -> bool:
    """Returns True when a parameter was given on the command line, and not otherwise."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def check_range(start: datetime | None, end: datetime | None) -> None:
    """Errors: ``click.UsageError`` unless ``--from`` is before ``--to``, where both are given."""
    if start is not None and end is not None and start >= end:
        raise click.UsageError("--from is not before --to")


def print_json(fields: Mapping[str, Any]) -> None:
    echo(json.dumps(fields))


def need_gateway() -> None:
    """Errors: ``MissingExtra`` when the gateway's packages are not installed."""
    missing = [package for package in _GATEWAY_PACKAGES if find_spec(package) is None]
    if missing:
        raise MissingExtra(
            f"the gateway needs packages that are not installed: {', '.join(missing)}",
            remedy="Run: pip install 'slotwheel[http]'",
        )
