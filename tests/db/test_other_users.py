"""Users without rights: real processes that gave theirs up."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentstate.db.database import Database
from agentstate.settings import Settings
from builders import a_session, finished
from db_helpers import AS_ROOT, NOBODY, as_nobody, common_ground, digests, holding, made

USER = NOBODY if AS_ROOT else os.geteuid()

OPEN = """
for path in sys.argv[2:]:
    try:
        with Database.open(path, sys.argv[1]):
            print("opened")
    except AgentStateError as error:
        print(type(error).__name__, error)
"""

LIST = """
import agentstate.roles.views as views
for path in sys.argv[1:]:
    try:
        with Database.open(path, "ro") as database, database.read() as work:
            print(len(views.sessions(work)))
    except AgentStateError as error:
        print(type(error).__name__, error)
"""

UPGRADE = """
for path in sys.argv[1:]:
    print(main.run(["upgrade", "--database", path]))
"""


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory that every user may look into."""
    with common_ground() as place:
        yield place


def closed_to_others(path: Path) -> None:
    """Let others read the database and nothing else."""
    for file in path.parent.iterdir():
        file.chmod(0o444)
    path.parent.chmod(0o555)


def of_three_sessions(path: Path, journal_mode: str) -> Path:
    """Make a database that holds three sessions, cleanly closed."""
    path.parent.mkdir()
    made(path, settings=Settings(journal_mode=journal_mode))
    with Database.open(path, settings=Settings(journal_mode=journal_mode)) as database, database.write() as work:
        for role in ("worker", "builder", "reviewer"):
            a_session(work, role=role)
    return path


def obstructed(ground: Path, obstacle: str) -> Path:
    """Put the obstacle in the way of a database, and return the path of the database."""
    path = ground / obstacle / "agent.db"
    if obstacle != "no directory":
        path.parent.mkdir()
    if obstacle == "foreign file":
        made(path).chmod(0o600 if AS_ROOT else 0)
        path.parent.chmod(0o777)
    if obstacle == "closed directory":
        path.parent.chmod(0o555)
    return path


OBSTACLES = {
    "no directory": "the directory {directory} does not exist",
    "closed directory": "the directory {directory} belongs to",
    "foreign file": "the file belongs to",
}


def test_the_obstacle_is_named_with_path_and_user(ground: Path) -> None:
    """FS-03: 'unable to open database file' sent people looking in the wrong place; which of three it is, is said."""
    paths = [obstructed(ground, obstacle) for obstacle in OBSTACLES]

    answers = finished(as_nobody(OPEN, "rwc", *paths)).splitlines()

    for path, reason, answer in zip(paths, OBSTACLES.values(), answers, strict=True):
        assert answer.startswith(f"DatabaseUnavailable cannot use {path}: {reason.format(directory=path.parent)}")
        assert f"uid {USER}" in answer


def test_the_command_line_says_it_in_one_line_and_makes_nothing(ground: Path) -> None:
    """FS-03: a traceback in the journal of a service hid the path."""
    paths = [obstructed(ground, obstacle) for obstacle in OBSTACLES]
    before = sorted(ground.rglob("*"))

    codes, errors = as_nobody(UPGRADE, *paths).communicate(timeout=60)

    assert codes == "9\n9\n9\n"
    assert [line.partition(": ")[0] for line in errors.splitlines()] == ["agentstate"] * 3
    assert sorted(ground.rglob("*")) == before


def test_a_file_that_may_only_be_read_is_refused_for_writing(ground: Path) -> None:
    """FS-03: the first write failed in the middle of an agent's answer, and not at the start."""
    path = of_three_sessions(ground / "state" / "agent.db", "wal")
    path.chmod(0o444)
    path.parent.chmod(0o777)

    assert "may not write it" in finished(as_nobody(OPEN, "rw", path))


def test_a_database_in_a_closed_directory_can_be_read(ground: Path) -> None:
    """FS-02: a reader without write permission listed no sessions, because WAL wants to write beside the file."""
    paths = [of_three_sessions(ground / mode / "agent.db", mode) for mode in ("wal", "delete")]
    for path in paths:
        closed_to_others(path)
    before = [digests(path) for path in paths]

    assert finished(as_nobody(LIST, *paths)) == "3\n3\n"
    assert [digests(path) for path in paths] == before
    assert [sorted(found) for found in before] == [["agent.db"], ["agent.db"]]


def test_newest_rows_out_of_reach_are_an_error_and_not_an_old_list(ground: Path) -> None:
    """FS-02: after a crash the newest rows are only in the log, which cannot be read without writing beside it."""
    path = of_three_sessions(ground / "state" / "agent.db", "wal")
    with holding(path, "UPDATE sessions SET session_id = 's-2'") as holder:
        holder.kill()
        holder.wait()
    Path(f"{path}-shm").unlink()
    closed_to_others(path)
    before = digests(path)

    answer = finished(as_nobody(LIST, path))

    assert answer.startswith("DatabaseUnavailable ")
    assert str(path.parent) in answer
    assert f"{path}-wal" in answer
    assert digests(path) == before


def test_a_live_database_in_a_closed_directory_is_read_to_its_newest_row(ground: Path) -> None:
    """FS-02: while the owner has it open, the log is read and not left out."""
    path = of_three_sessions(ground / "state" / "agent.db", "wal")

    with holding(path, "DELETE FROM sessions WHERE role = 'reviewer'"):
        closed_to_others(path)

        assert finished(as_nobody(LIST, path)) == "2\n"


@pytest.mark.skipif(not AS_ROOT, reason="FS-02: needs a writer who may do more than the reader, hence root")
def test_a_reader_in_a_closed_directory_still_locks(ground: Path) -> None:
    """FS-02: read as 'immutable', a database in mode DELETE changed under its reader in the middle of a unit."""
    path = of_three_sessions(ground / "state" / "agent.db", "delete")
    closed_to_others(path)
    code = """
with Database.open(sys.argv[1], "ro") as database, database.read() as work:
    connection = work.session.connection()
    print(connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar(), flush=True)
    sys.stdin.readline()
    print(connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar(), flush=True)
"""
    reader = as_nobody(code, path)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "3\n"

    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM sessions")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.execute("COMMIT")
        output, _ = reader.communicate("go on\n", timeout=60)
        writer.execute("COMMIT")

    assert output == "3\n"
