"""``slotwheel replay``: prove that each accepted message was delivered once, in time.

docs/replay.md describes what it reads and how it judges. The verdict is printed on standard output,
as text or JSON; progress on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.errors import InvalidConfiguration
from ..wheel.texts import counted
from .invocation import Exit
from .redeliver import redeliver_options
from .replayfollow import follow_options, run_audit
from .shared import (
    check_range,
    epoch_ms,
    json_option,
    kafka_settings,
    merged,
    moment,
    span,
    span_ms,
)
from .sparkprogress import SparkProgress
from .terminal import echo
from .verdict import print_fleet_verdict, print_verdict

if TYPE_CHECKING:
    from ..reading.files import Layout
    from ..replay.facts.kafka_topics import KafkaTopics
    from ..replay.judging.context import Options
    from ..replay.report.fleetverdict import FleetVerdict
    from ..replay.report.verdict import Verdict

_PATH = click.Path(dir_okay=False, path_type=Path)
_EXITS = {"proven": Exit.DONE, "not proven": Exit.FAILED, "proven in part": Exit.PARTLY}
_BROKERS = "bootstrap.servers"


def _kafka(value: str) -> dict[str, str]:
    """Option type: addresses of Kafka's brokers, or as ``kafka_settings``."""
    if "=" in value or Path(value).is_file():
        return kafka_settings(value)
    for address in value.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():  # a protocol may stand before the host
            raise click.BadParameter(
                f"{address!r} is not HOST:PORT, name=value or a file of such lines"
            )
    return {_BROKERS: value}


