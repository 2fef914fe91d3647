"""Reads a module's imports and the names it uses, and judges them by the rules of the rooms.

The table is that of docs/design.md, section "The rooms". Everything is read with `ast`; nothing is
imported, so a rule also holds for imports inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

# The public names of the package itself count as a room.
ROOT_ROOM = "slotwheel"
# Loose modules of a room with rooms inside, on which those build, in groups. The room's other loose
# modules are the whole, and build on them. A group is a room in `MAY_IMPORT`.
ENGINE_VALUES = "wheel: values"
ENGINE_STATE = "wheel: state"
GATEWAY_VALUES = "gateway: values"
GATEWAY_SERVICES = "gateway: services"
TRACE_VALUES = "trace: values"
VALUES = {
    ENGINE_VALUES: frozenset(
        {
            *("answers", "arrowbytes", "arrowclaims", "backoff", "cancelrecord", "checks"),
            *("compute", "config", "delay", "departurefile", "digest", "errors", "expiry"),
            *("files",),
            *("findings", "ids", "jumps", "lazy", "mark", "names", "plain", "protocol", "request"),
            *("rows", "schedules", "schema", "texts", "withoutpandas"),
        }
    ),
    ENGINE_STATE: frozenset({"state"}),
    TRACE_VALUES: frozenset({"events"}),
    GATEWAY_VALUES: frozenset(
        {
            *("arrowbody", "errors", "gathering", "idempotency", "jobs", "metrics"),
            *("pathroute", "predecessors"),
            *(
                "administration",
                "asking",
                "authentication",
                "fresh",
                "logins",
                "predecessors",
                "requests",
                "searcher",
                "sessions",
                "settings",
            ),
        },
    ),
    GATEWAY_SERVICES: frozenset({"endpoint", "services"}),
}

# A room is a folder, for itself: who may import "wheel" may not, for that, import "wheel/due".
MAY_IMPORT: dict[str, frozenset[str]] = {
    ENGINE_VALUES: frozenset(),
    "account": frozenset({ENGINE_VALUES}),
    "aside": frozenset({ENGINE_VALUES}),
    "broker": frozenset({"security", ENGINE_VALUES}),
    "policy": frozenset({ENGINE_VALUES}),
    "policy/schedules": frozenset({"policy", ENGINE_VALUES}),
    TRACE_VALUES: frozenset({ENGINE_VALUES}),
    "wheel/tail": frozenset({ENGINE_VALUES}),
    ENGINE_STATE: frozenset({ENGINE_VALUES}),
    "security": frozenset({ENGINE_VALUES}),
    "wire": frozenset({"security", ENGINE_VALUES}),
    "client": frozenset({"policy", "security", ENGINE_VALUES, "wire"}),
    "fleet": frozenset({"client", "policy", "security", ENGINE_VALUES, "wire"}),
    "node/intake": frozenset(
        {"broker", "policy", "policy/schedules", "security", ENGINE_VALUES, "wire"}
    ),
    "wheel/journal": frozenset({"wheel/tail", ENGINE_STATE, ENGINE_VALUES}),
    "replication/rules": frozenset({"wheel/journal", ENGINE_STATE, ENGINE_VALUES}),
    "wheel/named": frozenset({"wheel/journal", ENGINE_VALUES}),
    "wheel/slots": frozenset(
        {"wheel/journal", "wheel/named", "wheel/tail", ENGINE_STATE, ENGINE_VALUES}
    ),
    "replication/transport": frozenset(
        {"replication/rules", "security", "wheel/journal", ENGINE_STATE, ENGINE_VALUES, "wire"}
    ),
    "wheel/due": frozenset(
        {"wheel/journal", "wheel/slots", "wheel/tail", ENGINE_STATE, ENGINE_VALUES}
    ),
    "wheel/topics": frozenset({"wheel/slots", ENGINE_VALUES}),
    "delivery": frozenset({"policy", "wheel/due", ENGINE_VALUES}),
    "reading": frozenset(
        {
            *("policy", "policy/schedules", "wheel/journal", "wheel/slots", "wheel/topics"),
            *(ENGINE_STATE, ENGINE_VALUES),
        }
    ),
    "wheel": frozenset(
        {
            *("wheel/due", "wheel/journal", "wheel/named", "wheel/slots", "wheel/tail"),
            *(ENGINE_STATE, ENGINE_VALUES),
        }
    ),
    "delivery/embedded": frozenset(
        {"delivery", "policy", "wheel/due", "wheel/slots", "wheel/topics", ENGINE_VALUES}
    ),
    "delivery/kafka": frozenset({"broker", "delivery", "policy", "wheel/due", ENGINE_VALUES}),
    "reading/growing": frozenset({"reading", "wheel/journal", "wheel/topics", ENGINE_VALUES}),
    "replay/facts": frozenset(
        {"broker", "policy", "policy/schedules", "reading", TRACE_VALUES, ENGINE_VALUES}
    ),
    "replay/report": frozenset({"reading", ENGINE_VALUES}),
    "wheel/peers": frozenset(
        {"wheel", "wheel/due", "wheel/journal", "wheel/slots", ENGINE_STATE, ENGINE_VALUES}
    ),
    "consumer": frozenset(
        {
            "aside",
            "broker",
            "client",
            "delivery",
            "delivery/kafka",
            "policy",
            "reading",
            ENGINE_VALUES,
        }
    ),
    "reading/kafka": frozenset(
        {"broker", "delivery/kafka", "reading", "reading/growing", ENGINE_VALUES}
    ),
    "reading/search": frozenset(
        {
            "aside",
            "policy",
            "reading",
            "reading/growing",
            "wheel/slots",
            ENGINE_STATE,
            ENGINE_VALUES,
        }
    ),
    "reading/verify": frozenset(
        {
            "reading",
            "wheel",
            "wheel/due",
            "wheel/journal",
            "wheel/named",
            "wheel/peers",
            "wheel/slots",
            "wheel/tail",
            "wheel/topics",
            ENGINE_STATE,
            ENGINE_VALUES,
        }
    ),
    "replay/judging": frozenset(
        {
            "account",
            "policy/schedules",
            "reading",
            "replay/facts",
            "wheel/journal",
            ENGINE_VALUES,
        }
    ),
    "replication/snapshots": frozenset(
        {
            "replication/rules",
            "replication/transport",
            "security",
            "wheel/peers",
            "wheel/slots",
            ENGINE_STATE,
            ENGINE_VALUES,
            "wire",
        }
    ),
    "reading/agreement": frozenset(
        {
            "reading",
            "reading/verify",
            "wheel/journal",
            "wheel/slots",
            "wheel/tail",
            ENGINE_STATE,
            ENGINE_VALUES,
        }
    ),
    "reading/letters": frozenset(
        {"broker", "client", "policy", "reading", "reading/kafka", ENGINE_VALUES}
    ),
    "replication": frozenset(
        {
            "replication/rules",
            "replication/snapshots",
            "replication/transport",
            "security",
            "wheel/journal",
            "wheel/peers",
            ENGINE_VALUES,
        }
    ),
    ROOT_ROOM: frozenset({"client", "consumer", "fleet", "security", ENGINE_VALUES}),
    "trace": frozenset({"broker", "client", "consumer", "policy", TRACE_VALUES, ENGINE_VALUES}),
    "audit": frozenset(
        {"account", "client", "consumer", "policy", "trace", TRACE_VALUES, ENGINE_VALUES}
    ),
    "node": frozenset(
        {
            "aside",
            "broker",
            "delivery",
            "delivery/embedded",
            "delivery/kafka",
            "node/intake",
            "policy",
            "policy/schedules",
            "replication",
            "replication/rules",
            "security",
            "wheel",
            "wheel/peers",
            "wheel/slots",
            ENGINE_STATE,
            ENGINE_VALUES,
            "wire",
        }
    ),
    "trace/store": frozenset({"policy", "reading", "trace", TRACE_VALUES, ENGINE_VALUES}),
    "audit/watch": frozenset(
        {
            "account",
            "aside",
            "audit",
            "policy",
            "reading",
            "reading/growing",
            "reading/kafka",
            "reading/search",
            TRACE_VALUES,
            ENGINE_VALUES,
        }
    ),
    "replay/datasource": frozenset(
        {"policy", "reading", "replay/facts", "trace/store", TRACE_VALUES, ENGINE_VALUES}
    ),
    "trace/chains": frozenset(
        {
            "account",
            "policy",
            "reading",
            "reading/search",
            "trace/store",
            TRACE_VALUES,
            ENGINE_VALUES,
        }
    ),
    GATEWAY_VALUES: frozenset(
        {
            "account",
            "aside",
            "audit/watch",
            "client",
            "policy",
            "reading",
            "reading/search",
            "security",
            "trace/chains",
            TRACE_VALUES,
            ENGINE_VALUES,
        }
    ),
    "gateway/front": frozenset({"client", "fleet", "security", GATEWAY_VALUES, ENGINE_VALUES}),
    GATEWAY_SERVICES: frozenset(
        {
            "aside",
            "audit/watch",
            "client",
            "fleet",
            "gateway/front",
            GATEWAY_VALUES,
            "policy",
            "reading",
            "security",
            "trace/chains",
            ENGINE_VALUES,
        }
    ),
    "replay": frozenset(
        {
            "account",
            "policy",
            "reading",
            "reading/growing",
            "replay/datasource",
            "replay/facts",
            "replay/judging",
            "replay/report",
            "trace/store",
            "wheel/journal",
            ENGINE_VALUES,
        }
    ),
    "replay/traces": frozenset({"reading/search", "trace/chains", TRACE_VALUES, ENGINE_VALUES}),
    "gateway/rest": frozenset(
        {
            "broker",
            "client",
            "consumer",
            "delivery/kafka",
            GATEWAY_SERVICES,
            GATEWAY_VALUES,
            "reading",
            "reading/search",
            "security",
            ENGINE_VALUES,
        }
    ),
    "gateway/v1": frozenset(
        {
            "account",
            "audit/watch",
            "client",
            "gateway/front",
            GATEWAY_SERVICES,
            GATEWAY_VALUES,
            "policy",
            "policy/schedules",
            "reading",
            "reading/letters",
            "reading/search",
            "security",
            "trace/chains",
            "trace/store",
            TRACE_VALUES,
            ENGINE_VALUES,
        }
    ),
    "replay/following": frozenset(
        {
            "account",
            "policy",
            "reading",
            "replay",
            "replay/datasource",
            "replay/facts",
            "replay/judging",
            ENGINE_VALUES,
        }
    ),
    "gateway/console": frozenset(
        {
            "account",
            "audit",
            "audit/watch",
            "client",
            "gateway/front",
            "gateway/v1",
            GATEWAY_SERVICES,
            GATEWAY_VALUES,
            "policy",
            "policy/schedules",
            "reading/letters",
            "reading/search",
            "security",
            "trace/chains",
            ENGINE_VALUES,
        }
    ),
    "gateway": frozenset(
        {
            "aside",
            "audit",
            "audit/watch",
            "client",
            "fleet",
            "gateway/console",
            "gateway/front",
            "gateway/rest",
            "gateway/v1",
            GATEWAY_SERVICES,
            GATEWAY_VALUES,
            "policy",
            "reading",
            "reading/kafka",
            "reading/search",
            "security",
            "trace",
            "trace/chains",
            "trace/store",
            TRACE_VALUES,
            ENGINE_VALUES,
        }
    ),
}
MAY_IMPORT["cli"] = frozenset(MAY_IMPORT)
ROOMS = frozenset(name.partition("/")[0] for name in MAY_IMPORT if ":" not in name) - {ROOT_ROOM}

# Of some rooms another may use only what holds formats, ids, errors and limits, and no state. A
# module of that kind is added here when it comes.
ONLY_MODULES = {
    (ROOT_ROOM, ENGINE_VALUES): frozenset({"errors", "lazy"}),
    ("consumer", "delivery"): frozenset({"sink"}),
    ("consumer", "delivery/kafka"): frozenset(
        {"kafka_python_client", "kafka_python_transactions", "plan"}
    ),
    ("consumer", "reading"): frozenset({"topicreader"}),
    ("gateway/rest", "delivery/kafka"): frozenset({"kafka_python_client", "plan"}),
    ("gateway/rest", "reading"): frozenset({"topicreader"}),
    ("replay", "trace/store"): frozenset({"names"}),
    ("replay/datasource", "trace/store"): frozenset({"names", "segment"}),
    ("replay/traces", "reading/search"): frozenset({"fate"}),
    ("trace/store", "reading"): frozenset({"problems", "visible"}),
}
# What one running node loads begins here; these rooms are for those who look at it from outside.
NODE = "cli/node.py"
OUTSIDE = (
    "account",
    "audit",
    "consumer",
    "deadletters",
    "fleet",
    "gateway",
    "reading",
    "replay",
    "search",
    "trace",
)
# The root's public names of these modules are loaded when they are first used.
LOADED_LATE = frozenset({"consumer", "fleet.fleet"})
# Run by its path, like a test: in no room, and it names the package in full.
SCRIPTS = frozenset({"aside/begin.py", "replay/job.py"})
# What only one room imports, and of the command line's modules only the one that is named.
PYSPARK = "pyspark"
PYSPARK_ONLY = ("replay/", "cli/replay.py")

# The engine: files and time are handed in.
SEAM = frozenset({"wheel/files.py", "wheel/state.py"})
ENGINE_NEVER = frozenset(
    {
        # A future is a value and allowed; what runs one is not.
        *("concurrent.futures.Executor", "concurrent.futures.ThreadPoolExecutor"),
        *("concurrent.futures.ProcessPoolExecutor", "concurrent.futures.thread"),
        *(
            "concurrent.futures.process",
            "asyncio",
            "multiprocessing",
            "queue",
            "sched",
            "selectors",
            "signal",
        ),
        *("socket", "socketserver", "ssl", "http", "urllib", "subprocess", "pyarrow.flight"),
        *("kafka", "confluent_kafka", "click", "rich", "prometheus_client", "pyspark"),
        *("datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow"),
        *("datetime.date.today", "pandas.Timestamp.now", "os.times", "uuid.uuid1"),
        "print",
    }
)
# Of these, the engine may use just the names listed: all else starts threads or reads a clock.
ENGINE_ONLY = {
    "threading": frozenset({"Lock", "RLock", "Condition", "get_ident"}),
    "time": frozenset({"gmtime", "strftime", "struct_time"}),
}
# Input and output, for the seam alone.
ENGINE_IO = frozenset(
    {
        *("open", "io.open", "io.FileIO", "codecs.open", "mmap", "fcntl", "ctypes", "lmdb"),
        *("shutil", "tempfile", "glob", "fileinput", "pathlib.Path", "sqlite3"),
        *("pyarrow.OSFile", "pyarrow.memory_map", "pyarrow.create_memory_map", "pyarrow.fs"),
        *("pyarrow.input_stream", "pyarrow.output_stream", "numpy.memmap", "numpy.fromfile"),
        *("pyarrow.parquet", "pyarrow.feather", "pyarrow.dataset"),
    }
)
# `os` outside the seam: names and constants only.
OS_PURE = ("os.path.join", "os.path.basename", "os.path.split", "os.fspath", "os.PathLike", "os.O_")
# Whatever object these are called on, it is a file.
FILE_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "iterdir"})

ENVIRONMENT = ("os.environ", "os.getenv", "os.putenv")
# Sets something there that a worker of Spark looks at, and reads nothing.
ENVIRONMENT_SET = "replay/datasource/errors.py"
# Reads the variables that a setting names, as ``env:NAME``, and no others.
ENVIRONMENT_NAMED = "security/secretplace.py"


@dataclass(frozen=True)
class Import:
    """One imported module: `level` dots, then `name`; `name` is absolute if there are none."""

    line: int
    level: int
    name: str


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import, as `from x import y` → x.y: y may be a module."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, 0, alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if node.module else alias.name
                yield Import(node.lineno, node.level, name)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All of them, and not the ten times as many expressions."""
    found: list[ast.AST] = [tree]
    for node in found:  # which grows meanwhile
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, field, ())
    yield from found


