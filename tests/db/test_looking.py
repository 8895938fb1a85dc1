"""Looking at a database leaves no trace, and what is seen is whole; that no byte differs is in tests/test_doctor.py."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentstate.db.database import Database
from agentstate.db.health.looking import Look, look
from agentstate.errors import DatabaseCorrupt, DatabaseUnavailable
from agentstate.settings import Settings
from builders import a_session, a_start, finished, python, sql
from db_helpers import as_nobody, common_ground, digests, holding, made

MODES = pytest.mark.parametrize("journal_mode", ["wal", "delete"])
CHANGE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("UPDATE sessions SET session_id = session_id || '+'")
"""
WRITE = "UPDATE sessions SET session_id = 's-2'"


@pytest.fixture
def closed(path: Path) -> Path:
    """A closed database in mode WAL that holds a session."""
    made(path)
    with Database.open(path) as database, database.write() as work:
        a_session(work)
    return path


def sessions(seen: Look) -> list[str]:
    """Ask for the ids of all sessions."""
    with seen.database.connect() as connection:
        return [str(found) for found in connection.exec_driver_sql("SELECT session_id FROM sessions").scalars()]


@MODES
def test_what_was_committed_last_is_seen(closed: Path, journal_mode: str) -> None:
    """FS-02: a look past the log would see yesterday's rows."""
    sql(closed, f"PRAGMA journal_mode = {journal_mode}")
    with holding(closed, WRITE):
        assert look(str(closed), Settings(), sessions) == ["s-2"]

    assert look(str(closed), Settings(), sessions) == ["s-2"]


def test_the_question_is_asked_again_when_somebody_wrote_meanwhile(closed: Path) -> None:
    """Without locks half an answer may be from before a write, and half from after it."""
    answers = []

    def ask(seen: Look) -> list[str]:
        answers.append(sessions(seen))
        if len(answers) == 1:
            sql(closed, WRITE)
        return answers[-1]

    assert look(str(closed), Settings(), ask) == ["s-2"]
    assert answers == [["s-1"], ["s-2"]]


def test_what_looked_damaged_only_because_somebody_wrote_is_asked_again(closed: Path) -> None:
    """A doctor that finds damage where there is none sends people to their backups."""
    asked = []

    def ask(seen: Look) -> list[str]:
        asked.append(seen.without_locks)
        if len(asked) == 1:
            sql(closed, WRITE)
            raise DatabaseCorrupt(str(closed), "half and half")
        return sessions(seen)

    assert look(str(closed), Settings(), ask) == ["s-2"]
    assert asked == [True, True]


def test_damage_that_stays_is_told(closed: Path) -> None:
    """What nobody wrote to is as it is."""

    def ask(seen: Look) -> None:
        raise DatabaseCorrupt(str(closed), "flipped")

    with pytest.raises(DatabaseCorrupt, match="flipped"):
        look(str(closed), Settings(), ask)


def test_a_database_that_is_always_written_to_is_looked_at_with_locks_in_the_end(closed: Path) -> None:
    """Scripts that each write once come and go all day; without locks no look would ever be whole."""
    asked = []

    def ask(seen: Look) -> tuple[list[str], str, list[str]]:
        asked.append(seen.without_locks)
        with seen.database.connect() as connection:
            before = [str(found) for found in connection.exec_driver_sql("SELECT session_id FROM sessions").scalars()]
            finished(python(CHANGE, closed))
            after = [str(found) for found in connection.exec_driver_sql("SELECT session_id FROM sessions").scalars()]
            return before, seen.journal_mode(connection), after

    before, mode, after = look(str(closed), Settings(), ask)

    assert asked == [True, True, False]
    assert (before, mode) == (after, "wal")
    assert sql(closed, "SELECT session_id FROM sessions") == [("s-1+++",)]


