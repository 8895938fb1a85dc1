"""Locks, held by real processes: who waits, who gives up, and what is there afterwards.

LK-09 speaks of turns; requests that wait for a start serve here. FS-11: `doctor` belongs to a later step.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from agentstate import adapter
from agentstate.cli.main import run
from agentstate.db import files
from agentstate.db.backup import write_backup
from agentstate.db.database import Database
from agentstate.db.forks import OwnConnection
from agentstate.db.schema import upgrade
from agentstate.db.state import HEAD
from agentstate.doctor import examine
from agentstate.errors import DatabaseBusy
from agentstate.settings import Settings
from builders import a_session, a_start, filled, finished, python
from db_helpers import asked, can_write, holding, made
from migration_helpers import together

MODES = pytest.mark.parametrize("journal_mode", ["wal", "delete"])

READ_THEN_APPEND = """
import sys
from agentstate.db.database import Database
from agentstate.roles.repositories import RoleSessions
path, name = sys.argv[1:]
with Database.open(path) as database:
    for number in range(200):
        with database.write() as work:
            count = work.session.connection().exec_driver_sql("SELECT count(*) FROM sessions").scalar()
            RoleSessions(work).save("worker", f"{name}-{number}", f"the one after {count}")
"""

COLD_START = """
import sys
from agentstate.db.database import Database
from agentstate.db.forks import OwnConnection
from agentstate.db.schema import upgrade
def work():
    with Database.open(sys.argv[1], "rwc") as database:
        return upgrade(database).reached
"""


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Collect what SQLite itself says that it executes on the database's connections."""
    log: list[str] = []

    def listen(connection: Any, *_: object) -> None:
        connection.set_trace_callback(log.append)

    event.listen(database._engine, "checkout", listen)
    try:
        yield log
    finally:
        event.remove(database._engine, "checkout", listen)


def test_two_processes_read_and_then_append_without_an_error(file_database: Database, path: Path) -> None:
    """LK-01: with plain BEGIN whoever read first died at once, whatever the timeout."""
    writers = [python(READ_THEN_APPEND, path, name) for name in ("one", "two")]

    for writer in writers:
        finished(writer)

    # Each saw all rows before its own, so that no two saw the same number.
    assert asked(path, "SELECT count(*) FROM sessions") == 400
    assert asked(path, "SELECT count(DISTINCT session_id) FROM sessions") == 400


def test_writers_take_the_lock_when_they_begin_and_readers_never(file_database: Database) -> None:
    """LK-01: BEGIN IMMEDIATE for every unit that writes, and for none that reads."""
    with file_database.write() as work:
        a_session(work)

    with statements_of(file_database) as written, file_database.write() as work:
        a_session(work)
    with statements_of(file_database) as read, file_database.read() as work:
        work.session.connection().exec_driver_sql("SELECT 1")

    assert [statement for statement in written if statement.startswith("BEGIN")] == ["BEGIN IMMEDIATE"]
    assert [statement for statement in read if statement.startswith("BEGIN")] == ["BEGIN"]
    assert written[-1] == "COMMIT"
    assert "COMMIT" not in read


def test_a_reader_is_not_kept_waiting_by_a_writer(file_database: Database, path: Path) -> None:
    """LK-01: in WAL mode readers go on while a writer works, and see what was committed before."""
    with file_database.write() as work:
        a_session(work)

    with (
        Database.open(path, settings=Settings(busy_timeout=0.1)) as impatient,
        holding(path, "BEGIN IMMEDIATE", "DELETE FROM sessions"),
    ):
        assert adapter.load_session("worker", "alice@bot.example", database=impatient) == "s-1"


def test_eight_processes_make_one_database_at_once(path: Path) -> None:
    """LK-06: on a fresh file 3 of 6 clients died of the switch to WAL, and the others of 'table exists'."""
    answers = together(8, COLD_START, path)

    assert answers == [HEAD] * 8
    assert asked(path, "SELECT count(*) FROM alembic_version") == 1
    assert asked(path, "PRAGMA journal_mode") == "wal"
    assert asked(path, "PRAGMA integrity_check") == "ok"


def test_eight_threads_make_one_database_at_once(path: Path) -> None:
    """LK-06: the same inside one process, where the file's locks belong to all threads together."""

    def start(_: int) -> object:
        with Database.open(path, "rwc", settings=Settings(busy_timeout=60)) as database:
            return upgrade(database).reached

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(start, range(8)))

    assert answers == [HEAD] * 8
    assert asked(path, "SELECT count(*) FROM alembic_version") == 1


@MODES
def test_a_held_lock_is_told_with_path_and_seconds_and_the_call_repeated(path: Path, journal_mode: str) -> None:
    """LK-08: a bare 'database is locked' said neither which database nor what to do."""
    settings = Settings(busy_timeout=0.2, journal_mode=journal_mode)
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        adapter.save_session("worker", "alice@bot.example", "s-1", database=database)
        with (
            holding(path, "BEGIN EXCLUSIVE"),
            pytest.raises(DatabaseBusy, match=r"waited 0\.2 s and wrote nothing; try again") as caught,
        ):
            adapter.save_session("worker", "alice@bot.example", "s-2", database=database)
        found = asked(path, "SELECT session_id FROM sessions")
        adapter.save_session("worker", "alice@bot.example", "s-2", database=database)

    assert (caught.value.database, caught.value.seconds) == (str(path), 0.2)
    assert found == "s-1"
    assert asked(path, "SELECT session_id FROM sessions") == "s-2"