def used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name and attribute chain, resolved through the module's imports and their aliases."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                bound = alias.asname or alias.name.partition(".")[0]
                aliases[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.lineno, aliases.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            chain = [node.attr]
            value = node.value
            while isinstance(value, ast.Attribute):
                chain.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in aliases:
                yield node.lineno, ".".join([aliases[value.id], *reversed(chain)])


def within(name: str, roots: frozenset[str]) -> bool:
    """Whether `name` is one of the roots or something below one."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in roots for count in range(1, len(parts) + 1))


def violations(path: str, source: str) -> list[str]:
    """What the module at `path` (relative to the root) does against the rules, one line each."""
    tree = ast.parse(source, path)
    found = list(_import_violations(PurePosixPath(path), tree))
    room = _room(PurePosixPath(path))
    if path.startswith("wheel/"):
        found += _engine_violations(path, tree)
    reads = any(name.removeprefix("os.") in source for name in ENVIRONMENT)
    if (
        reads
        and room not in ("", "cli")
        and path
        not in (
            ENVIRONMENT_SET,
            ENVIRONMENT_NAMED,
        )
    ):
        for line, name in used_names(tree):
            if name.startswith(ENVIRONMENT):
                found.append(f"{path}:{line}: only cli/ reads the environment, not {room}/")
    return sorted(set(found))


def room_of(parts: Sequence[str]) -> str:
    """The room of what `parts` lead to below slotwheel: folders, a module, perhaps a name in it."""
    top, *rest = parts
    if top not in ROOMS:
        return ROOT_ROOM
    if not rest:
        return top
    if f"{top}/{rest[0]}" in MAY_IMPORT:
        return f"{top}/{rest[0]}"
    groups = (name for name, of in VALUES.items() if name.startswith(f"{top}: ") and rest[0] in of)
    return next(groups, top)


def _room(path: PurePosixPath) -> str:
    """The room a file is in; empty for tests, benchmarks, scripts and the like."""
    if str(path) in SCRIPTS or (len(path.parts) > 1 and path.parts[0] not in ROOMS):
        return ""
    return room_of(path.with_suffix("").parts)


def _import_violations(path: PurePosixPath, tree: ast.Module) -> Iterator[str]:
    room = _room(path)
    for found in imports(tree):
        where = f"{path}:{found.line}:"
        first, _, rest = found.name.partition(".")
        if found.level == 0:
            if first in ROOMS:
                yield f"{where} `{first}` without slotwheel is somebody else's package"
            elif first == PYSPARK and room and not str(path).startswith(PYSPARK_ONLY):
                yield f"{where} only {' and '.join(PYSPARK_ONLY)} import {PYSPARK}"
            elif first != ROOT_ROOM:
                continue
            elif not room:
                continue  # tests and benchmarks use the installed name, and may use any room
            elif room == ROOT_ROOM:
                yield from _judge(where, room, rest)
            else:
                yield f"{where} between rooms imports are relative, not `{found.name}`"
        elif room == ROOT_ROOM:
            yield f"{where} the root imports absolutely: pytest imports it by path"
        else:
            folder = path.parts[:-1]
            above = len(folder) - (found.level - 1)
            if above < (0 if room else 1):
                yield f"{where} a relative import that leaves {path.parts[0]}/"
            elif room:
                yield from _judge(where, room, ".".join((*folder[:above], found.name)))


def _judge(where: str, room: str, target: str) -> Iterator[str]:
    """`target` is a dotted path below slotwheel: rooms, a module, perhaps a name in it."""
    parts = target.split(".")
    to = room_of(parts)
    if to == room:
        return
    if to not in MAY_IMPORT[room]:
        yield f"{where} {room} may not import {to}"
    elif (room, to) in ONLY_MODULES:
        module = ".".join(parts[2 if "/" in to else 1 :][:1])
        if module not in ONLY_MODULES[room, to]:
            yield f"{where} {room} uses only the formats of {to}, not {module or to}"


def _engine_violations(path: str, tree: ast.Module) -> Iterator[str]:
    for line, name in used_names(tree):
        where = f"{path}:{line}:"
        first, _, rest = name.partition(".")
        if within(name, ENGINE_NEVER):
            yield f"{where} the engine has no threads, network, clock or output: {name}"
        if first in ENGINE_ONLY and rest and rest.split(".")[0] not in ENGINE_ONLY[first]:
            yield f"{where} the engine has no threads and no clock: {name}"
        if path not in SEAM and (within(name, ENGINE_IO) or _os_call(name)):
            yield f"{where} only {' and '.join(sorted(SEAM))} do input and output: {name}"
    if path not in SEAM:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FILE_METHODS:
                yield f"{path}:{node.lineno}: input and output outside the seam: .{node.attr}"


def _os_call(name: str) -> bool:
    return name.startswith("os.") and name != "os.path" and not name.startswith(OS_PURE)


def modules(root: Path) -> list[Path]:
    """Every Python file of the project, relative to `root`."""
    folders = [root / name for name in sorted(ROOMS | {"tests", "benchmarks"})]
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return sorted(file.relative_to(root) for file in files)


def graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which module of the package imports which, wherever in its text: dotted, below slotwheel.

    `sources`: text by path relative to the root; tests, benchmarks and scripts are left out.
    """
    names = {path: _dotted(path) for path in sources if _room(PurePosixPath(path))}
    known = set(names.values())
    found: dict[str, set[str]] = {}
    for path, own in names.items():
        folder = path.split("/")[:-1]
        found[own] = set()
        for one in imports(ast.parse(sources[path], path)):
            if one.level:
                target = ".".join((*folder[: len(folder) - one.level + 1], one.name))
            elif one.name.startswith(f"{ROOT_ROOM}."):
                target = one.name.removeprefix(f"{ROOT_ROOM}.")
            else:
                continue
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != own:
                found[own].add(target)
    return found


def _dotted(path: str) -> str:
    name = path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def circle(uses: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of those that use each other, from a member back to it; empty if there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def reached(uses: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """All that `start` uses, and what these use."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for one in uses[waiting.pop()]:
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found
