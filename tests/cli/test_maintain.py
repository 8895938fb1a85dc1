"""`agentstate maintain` as an operator or a timer runs it: sentences, JSON, exit codes, progress."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentstate.cli.main import run
from agentstate.clock import utc_now
from agentstate.conversations.models import Conversation
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.workflows import append, create
from agentstate.db.database import Database
from agentstate.settings import Settings
from builders import NOON, a_conversation, a_start, agentstate, said, sql
from db_helpers import asked, holding, made, on_small_disk

OLD = NOON.replace(year=2020)
"""Old whenever the test runs: the command takes the time from the clock."""


@pytest.fixture
def target(path: Path) -> Path:
    """A closed database: three old conversations, one of which somebody waits for and one of which was imported."""
    made(path)
    with Database.open(path) as database, database.write(now=OLD) as work:
        for key in ("old", "agent:ada:main"):
            create(work, key)
            append(work, key, [said("x" * 200_000)])
        Conversations(work).add(Conversation(key="brought in", imported_at=NOON))
        a_start(work, sender="ada")
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> list[str]:
    """Run the command in this process and return the lines that it printed."""
    assert run(["maintain", *map(str, arguments)]) == code
    output, error = capsys.readouterr()
    assert error == ""
    return [re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line) for line in output.splitlines()]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    """Run the command with --json and return what it means."""
    assert run(["maintain", *map(str, arguments), "--json"]) == code
    output, error = capsys.readouterr()
    assert error == ""
    return json.loads(output)


def count(path: Path) -> object:
    """Return how many conversations there are."""
    return asked(path, "SELECT count(*) FROM conversations")


def test_it_says_what_went_and_what_stayed_and_why(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RT-09, IM-09: with the command that takes what was imported, too."""
    lines = shown(capsys, "--database", target)

    assert lines[:3] == [
        "conversations: deleted 1 of 3 older than TIME",
        "conversations: kept 1: a request or a release that waits for a yes may need them",
        "conversations: kept 1: imported and not used since; "
        "'agentstate conversations prune --include-imported' deletes them",
    ]
    assert re.fullmatch(r"file: 2\d\d\.\d KiB, was \d+\.\d KiB", lines[3])
    assert all(line.startswith("write-ahead log: 0 bytes, was ") for line in lines[4:])
    assert count(target) == 2