def test_a_locked_database_can_neither_be_opened_nor_read_without_wal(path: Path) -> None:
    """LK-08: without WAL a writer's last step keeps readers out, who get the same answer, and so does opening."""
    settings = Settings(busy_timeout=0.1, journal_mode="delete")
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        with holding(path, "BEGIN EXCLUSIVE"):
            with pytest.raises(DatabaseBusy):
                adapter.load_session("worker", "alice@bot.example", database=database)
            with pytest.raises(DatabaseBusy):
                Database.open(path, settings=settings)

        assert adapter.load_session("worker", "alice@bot.example", database=database) is None


def test_a_lock_held_during_an_upgrade_leaves_the_schema_as_it_was(path: Path) -> None:
    """LK-08: nothing half written, and the same call does it later."""
    made(path, to="0001")

    with Database.open(path, settings=Settings(busy_timeout=0.1)) as database:
        with holding(path, "BEGIN EXCLUSIVE"), pytest.raises(DatabaseBusy):
            upgrade(database)
        before = database.revision()
        upgrade(database)

        assert before == "0001"
        assert adapter.load_session("worker", "alice@bot.example", database=database) is None


def test_a_refused_commit_writes_nothing_and_keeps_no_lock(path: Path) -> None:
    """LK-09: after 'locked' at COMMIT the caller's repeat leaves one row; the failed one may not hold the lock."""
    settings = Settings(busy_timeout=0.1, journal_mode="delete")
    made(path, settings=settings)
    request = ("job-1", "alice@bot.example", "alice@bot.example", "please")

    with Database.open(path, settings=settings) as database:
        with holding(path, "BEGIN", "SELECT * FROM start_pending"):  # a reader keeps the writer from its last step
            with pytest.raises(DatabaseBusy) as caught:
                adapter.save_start_pending(*request, database=database)
            free = can_write(path)
        count = asked(path, "SELECT count(*) FROM start_pending")
        adapter.save_start_pending(*request, database=database)

    assert caught.value.database == str(path)
    assert free
    assert count == 0
    assert asked(path, "SELECT count(*) FROM start_pending") == 1


def test_a_refused_commit_of_an_upgrade_can_be_repeated(path: Path) -> None:
    """LK-09: the same for a change of the schema."""
    settings = Settings(busy_timeout=0.1, journal_mode="delete")
    made(path, to="0001", settings=settings)

    with Database.open(path, settings=settings) as database:
        with holding(path, "BEGIN", "SELECT * FROM sessions"):
            with pytest.raises(DatabaseBusy):
                upgrade(database)
            free = can_write(path)
        before = database.revision()
        upgrade(database)

    assert free
    assert before == "0001"
    assert asked(path, "SELECT count(*) FROM start_pending") == 0


def test_a_failure_after_the_commit_repeats_nothing(
    file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-09: a retry loop around a unit of work wrote its rows twice."""
    request = ("job-1", "alice@bot.example", "alice@bot.example", "please")

    def commit_and_fail(connection: OwnConnection) -> None:
        sqlite3.Connection.commit(connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OwnConnection, "commit", commit_and_fail, raising=False)
        with pytest.raises(KeyboardInterrupt):
            adapter.save_start_pending(*request, database=file_database)
    adapter.save_start_pending(*request, database=file_database)

    assert asked(path, "SELECT count(*) FROM start_pending") == 1
    assert can_write(path)


def everything_that_looks_at(path: Path, settings: Settings) -> None:
    """Call whatever opens, measures or copies the database."""
    for mode in ("rw", "rwc", "ro"):
        with Database.open(path, mode, settings=settings) as database, database.read() as work:
            work.session.connection().exec_driver_sql("SELECT count(*) FROM sessions")
    with Database.open(path, settings=settings) as database, pytest.raises(DatabaseBusy), database.write():
        pass
    write_backup(str(path), f"{path}.copy", settings)
    assert run(["status", "--database", str(path)]) == 0
    assert examine(str(path)).error is None
    files.check(files.resolve(path), "rw")
    files.has_wal(str(path))
    files.shared_mount(str(path))
    files.backups_beside(str(path))
    assert files.create(str(path)) is False


@MODES
def test_looking_at_a_live_database_drops_none_of_its_locks(
    path: Path, journal_mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """FS-11: opening and closing the file drops every lock of the process, and a second writer got in."""
    settings = Settings(busy_timeout=0.05, journal_mode=journal_mode)
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        filled(database)
        with database.write() as work, ThreadPoolExecutor(1) as thread:
            a_start(work, "job-3")
            log = os.stat(f"{path}-wal").st_ino if journal_mode == "wal" else None

            thread.submit(everything_that_looks_at, path, settings).result()

            assert not can_write(path)
            # Without its lock on the file, the other process would have thought itself the last and removed the log.
            assert (os.stat(f"{path}-wal").st_ino if journal_mode == "wal" else None) == log

    assert can_write(path)
    assert asked(path, "SELECT count(*) FROM start_pending") == 2


def test_no_ordinary_call_opens_the_live_file(path: Path) -> None:
    """FS-11: also not for a moment, while it is made; the interpreter itself reports every file that is opened."""
    code = (
        "import sys\n"
        "sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from test_locks import Database, Settings, everything_that_looks_at, filled, upgrade\n"
        "opened = []\n"
        "sys.addaudithook(lambda name, facts: opened.append(str(facts[0])) if name == 'open' else None)\n"
        "path = Path(sys.argv[1])\n"
        "with Database.open(path, 'rwc') as database:\n"
        "    upgrade(database)\n"
        "    filled(database)\n"
        "    with database.write() as work:\n"
        "        everything_that_looks_at(path, Settings(busy_timeout=0.05))\n"
        "print([name for name in opened if name.startswith(str(path)) and '.copy' not in name])\n"
    )

    output = finished(python(code, path, Path(__file__).parent, Path(__file__).parents[1]))

    assert output.splitlines()[-1] == "[]"
