"""The handle: what it opens, what its units of work keep and undo, and a file that changes under it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import (
    DatabaseBusy,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidValue,
    NotADatabase,
    SchemaBehind,
)
from agentstate.roles.repositories import RoleSessions
from agentstate.settings import Settings
from builders import NOON, a_session, filled, sql
from db_helpers import asked, digests, made

SENDER = "alice@bot.example"


class Stop(Exception):
    """What a caller's own code may raise in the middle of a unit of work."""


def session_of(database: Database) -> str | None:
    """Return Alice's session."""
    return adapter.load_session("worker", SENDER, database=database)


def test_leaving_the_block_commits(database: Database) -> None:
    """What a caller sees after the block is what the next one finds."""
    with database.write() as work:
        a_session(work)

    assert session_of(database) == "s-1"


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_undoes_all_of_it(database: Database, error: type[BaseException]) -> None:
    """Half a use case is never stored, also when the process is told to stop."""

    def use_case() -> None:
        with database.write() as work:
            for role in ("worker", "builder", "reviewer"):
                a_session(work, role=role)
            raise error

    with pytest.raises(error):
        use_case()

    with database.read() as work:
        assert work.session.connection().exec_driver_sql("SELECT count(*) FROM sessions").scalar() == 0


def test_writing_in_a_reading_unit_is_an_error(database: Database) -> None:
    """A write that is rolled back unnoticed looks to its caller as if it had been stored."""
    with pytest.raises(DatabaseReadOnly), database.read() as work:
        a_session(work)

    assert session_of(database) is None
    adapter.save_session("worker", SENDER, "s-2", database=database)  # and the connection can write again


def test_writing_through_a_handle_that_only_reads_is_an_error(path: Path) -> None:
    """Mode 'ro' cannot write by construction, in a unit of work or below it, nor change the schema."""
    made(path)

    with Database.open(path, "ro") as database:
        assert database.readonly
        with pytest.raises(DatabaseReadOnly, match="'rw'"), database.write():
            pass
        with pytest.raises(DatabaseReadOnly), database.change_schema():
            pass
        with database.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only = OFF")
            with pytest.raises(DatabaseReadOnly):
                connection.exec_driver_sql("DELETE FROM sessions")


def test_a_unit_has_one_time(database: Database) -> None:
    """Rows of one use case carry one time, the given one."""
    with database.write(now=NOON) as work:
        a_session(work)
        stamps = [session.updated_at for session in RoleSessions(work).list_by_recency()]

    assert work.now == NOON
    assert stamps == [NOON]


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    """TM-02: a naive time means another instant on another machine."""
    with pytest.raises(InvalidValue, match="now"), database.write(now=datetime(2026, 11, 29)):  # noqa: DTZ001
        pass

    with database.read() as work:
        assert work.now.tzinfo is UTC


def test_reading_inside_a_writing_unit_sees_what_was_committed(file_database: Database) -> None:
    """A second unit is a second transaction: on a file it neither waits nor sees half a use case."""
    with file_database.write() as work:
        a_session(work)
        inside = session_of(file_database)

    assert inside is None
    assert session_of(file_database) == "s-1"


def test_writing_inside_a_writing_unit_waits_for_itself_and_gives_up(path: Path) -> None:
    """The one writer of a file is the unit around it; the outer one goes on."""
    made(path)

    with Database.open(path, settings=Settings(busy_timeout=0.05)) as database:
        with database.write() as work:
            a_session(work)
            with pytest.raises(DatabaseBusy), database.write():
                pass

        assert session_of(database) == "s-1"


def test_a_closed_handle_opens_again(path: Path) -> None:
    """A file keeps what it holds."""
    made(path)
    with Database.open(path) as database:
        adapter.save_session("worker", SENDER, "s-1", database=database)

    assert digests(path).keys() == {"agent.db"}
    assert session_of(database) == "s-1"
    database.close()


def put_in_place(new: Path, path: Path) -> None:
    """Replace the database by another file, as an operator restores a backup.

    FS-09: a log of the old file left beside the new one would be written into it, by SQLite itself. Not leaving it is
    the work of `restore`, which is tested where it is.
    """
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.replace(new, path)