def test_with_a_log_that_others_use_the_question_is_asked_once(closed: Path) -> None:
    """Who reads with locks sees one state, whatever is written meanwhile."""
    answers = []

    def ask(seen: Look) -> list[str]:
        with seen.database.connect() as connection:
            answers.append(connection.exec_driver_sql("SELECT session_id FROM sessions").scalars().all())
            finished(python(CHANGE, closed))
            return [str(found) for found in connection.exec_driver_sql("SELECT session_id FROM sessions").scalars()]

    with holding(closed, WRITE):
        assert look(str(closed), Settings(), ask) == ["s-2"]

    assert answers == [["s-2"]]


@pytest.mark.parametrize("held", [True, False])
def test_a_look_keeps_no_handle_of_this_process_from_writing(closed: Path, held: bool) -> None:
    """SQLite shares its view of the log among a process: who may only read it made writers read-only, too."""
    with Database.open(closed) as database:
        database._engine.dispose()  # as before a fork: nothing is open, and the next call opens it
        if not held:
            database.close()
        with holding(closed, WRITE):
            pass

        def ask(seen: Look) -> list[str]:
            with seen.database.connect() as connection:
                found = [str(row) for row in connection.exec_driver_sql("SELECT session_id FROM sessions").scalars()]
                if held:
                    with database.write() as work:
                        a_start(work)
            return found

        assert look(str(closed), Settings(), ask) == ["s-2"]

    assert sql(closed, "SELECT count(*) FROM start_pending") == [(int(held),)]


def test_a_log_that_cannot_be_read_without_a_trace_is_not_left_out(closed: Path) -> None:
    """FS-02: an old state would pass for the newest one; the advice helps."""
    with holding(closed, WRITE):
        pass
    Path(f"{closed}-shm").unlink()

    with pytest.raises(DatabaseUnavailable, match="its newest rows are in") as caught:
        look(str(closed), Settings(), sessions)

    assert "agentstate upgrade" in str(caught.value)
    with Database.open(closed) as database, database.write() as work:
        a_start(work)
    assert look(str(closed), Settings(), sessions) == ["s-2"]


def test_a_write_that_was_cut_off_is_not_undone_by_looking(closed: Path) -> None:
    """FS-06: only a program that may write undoes it, and then it is undone."""
    sql(closed, "PRAGMA journal_mode = delete")
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("CREATE TABLE filler (content)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(1000000))")
        connection.commit()
    with holding(closed, "PRAGMA cache_size = 1", "BEGIN", "UPDATE filler SET content = randomblob(1000000)", WRITE):
        pass
    before = digests(closed)

    with pytest.raises(DatabaseUnavailable, match="a write was cut off in the middle"):
        look(str(closed), Settings(), sessions)

    assert digests(closed) == before
    assert sql(closed, "SELECT session_id FROM sessions") == [("s-1",)]
    assert look(str(closed), Settings(), sessions) == ["s-1"]


EXAMINE = """
from agentstate.doctor import examine
for path in sys.argv[1:]:
    report = examine(path)
    print(report.error, [found.check for found in report.findings], "rows" in report.checked)
    print(report.findings[0].what)
"""


def test_another_user_looks_at_a_database_in_a_closed_directory() -> None:
    """FS-02, FS-03: who may not write is told so as a finding, and finds everything else as well."""
    with common_ground() as ground:
        paths = [ground / mode / "agent.db" for mode in ("wal", "delete")]
        for path in paths:
            path.parent.mkdir()
            made(path, settings=Settings(journal_mode=path.parent.name))
            path.chmod(0o444)
            path.parent.chmod(0o555)
        before = [digests(path) for path in paths]

        wal, why, delete, why_too = finished(as_nobody(EXAMINE, *paths)).splitlines()

        assert [digests(path) for path in paths] == before
        assert wal == "None ['permissions', 'writable', 'directory'] True"
        assert delete == "None ['permissions', 'writable', 'directory', 'journal mode'] True"
        assert why == why_too == "open to everybody: agent.db (0444)"
