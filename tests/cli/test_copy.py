"""`agentstate copy` as an operator types it: words, JSON, exit codes, progress, and never a password."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from agentstate.cli.main import run
from agentstate.db.database import Database
from agentstate.db.schema import downgrade
from builders import agentstate, filled, python, sql
from db_helpers import made
from postgres_server import PASSWORD

ROWS = {
    "conversations": 2,
    "introductions": 1,
    "pending_approval": 1,
    "sessions": 2,
    "start_pending": 1,
    "pending_approval_repo": 2,
    "turns": 2,
}
WORDS = """\
copied conversations: 2 rows
copied introductions: 1 row
copied pending_approval: 1 row
copied sessions: 2 rows
copied start_pending: 1 row
copied pending_approval_repo: 2 rows
copied turns: 2 rows
"""


@pytest.fixture
def source(path: Path) -> Path:
    """A closed database with rows in every table."""
    made(path)
    with Database.open(path) as database:
        filled(database)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A closed database at head without rows."""
    return made(tmp_path / "new.db")


def sessions(path: Path) -> list[tuple[object, ...]]:
    """Return the sessions in a file."""
    return sql(path, "SELECT * FROM sessions ORDER BY role")


def test_it_says_what_was_copied_from_where_to_where(source: Path, target: Path) -> None:
    """And nothing else in a pipe: no progress, no colours."""
    done = agentstate("copy", source, target)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{WORDS}{source} is now in {target}; counts and checksums are equal\n"
    assert sessions(target) == sessions(source)


def test_json_has_rows_and_checksum_of_every_table(
    source: Path, server_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that moves a database keeps the checksums."""
    sql(source, "CREATE TABLE notes (text TEXT)")

    code = run(["copy", str(source), server_url, "--json"])

    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["source"] == str(source)
    assert report["target"].startswith("postgresql://agent@127.0.0.1:")
    assert {name: table["rows"] for name, table in report["tables"].items()} == ROWS
    assert all(len(table["checksum"]) == 64 for table in report["tables"].values())
    assert report["left_out"] == ["notes"]


def test_a_table_of_others_is_named(source: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the old file is thrown away."""
    sql(source, "CREATE TABLE notes (text TEXT)")

    run(["copy", str(source), str(target)])

    assert "left out notes, which is not agentstate's\n" in capsys.readouterr().out


def test_progress_is_shown_on_a_terminal(source: Path, target: Path) -> None:
    """A large database takes minutes; a person wants to know how many."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", "copy", source, target],
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65_536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    output, _ = process.communicate()

    assert process.returncode == 0
    assert b"checking turns" in shown
    assert b"2/2" in shown
    assert output.startswith(WORDS)  # what a script would read is apart from it


def test_every_state_of_either_end_has_its_exit_code(
    source: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Foundation section 4; each in one line that names the database and what to do."""
    odd = {name: tmp_path / f"{name}.db" for name in ("behind", "ahead", "hand", "foreign", "zeros", "empty", "none")}
    for name in ("behind", "ahead"):
        made(odd[name])
    with Database.open(odd["behind"]) as database:
        downgrade(database, "0002")
    sql(odd["ahead"], "UPDATE alembic_version SET version_num = 'r999'")
    sql(odd["hand"], "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT)")
    sql(odd["foreign"], "CREATE TABLE songs (title TEXT)")
    odd["zeros"].write_bytes(bytes(8_192))
    odd["empty"].touch()
    advice = {
        "behind": "run 'agentstate upgrade'",
        "ahead": "install the version that wrote it",
        "hand": "'agentstate adopt --dry-run'",
        "foreign": "belongs to another program",
        "zeros": "check the path",
        "empty": "'agentstate upgrade'",
        "none": "'agentstate upgrade' creates it",
    }

    for which in ("source", "target"):
        codes = {}
        for name, path in odd.items():
            ends = (path, target) if which == "source" else (source, path)
            codes[name] = run(["copy", *map(str, ends)])
            output, error = capsys.readouterr()
            assert output == ""
            assert error.count("\n") == 1
            assert str(path) in error
            assert advice[name] in error

        assert codes == {"behind": 3, "ahead": 4, "hand": 5, "foreign": 5, "zeros": 6, "empty": 7, "none": 7}, which
    assert sessions(target) == []
    assert not odd["none"].exists()


def test_a_target_with_rows_a_damaged_row_and_the_source_itself_are_told_apart(
    source: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1: the answer is no; 2: wrong usage; 6: a row that nobody could read."""
    agentstate("copy", source, target)

    assert run(["copy", str(source), str(target)]) == 1
    assert f"{target} has rows already (conversations, introductions" in capsys.readouterr().err
    assert run(["copy", str(source), str(source)]) == 2
    assert "is the source itself" in capsys.readouterr().err
    sql(target, "DELETE FROM sessions")
    sql(source, "UPDATE sessions SET updated_at = 'soon' WHERE role = 'worker'")
    for table in set(ROWS) - {"sessions"}:
        sql(target, f"DELETE FROM {table}")
    assert run(["copy", str(source), str(target)]) == 6
    assert "role='worker', sender='alice@bot.example': 'soon' is not a time" in capsys.readouterr().err


def test_a_server_without_a_schema_is_not_upgraded_by_the_way(source: Path, empty_server_url: str) -> None:
    """A mistyped URL must not become a database of ours; the line names the command that makes one."""
    done = agentstate("copy", source, empty_server_url)

    assert done.returncode == 3
    assert "has no schema yet" in done.stderr
    assert "run 'agentstate upgrade'" in done.stderr


def test_no_password_is_shown_whatever_happens(source: Path, target: Path, server_url: str) -> None:
    """PG: URLs end up in logs and tickets; an error of the server's own repeats what it was told."""
    nobody = server_url.replace("//agent:", "//nobody:")
    nowhere = server_url.rpartition("/")[0] + "/nowhere"
    unreadable = server_url + "?no_such_option=1"
    attempts = [
        agentstate("copy", source, server_url),
        agentstate("copy", source, server_url),
        agentstate("copy", source, server_url, "--json"),
        agentstate("copy", server_url, server_url),
        agentstate("copy", server_url, target, "--json"),
        agentstate("copy", source, nobody),
        agentstate("copy", nowhere, target),
        agentstate("copy", source, unreadable),
    ]

    assert [done.returncode for done in attempts] == [0, 1, 1, 2, 0, 9, 7, 2]
    for done in attempts:
        for secret in (PASSWORD, quote(PASSWORD, safe="")):
            assert secret not in done.stdout + done.stderr


STOPPED = """
import sys, time
from contextlib import contextmanager
from agentstate.cli import copy
from agentstate.cli.main import run

def show(description, done, total):
    if description.startswith(sys.argv[3]):
        print("in the middle", flush=True)
        time.sleep(3600)

@contextmanager
def progress(description):
    yield show

copy.progress = progress
sys.exit(run(["copy", sys.argv[1], sys.argv[2]]))
"""


@pytest.mark.parametrize("engine", ["file", "server"])
@pytest.mark.parametrize("doing", ["copying", "checking"])
def test_control_c_leaves_the_target_as_it_was(
    source: Path, target: Path, request: pytest.FixtureRequest, engine: str, doing: str
) -> None:
    """The person who has second thoughts need not clean up, and sees no traceback."""
    name = str(target) if engine == "file" else request.getfixturevalue("server_url")
    process = python(STOPPED, source, name, doing)
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"

    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)

    assert (process.returncode, output, error.strip()) == (130, "", "agentstate: stopped")
    assert agentstate("copy", source, name).stdout.startswith(WORDS)  # which it would not into a target with rows
