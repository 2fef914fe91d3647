"""The access log: lines of JSON, bounded, appended, made anew after a rotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slotwheel.security.accesslog import LINES_A_SECOND_MAX, AccessLog, StrangerNotes
from slotwheel.security.quotas import Meter


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_did_what(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), clock=lambda: 1_800_000_000.25)
    log.note("denied", "token:a", operation="append", topic="orders", reason="")
    log.close()
    log.note("denied", "token:a")
    assert path.read_text() == (
        '{"time": "2027-01-15T08:00:00.250Z", "event": "denied", "principal": "token:a",'
        ' "operation": "append", "topic": "orders"}\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_stranger_cannot_fill_the_disk(tmp_path: Path) -> None:
    path, now = tmp_path / "access.log", [100.0]
    log = AccessLog(str(path), clock=lambda: now[0])
    for _ in range(3 * LINES_A_SECOND_MAX):
        log.note("stranger", "", reason="x" * 10_000)
    now[0] += 1
    log.note("login", "token:a")
    log.close()
    *lines, last = lines_of(path)
    assert len(lines) == LINES_A_SECOND_MAX
    assert len(lines[0]["reason"]) == 300
    assert last["left_out"] == 2 * LINES_A_SECOND_MAX


def test_a_text_makes_one_line_whatever_stands_in_it(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.note("denied", "cert:a\nb", topic="\x1b[31m\u2028\ud800")
    log.close()
    [line] = lines_of(path)
    assert line["principal"] == "cert:a\nb"


def test_what_was_written_is_counted_since_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log, meter, quiet = AccessLog(str(path)), Meter("token:a"), Meter("token:b")
    meter.charge(3, 300)
    log.look([meter, quiet])
    log.look([meter, quiet])
    meter.charge(1, 50)
    log.look([meter, quiet])
    log.close()
    assert [(one["principal"], one["rows"], one["bytes"]) for one in lines_of(path)] == [
        ("token:a", 3, 300),
        ("token:a", 1, 50),
    ]


def test_a_file_that_was_rotated_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.note("login", "first")
    path.rename(tmp_path / "access.log.1")
    log.note("login", "second")
    log.look()
    log.note("login", "third")
    log.close()
    assert [one["principal"] for one in lines_of(tmp_path / "access.log.1")] == ["first", "second"]
    assert [one["principal"] for one in lines_of(path)] == ["third"]


def test_a_full_disk_stops_nobody() -> None:
    failures: list[OSError] = []
    log = AccessLog("/dev/full", failures.append)
    for _ in range(3):
        log.note("login", "token:a")
    assert [error.strerror for error in failures] == ["No space left on device"]
    log.close()


def test_each_stranger_is_a_line_and_the_servers_own_log_has_one_a_second(tmp_path: Path) -> None:
    path, now = tmp_path / "access.log", [0.0]
    told: list[tuple[str, str, int]] = []
    log = AccessLog(str(path))
    notes = StrangerNotes(log, lambda *note: told.append(note), clock=lambda: now[0])
    for number in range(5):
        notes.note(f"10.0.0.{number}", "no token")
    now[0] += 1
    notes.note("10.0.0.9", "an old token")
    log.close()
    assert told == [("10.0.0.0", "no token", 1), ("10.0.0.9", "an old token", 5)]
    assert [line["host"][-1] for line in lines_of(path)] == list("012349")