@pytest.mark.parametrize("unit", ["read", "write", "connect", "change_schema"])
def test_a_deleted_file_is_missed_and_not_written_on(path: Path, unit: str) -> None:
    """What is written to a file without a name is lost with the last process that has it open."""
    made(path)
    with Database.open(path, "rwc") as database:
        filled(database)
        for file in list(path.parent.iterdir()):
            file.unlink()

        with pytest.raises(DatabaseMissing) as caught, getattr(database, unit)():
            pass

    assert caught.value.database == str(path)
    assert list(path.parent.iterdir()) == []


def test_a_file_put_in_place_of_another_is_the_one_used(path: Path, tmp_path: Path) -> None:
    """A restored backup under a long-lived process went unnoticed, and its new rows went into the old file."""
    made(path)
    other = made(tmp_path / "other.db")
    sql(other, f"INSERT INTO sessions VALUES ('worker', '{SENDER}', 'of the other', '2026-11-29T11:00:00.000Z')")

    with Database.open(path) as database:
        adapter.save_session("worker", SENDER, "of the first", database=database)
        put_in_place(other, path)
        found = session_of(database)
        adapter.save_session("worker", "bob@bot.example", "new", database=database)

        assert found == "of the other"
        assert asked(path, "SELECT session_id FROM sessions WHERE sender = 'bob@bot.example'") == "new"
    assert asked(path, "PRAGMA integrity_check") == "ok"


def test_the_file_put_in_place_is_looked_at_like_a_new_one(path: Path, tmp_path: Path) -> None:
    """An older or a wrong file in the place of the right one is told, and not written to."""
    made(path)
    older = made(tmp_path / "older.db", to="0001")
    with Database.open(path) as database:
        filled(database)

        put_in_place(older, path)
        with pytest.raises(SchemaBehind) as behind, database.write():
            pass
        (tmp_path / "text").write_text("text")
        put_in_place(tmp_path / "text", path)
        with pytest.raises(NotADatabase), database.write():
            pass

    assert behind.value.found == "0001"
    assert path.read_text() == "text"


def test_a_new_file_without_a_schema_says_what_to_run(path: Path) -> None:
    """'no such table: sessions' told nobody that the upgrade had not been run."""
    with Database.open(path, "rwc") as database:
        for unit in (database.read, database.write):
            with pytest.raises(SchemaBehind, match="run 'agentstate upgrade'"), unit():
                pass
        assert database.revision() is None

        upgrade(database)

        assert session_of(database) is None


def test_a_table_dropped_by_hand_is_an_error_that_names_it(file_database: Database, path: Path) -> None:
    """A missing table under a schema at head is damage, which another upgrade would not mend."""
    assert session_of(file_database) is None
    sql(path, "DROP TABLE sessions")

    with pytest.raises(DatabaseUnavailable, match="no such table: sessions; its schema was changed meanwhile"):
        session_of(file_database)


@pytest.mark.parametrize("prefix", ["sqlite:///", "sqlite+pysqlite:///"])
def test_a_url_of_sqlite_names_a_file(path: Path, prefix: str) -> None:
    """Programs that know SQLAlchemy give a URL; the path in it is taken as it stands."""
    made(path)

    with Database.open(f"{prefix}{path}") as database:
        assert database.path == database.name == str(path)
        assert database.url_without_password == f"sqlite:///{path}"
        assert repr(database) == f"<Database {path} rw>"


def test_a_relative_path_is_the_one_at_the_time_of_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that changes its directory afterwards went on in another file."""
    made(path)
    monkeypatch.chdir(path.parent)

    with Database.open("agent.db") as database:
        monkeypatch.chdir("/")

        assert database.path == str(path)
        assert session_of(database) is None


@pytest.mark.parametrize(
    "target",
    [
        "mysql://agent:secret@db.example:port/agent",
        "mysql://agent:secret@db.example/agent",
        "sqlite://agent:secret@/agent.db",
        "sqlite://secret.example/agent.db",
        "://agent:secret@db.example",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "",
        "agent\0.db",
        b"agent.db",
    ],
)
def test_a_target_that_cannot_be_used_is_refused_without_its_password(target: Any) -> None:
    """A password in an error message ends in a journal that others read."""
    with pytest.raises(InvalidValue) as caught:
        Database.open(target, "rwc")

    assert caught.value.field == "database"
    assert "secret" not in f"{caught.value} {caught.value!r}"


def test_a_mode_that_does_not_exist_is_refused(path: Path) -> None:
    """A typing error in the mode may not fall back to one that writes."""
    mode: Any = "r"

    with pytest.raises(InvalidValue, match="rw, rwc, ro"):
        Database.open(path, mode)