@click.command("replay")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@click.option(
    "--dump",
    "dumps",
    type=_PATH,
    multiple=True,
    help="What was delivered, as `slotwheel consume --arrow` wrote it; several times for several.",
)
@click.option(
    "--kafka",
    "kafka",
    type=_kafka,
    callback=merged,
    multiple=True,
    envvar="SLOTWHEEL_REPLAY_KAFKA",  # SLOTWHEEL_KAFKA is of commands that need not read Kafka
    metavar="HOST:PORT,…",
    help="Kafka's brokers, where messages were delivered. Give it again for each setting of the"
    " client, NAME=VALUE in librdkafka's names, or for a file of them.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Read this topic of Kafka; several times for several. [default: those that messages are"
    " for]",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    default=DEAD_LETTER_TOPIC,
    help="Where the node put messages that no topic took.",
)
@click.option(
    "--kafka-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Jars of Spark's Kafka connector. [default: Spark fetches them from Maven Central]",
)
@click.option(
    "--receipts",
    type=_PATH,
    multiple=True,
    help="What a producer was promised, an Arrow file of its receipts; several times for several.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The gateway's trace store: what clients sent and consumers got is compared, too.",
)
@click.option("--from", "start", type=moment, help="Judge what is due from this time on.")
@click.option("--to", "end", type=moment, help="Judge what is due before this time.")
@click.option(
    "--interval",
    type=span,
    default="10s",
    help="Width of the time buckets in which lateness is told.",
)
@click.option(
    "--late-ms",
    type=click.IntRange(min=0),
    help="More than N milliseconds late fails the proof.",
)
@click.option("--exactly-once", is_flag=True, help="A message that came twice fails the proof.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write report.json and report.html to this directory.",
)
@click.option(
    "--tables",
    metavar="DIR",
    help="Add verdict, findings and counts to this directory, as Parquet files by day; with"
    " --traces, all boundaries.",
)
@click.option(
    "--problems",
    type=click.IntRange(min=1, max=1_000_000),
    default=1_000,
    help="List at most N problems; all of them are counted.",
)
@click.option(
    "--master",
    default="local[*]",
    metavar="URL",
    help="Where Spark runs: this machine's cores, or spark://HOST:PORT of a cluster.",
)
@click.option(
    "--driver-memory",
    default="2g",
    metavar="SIZE",
    help="Memory of Spark's own process on this machine.",
)
@follow_options
@redeliver_options
@json_option
def command(
    directories: tuple[str, ...],
    dumps: tuple[Path, ...],
    kafka: dict[str, str],
    topics: tuple[str, ...],
    dead_letter_topic: str,
    kafka_jars: Path | None,
    receipts: tuple[Path, ...],
    traces: Path | None,
    start: datetime | None,
    end: datetime | None,
    interval: timedelta,
    late_ms: int | None,
    exactly_once: bool,
    report: Path | None,
    tables: str | None,
    problems: int,
    master: str,
    driver_memory: str,
    follow: bool,
    window: timedelta,
    grace: timedelta,
    run_for: timedelta | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Prove from the data directories of all peers of a group, and from what its topics hold, that
    each accepted message was delivered once, in time. The directories may be of several groups, the
    wheels of a fleet: each is judged by its own, and all have to be proven. Messages whose journal
    entries a node has deleted cannot be judged. The directories may be those of running nodes. With
    --follow they are watched, and each message is judged soon after it was due.

    With --redeliver nothing is proven: the messages of --topic that were due from --from until --to
    are sent again, to --to-topic.

    Exit code 0: proven; 1: not proven, and why; 4: proven in part, and what could not be decided.
    """
    check_range(start, end)
    brokers = kafka.pop(_BROKERS, None)
    if kafka and brokers is None:
        raise click.UsageError("--kafka has settings, and no HOST:PORT")
    interval_ms = span_ms(interval)
    if interval_ms < 1:
        raise click.UsageError("--interval is shorter than a millisecond")
    if topics and brokers is None:
        raise click.UsageError("--topic is of --kafka, which is not given")
    if not follow and (run_for is not None or state is not None):
        raise click.UsageError("--for and --state belong to --follow")
    if follow and (dumps or receipts or report):
        raise click.UsageError("--dump, --receipts and --report are not for --follow")
    if follow and tables and traces is None:
        raise click.UsageError("--tables with --follow needs --traces")
    if follow and tables and "://" in tables:
        raise click.UsageError("--tables with --follow is a directory of this machine")
    if follow and brokers is not None and not topics:
        raise click.UsageError("--follow with --kafka needs each --topic")
    _check_spark(started=not master)
    from ..reading.groups import by_group
    from ..reading.layout import FileFilter, find
    from ..replay.facts.kafka_topics import KafkaTopics, connector_settings
    from ..replay.judging.context import Options
    from ..replay.report.fleetverdict import FleetVerdict
    from ..replay.report.page import write_report

    delivered = None
    if brokers is not None:
        delivered = KafkaTopics(brokers, topics, dead_letter_topic, kafka)
    spark_settings = {}
    if delivered is not None:
        delivered.check()
        spark_settings = connector_settings(kafka_jars) if master else {}
    start_ms = None if start is None else epoch_ms(start)
    end_ms = None if end is None else epoch_ms(end)
    groups = by_group(directories, [str(path) for path in receipts])
    if follow:
        if len(groups) > 1:
            raise click.UsageError(
                f"--follow watches one wheel, and these are of {', '.join(groups)}: follow each by"
                " a command of its own"
            )
        from ..replay.following.audit import Settings

        settings = Settings(
            directories=tuple(str(Path(path).resolve()) for path in directories),
            window_ms=max(1, span_ms(window)),
            grace_ms=span_ms(grace),
            late_ms=late_ms,
            exactly_once=exactly_once,
            start_ms=start_ms,
            end_ms=end_ms,
            listed_max=problems,
            dead_letter_topic=dead_letter_topic,
            kafka=brokers or "",
            topics=topics,
            traces=str(traces.resolve()) if traces is not None else "",
            tables=str(Path(tables).resolve()) if tables else "",
            kafka_settings=kafka,
        )
        return run_audit(
            settings, run_for, state, master, driver_memory, spark_settings, as_json=as_json
        )
    options = Options(interval_ms, late_ms, exactly_once, start_ms, end_ms, problems)
    layouts = {
        group: replace(
            find(
                given.directories,
                dumps=[str(path) for path in dumps],
                receipts=given.receipts,
                wanted=FileFilter(start_ms=start_ms, end_ms=end_ms),
            ),
            dead_letter_topic=dead_letter_topic,
        )
        for group, given in groups.items()
        if given.directories
    }
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    if tables and "://" not in tables:  # otherwise a path of one of Spark's other file systems
        Path(tables).mkdir(parents=True, exist_ok=True)
        tables = Path(tables).resolve().as_uri()
    store = str(traces.resolve()) if traces is not None else ""
    verdicts = _prove(
        layouts, options, delivered, tables or "", store, master, driver_memory, spark_settings
    )
    for group, verdict in verdicts.items():
        folder = report if report is None or len(groups) == 1 else report / group
        if folder is not None:
            for path in write_report(verdict, folder, layouts[group].made_ms):
                echo(f"wrote {path}", err=True)
    if len(groups) > 1:
        return _tell_fleet(FleetVerdict.of(verdicts, groups), as_json=as_json)
    (verdict,) = verdicts.values()
    if as_json:
        echo(json.dumps(verdict.to_dict()))
    else:
        print_verdict(verdict)
    return _EXITS[verdict.outcome]


def _tell_fleet(fleet: FleetVerdict, *, as_json: bool) -> int:
    if as_json:
        echo(json.dumps(fleet.to_dict()))
    else:
        print_fleet_verdict(fleet)
    return _EXITS[fleet.outcome]


def _prove(
    layouts: Mapping[str, Layout],
    options: Options,
    kafka: KafkaTopics | None,
    tables: str,
    traces: str,
    master: str,
    driver_memory: str,
    spark_settings: dict[str, str],
) -> dict[str, Verdict]:
    """The verdict about each group, by one Spark."""
    from ..replay.proof import prove
    from ..replay.session import BRIEF, interruptible, session

    def work() -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        with session(master, driver_memory=driver_memory, more=BRIEF | spark_settings) as spark:
            progress.watch(spark.sparkContext.statusTracker())
            try:
                places = {"tables": tables, "traces": traces}
                for group, layout in layouts.items():
                    of = f"{group}: " if len(layouts) > 1 else ""

                    def on_phase(phase: str, of: str = of) -> None:
                        progress.phase(of + phase)

                    verdicts[group] = prove(
                        spark, layout, options, kafka=kafka, progress=on_phase, **places
                    )
            except Exception as error:
                failure = None if kafka is None else kafka.failure(error)
                if failure is None:
                    raise
                raise failure from error
        return verdicts

    files = [file for layout in layouts.values() for file in layout.files]
    nbytes = sum(file.nbytes for file in files)
    echo(f"replaying {counted(len(files), 'file')}, {nbytes:,} bytes", err=True)
    with SparkProgress() as progress:
        return interruptible(work)


def _check_spark(*, started: bool) -> None:
    """Errors: ``InvalidConfiguration``: PySpark is not installed, or Java, unless ``started``:
    ``spark-submit`` has found it then."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise InvalidConfiguration(
            "PySpark is not installed",
            remedy=f"Run: {sys.executable} -m pip install 'slotwheel[replay]'",
        ) from None
    if started:
        return
    home = os.environ.get("JAVA_HOME")
    if home and shutil.which("java", path=os.path.join(home, "bin")) is None:  # noqa: PTH118
        raise InvalidConfiguration(
            "there is no bin/java where JAVA_HOME says",
            got=home,
            remedy="Correct it, or unset it: then the java in PATH is taken",
        )
    if not home and shutil.which("java") is None:
        raise InvalidConfiguration(
            "there is no Java, which Spark needs",
            limit="17 or newer",
            remedy="Install it, for example Debian's openjdk-17-jre-headless",
        )