def test_a_rehearsal_says_so_and_changes_nothing(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RT-09: looked at with a read-only handle."""
    lines = shown(capsys, "--database", target, "--dry-run")

    assert lines[0] == "conversations: would delete 1 of 3 older than TIME"
    assert lines[3:] == ["dry run: nothing was changed"]
    assert count(target) == 3


def test_nothing_to_do_is_said_too(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A timer runs it every night, and somebody reads the log."""
    made(path)

    lines = shown(capsys, "--database", path)

    assert lines[0] == "conversations: none is older than TIME"
    assert re.fullmatch(r"file: \d+\.\d KiB, as before", lines[1])
    assert lines[2:] == []


def test_what_is_kept_for_ever_is_said(
    target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who wonders why nothing goes finds the setting."""
    monkeypatch.setenv("AGENT_KEEP_CONVERSATIONS", "never")

    assert shown(capsys, "--database", target)[0] == "conversations: kept for ever, as AGENT_KEEP_CONVERSATIONS says"
    assert count(target) == 3


def test_json_has_the_whole_report(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever watches many databases."""
    report = as_json(capsys, "--database", target)

    (policy,) = report["policies"]
    assert (policy["policy"], policy["candidates"], policy["deleted"]) == ("conversations", 3, 1)
    assert policy["kept"] == {"protected": 1, "imported": 1}
    assert policy["cutoff"] < utc_now().isoformat()
    assert (report["finished"], report["dry_run"], report["error"]) == (True, False, None)
    assert report["space"]["auto_vacuum"] == "incremental"
    assert report["space"]["file_after"] == target.stat().st_size


def test_what_was_not_reached_is_exit_code_8(
    target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer's log shows that it needs longer; the next run goes on."""
    with Database.open(target) as database, database.write(now=OLD) as work:
        for number in range(201):
            create(work, f"k-{number:03}")

    first = shown(capsys, "--database", target, "--max-seconds", "0", code=8)
    second = shown(capsys, "--database", target, "--max-seconds", "60")

    assert first[0] == "conversations: deleted 200 of 204 older than TIME"
    assert first[3] == "conversations: kept 2: not reached; the next run goes on"
    assert second[0] == "conversations: deleted 2 of 4 older than TIME"


def test_a_policy_that_failed_is_a_line_on_stderr_and_exit_code_8(target: Path) -> None:
    """LK-08: what is wrong and with which database; no traceback."""
    with holding(target, "BEGIN IMMEDIATE"):
        done = agentstate("maintain", "--database", target, AGENT_DB_BUSY_TIMEOUT="0.1")

    busy = f"{target} is busy with others; waited 0.1 s and wrote nothing; try again"
    assert done.returncode == 8
    assert done.stderr.splitlines()[0] == f"agentstate: conversations: {busy}"
    assert "kept 1: not reached; the next run goes on" in done.stdout
    assert "space: somebody is writing" in done.stdout
    assert count(target) == 3


def test_space_that_could_not_be_given_back_is_a_line_on_stderr(target: Path) -> None:
    """FS-14: nothing to delete any more, and free pages that somebody's lock keeps in the file."""
    sql(target, "DELETE FROM turns")

    with holding(target, "BEGIN IMMEDIATE"):
        done = agentstate(
            "maintain", "--database", target, AGENT_DB_BUSY_TIMEOUT="0.1", AGENT_KEEP_CONVERSATIONS="never"
        )

    assert done.returncode == 8
    assert done.stderr.startswith(f"agentstate: no space was given back: {target} is busy with others")


def test_a_reader_who_keeps_the_log_is_said(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FS-13: the log stays, and an operator must know because of whom."""
    with holding(target, "BEGIN", "SELECT count(*) FROM turns"):
        lines = shown(capsys, "--database", target)

    assert lines[-1] == (
        "space: somebody is still reading what was there before, so that the write-ahead log cannot be emptied"
    )


def test_full_rewrites_a_file_that_keeps_its_size(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FS-14: said without --full, done with it."""
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")

    before = shown(capsys, "--database", target)
    size = target.stat().st_size
    after = as_json(capsys, "--database", target, "--full")

    assert "'agentstate maintain --full' rewrites it once" in before[-1]
    assert (after["space"]["file_before"], after["space"]["file_after"]) == (size, target.stat().st_size)
    assert target.stat().st_size < size - 200_000
    assert after["space"]["free_pages_before"] >= 48
    assert (after["space"]["auto_vacuum"], asked(target, "PRAGMA auto_vacuum")) == ("incremental", 2)


def test_a_rewrite_that_failed_is_an_error_after_what_was_deleted(tmp_path: Path) -> None:
    """FS-04: the deletions stand and are said; a script sees that it may try again when there is room."""
    code = """
from datetime import UTC, datetime
from agentstate.cli.main import run
from agentstate.conversations.workflows import append, create
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
with Database.open("agent.db", "rwc") as database:
    upgrade(database)
    with database.write(now=datetime(2020, 1, 1, tzinfo=UTC)) as work:
        create(work, "old")
    with database.write() as work:
        create(work, "fresh")
    for _ in range(6):
        with database.write() as work:
            append(work, "fresh", [{"role": "user", "content": "x" * (1 << 20)}])
        database.reclaim()
    sys.stderr = sys.stdout
    print(run(["maintain", "--full", "--database", "agent.db"]))
"""

    lines = on_small_disk(code, tmp_path / "disk", "10m")

    assert lines[0].startswith("conversations: deleted 1 of 1 older than ")
    assert lines[1].startswith(f"agentstate: rewriting {tmp_path}/disk/agent.db needs ")
    assert lines[2:] == ["9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full", "--dry-run"], "leave one of them out"),
        (["--max-seconds", "-1"], "Invalid value for '--max-seconds'"),
        (["--max-seconds", "nan"], "max_seconds: nan is not a number of seconds"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    target: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """And nothing is deleted."""
    assert run(["maintain", "--database", str(target), *arguments]) == 2

    assert message in capsys.readouterr().err
    assert count(target) == 3


def test_a_bad_setting_is_exit_code_2(
    target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typing error that falls back to a default is found after the first loss."""
    monkeypatch.setenv("AGENT_KEEP_CONVERSATIONS", "7 days")

    assert run(["maintain", "--database", str(target)]) == 2

    assert capsys.readouterr().err == (
        "agentstate: AGENT_KEEP_CONVERSATIONS: '7 days' is no length of time: write 30d, 12h, 30m or 90s, or never\n"
    )
    assert count(target) == 3


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_missing_and_an_older_database_have_their_own_codes(
    path: Path, capsys: pytest.CaptureFixture[str], dry_run: list[str]
) -> None:
    """Foundation, section 4: a script tells them apart."""
    assert run(["maintain", "--database", str(path), *dry_run]) == 7
    made(path, to="0003")
    assert run(["maintain", "--database", str(path), *dry_run]) == 3

    assert "run 'agentstate upgrade'" in capsys.readouterr().err


def test_on_a_server_autovacuum_gives_space_back(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command on both engines."""
    with Database.open(server_url, settings=Settings()) as database, database.write(now=OLD) as work:
        create(work, "old")

    lines = shown(capsys, "--database", server_url)

    assert lines == [
        "conversations: deleted 1 of 1 older than TIME",
        "space: on PostgreSQL autovacuum does this",
    ]


def test_progress_is_shown_on_a_terminal_alone(target: Path) -> None:
    """A large database takes minutes; a person wants to know how many. In a pipe there are only the sentences."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", "maintain", "--database", target],
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65_536):
            seen += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    output, _ = process.communicate()

    assert process.returncode == 0
    assert b"giving space back" in seen
    assert "\x1b" not in output


def test_a_damaged_database_is_left_alone_and_named(path: Path) -> None:
    """FS-06: it said that the next run goes on, and went on writing to a file that was to be kept as it is."""
    made(path)
    with Database.open(path) as database, database.write(now=NOON) as work:
        a_conversation(work, turns=300)
    with path.open("r+b") as file:
        file.seek(40_960)
        file.write(bytes(path.stat().st_size - 40_960))
    before = path.read_bytes()

    done = agentstate("maintain", "--database", path)

    assert done.returncode == 6, done.stdout + done.stderr
    assert path.read_bytes() == before


def test_a_backup_without_a_destination_is_refused(path: Path) -> None:
    """An unset variable in a script put the backup into whatever directory it ran in."""
    made(path)

    done = agentstate("backup", "", "--database", path)

    assert (done.returncode, "DEST is empty" in done.stderr) == (2, True)
