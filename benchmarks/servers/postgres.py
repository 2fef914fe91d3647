"""PostgreSQL: a table with an index on the due time, polled with SKIP LOCKED."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from .server import Missing, Receiver, Sender, Server, output_of, program

_PLACE = "usr/lib/postgresql/*/bin"
_TABLE = """
CREATE TABLE delayed (id bigserial PRIMARY KEY, due timestamptz NOT NULL, value bytea NOT NULL);
CREATE INDEX ON delayed (due);
"""
_TAKE = """
DELETE FROM delayed WHERE id IN (
    SELECT id FROM delayed WHERE due <= clock_timestamp() ORDER BY due LIMIT 1000
    FOR UPDATE SKIP LOCKED
) RETURNING value
"""


class Postgres(Server):
    name = "PostgreSQL"
    durability = "fsync and synchronous_commit on (its defaults); table polled with SKIP LOCKED"

    def version(self) -> str:
        return output_of(program("postgres", _PLACE), "--version").split()[2]

    def command(self) -> list[str]:
        _psycopg()
        data = self.directory / "data"
        self._as_owner([program("initdb", _PLACE), "-D", str(data), "-A", "trust", "-U", "bench"])
        server = [program("postgres", _PLACE), "-D", str(data), "-p", str(self.port)]
        sockets = ["-k", str(self.directory), "-c", "listen_addresses=127.0.0.1"]
        return [*self._owner(), *server, *sockets, "-c", "max_wal_size=8GB"]

    def _owner(self) -> list[str]:
        """The server refuses to run as root."""
        if os.getuid() != 0:
            return []
        shutil.chown(self.directory, "postgres")
        return [program("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def _as_owner(self, command: list[str]) -> None:
        where = str(self.directory)
        done = subprocess.run(
            [*self._owner(), *command], capture_output=True, timeout=60, check=False, cwd=where
        )
        if done.returncode != 0:
            raise Missing(f"{self.name}: {done.stderr.decode().strip()[-300:]}")

    def is_ready(self) -> bool:
        try:
            self.connect().close()
        except _psycopg().OperationalError:
            return False
        return True

    def connect(self) -> Any:
        address = f"host=127.0.0.1 port={self.port} user=bench dbname=postgres"
        return _psycopg().connect(address, autocommit=True)

    def prepare(self) -> None:
        with self.connect() as connection:
            connection.execute(_TABLE)

    def halt(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)  # fast shutdown

    def sender(self) -> Sender:
        return _Sender(self.connect())

    def receiver(self) -> Receiver:
        return _Receiver(self.connect())


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise Missing("the Python package psycopg is not installed") from None
    return psycopg


class _Sender:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        rows = [
            (datetime.fromtimestamp(due / 1000, UTC), value)
            for value, due in zip(values, due_ms, strict=True)
        ]
        if len(rows) == 1:
            self._connection.execute("INSERT INTO delayed (due, value) VALUES (%s, %s)", rows[0])
            return
        into = "COPY delayed (due, value) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(into) as copy:
            copy.set_types(["timestamptz", "bytea"])
            for row in rows:
                copy.write_row(row)

    def close(self) -> None:
        self._connection.close()


class _Receiver:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def receive(self) -> list[bytes]:
        found = [bytes(value) for (value,) in self._connection.execute(_TAKE, binary=True)]
        if not found:
            time.sleep(0.001)
        return found

    def close(self) -> None:
        self._connection.close()
