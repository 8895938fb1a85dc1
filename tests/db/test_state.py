"""The states of a schema are told apart, and only a database of this code's own revision is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

import frozen
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.db import state
from agentstate.db.database import Database
from agentstate.db.schema import adopt, downgrade, migrations_directory, upgrade
from agentstate.db.state import HEAD, REVISIONS
from agentstate.errors import (
    CannotAdopt,
    DatabaseCorrupt,
    DatabaseEmpty,
    DatabaseError,
    DatabaseMissing,
    DatabaseReadOnly,
    ForeignDatabase,
    SchemaAhead,
    SchemaBehind,
    SchemaUnversioned,
)
from agentstate.metadata import metadata
from agentstate.roles import views
from builders import a_session, python, sql
from migration_helpers import beside, contents, made, state_of, version

OLDER = list(REVISIONS)[:-1]


def ahead(path: Path, found: str = "r999", *, journal_mode: str = "delete") -> None:
    """Make a database that a newer agentstate wrote: its revision, and a column this code does not know."""
    frozen.load(HEAD, path, journal_mode=journal_mode)
    sql(path, "ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'")
    sql(path, "UPDATE alembic_version SET version_num = ?", (found,))


def written(path: Path, error: type[DatabaseError]) -> DatabaseError:
    """Try to write, and return the refusal."""
    with Database.open(path) as database, pytest.raises(error) as caught, database.write() as work:
        a_session(work)
    return caught.value


# --- this code's own revision ----------------------------------------------------------------------------------------


def test_the_constants_are_the_revisions_that_exist() -> None:
    """Being at head is one SELECT compared with a constant; a constant of yesterday would stop everybody or nobody."""
    files = sorted((migrations_directory() / "versions").glob("[0-9]*.py"))

    found = {path.stem[:4]: path.stem[5:] for path in files}

    assert found == REVISIONS
    assert list(found) == list(REVISIONS)
    assert list(REVISIONS)[-1] == HEAD


def test_every_table_of_ours_is_recognised_by_columns_that_it_has() -> None:
    """A table of a new area that is not listed, or listed with a wrong column, would make its database "foreign"."""
    columns = {table.name: {column.name for column in table.columns} for table in metadata.sorted_tables}

    listed = state.OUR_TABLES

    assert set(listed) == set(columns)
    assert all(listed[table] <= columns[table] for table in listed)


def test_at_head_a_call_asks_for_the_version_once_and_then_never_again(file_database: Database) -> None:
    """The check is on the way of every call; one SELECT per database and process is what it may cost."""
    asked: list[str] = []

    def count(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "alembic_version" in statement:
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        for session_id in ("s-1", "s-2", "s-3"):
            with file_database.write() as work:
                a_session(work, session_id=session_id)
            with file_database.read() as work:
                views.sessions(work)
    finally:
        event.remove(Engine, "before_cursor_execute", count)

    assert len(asked) == 1


# --- no schema at all ------------------------------------------------------------------------------------------------


def test_a_missing_file_is_not_created_by_opening_it(path: Path) -> None:
    """A mistyped path would otherwise become a second, empty memory."""
    with pytest.raises(DatabaseMissing, match="agentstate upgrade"):
        Database.open(path)

    assert beside(path) == []


def test_a_file_without_bytes_is_not_taken_for_a_new_database(path: Path) -> None:
    """FS-05: a crash may have emptied it; what to do depends on whether it held data."""
    path.touch()

    with pytest.raises(DatabaseEmpty, match="restore a backup"):
        Database.open(path)

    assert path.stat().st_size == 0


def test_a_file_without_bytes_beside_the_journal_of_a_filled_one_is_never_new(path: Path) -> None:
    """FS-05: a killed writer's journal says that there were pages; a new database in their place would bury them."""
    frozen.load(HEAD, path)
    killed = (
        "import os, signal, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN')\n"
        "connection.execute('UPDATE sessions SET session_id = hex(zeroblob(50000))')\n"
        "connection.execute('UPDATE introductions SET updated_at = hex(zeroblob(50000))')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = python(killed, path)
    process.communicate()
    with path.open("r+b") as file:
        file.truncate(0)

    with pytest.raises(DatabaseEmpty):
        Database.open(path, "rwc")

    assert beside(path) == ["agent.db", "agent.db-journal"]
    assert path.stat().st_size == 0


def test_a_database_without_tables_is_behind_and_can_be_upgraded(path: Path) -> None:
    """A file that was created and not upgraded yet, as after a kill in between."""
    Database.open(path, "rwc").close()

    error = written(path, SchemaBehind)
    with Database.open(path) as database:
        with pytest.raises(SchemaBehind), database.read():
            pass
        found = database.revision()
        upgrade(database)

    assert isinstance(error, SchemaBehind)
    assert (error.found, error.expected, found) == (None, HEAD, None)
    assert "has no schema yet" in str(error)
    assert version(path) == [HEAD]


# --- behind ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", OLDER)
def test_an_older_schema_is_read_as_far_as_it_goes_and_not_written(revision: str, path: Path) -> None:
    """Rows written into an older schema would miss what the upgrade was about; reading it is safe."""
    frozen.load(revision, path)
    stored = sql(path, "SELECT count(*) FROM sessions")
    before = state_of(path)

    error = written(path, SchemaBehind)
    with Database.open(path, "ro") as database, database.read() as work:
        sessions = views.sessions(work)

    assert isinstance(error, SchemaBehind)
    assert (error.found, error.expected, error.database) == (revision, HEAD, str(path))
    assert all(word in str(error) for word in (revision, HEAD, "agentstate upgrade"))
    assert [(len(sessions),)] == stored
    assert state_of(path) == before


def test_a_table_that_an_older_schema_lacks_is_missing_by_name_of_the_revision(path: Path) -> None:
    """ "no such table" would send an operator looking for damage; the schema is merely older."""
    frozen.load("0001", path)

    with (
        Database.open(path, "ro") as database,
        pytest.raises(SchemaBehind) as caught,
        database.read() as work,
    ):
        StartsPending(work).list_oldest_first()

    assert (caught.value.found, caught.value.expected) == ("0001", HEAD)


# --- ahead -----------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Database], object]] = {
    "upgrade": upgrade,
    "downgrade": lambda database: downgrade(database, "0001", force=True),
    "downgrade to base": lambda database: downgrade(database, "base", force=True),
}


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_a_newer_database_is_never_written(journal_mode: str, path: Path) -> None:
    """UP-01: after a roll-back of the program the old code wrote an unknown schema, or stamped the version down."""
    ahead(path, journal_mode=journal_mode)
    before = state_of(path)

    error = written(path, SchemaAhead)
    with Database.open(path) as database:
        for change in CHANGES.values():
            with pytest.raises(SchemaAhead):
                change(database)
        with pytest.raises(CannotAdopt):
            adopt(database, metadata)

    assert isinstance(error, SchemaAhead)
    assert (error.found, error.expected) == ("r999", HEAD)
    assert all(word in str(error) for word in ("r999", HEAD, "install the version that wrote it"))
    assert before[2] == journal_mode
    assert state_of(path) == before
    assert beside(path) == ["agent.db"]


def test_a_newer_database_is_read_as_far_as_this_code_knows_it(path: Path) -> None:
    """UP-01: the documented rule of "ro": what this code's columns say is shown, what is newer is not looked at."""
    ahead(path)
    before = state_of(path)

    with Database.open(path, "ro") as database:
        with database.read() as work:
            found = (len(views.sessions(work)), len(PendingApprovals(work).list_oldest_first()))
        with pytest.raises(DatabaseReadOnly), database.write():
            pass

    assert found == (3, 2)
    assert state_of(path) == before


def test_two_versions_in_one_database_are_not_taken_for_either(path: Path) -> None:
    """MG-09: two heads were merged and stamped both; to guess one of them is to run the other's steps twice."""
    frozen.load("0002", path)
    sql(path, "INSERT INTO alembic_version VALUES ('0003')")
    before = (contents(path), version(path))

    error = written(path, DatabaseCorrupt)
    with Database.open(path) as database, pytest.raises(DatabaseCorrupt):
        upgrade(database)

    assert isinstance(error, DatabaseCorrupt)
    assert error.detail == "it has 2 schema versions: 0002, 0003"
    assert (contents(path), version(path)) == before


# --- unversioned and foreign -----------------------------------------------------------------------------------------


def test_our_tables_without_a_version_are_refused_with_the_way_to_adopt_them(path: Path) -> None:
    """MG-10: "upgrade head" would meet tables that exist, for ever; "stamp head" would skip missing columns."""
    frozen.load(HEAD, path)
    sql(path, "DELETE FROM alembic_version")
    before = state_of(path)

    error = written(path, SchemaUnversioned)
    with Database.open(path) as database:
        for change in (*CHANGES.values(), Database.revision):
            with pytest.raises(SchemaUnversioned):
                change(database)

    assert all(word in str(error) for word in (HEAD, "agentstate adopt --dry-run"))
    assert state_of(path) == before


FOREIGN = {
    "no version": "CREATE TABLE users (id INTEGER);",
    "a table named like ours": "CREATE TABLE sessions (session_key TEXT, session_data TEXT);",
    "a version of its own": "CREATE TABLE users (id INTEGER); CREATE TABLE alembic_version (version_num TEXT);"
    "INSERT INTO alembic_version VALUES ('4f1c9a');",
    "our newest version": "CREATE TABLE users (id INTEGER); CREATE TABLE alembic_version (version_num TEXT);"
    f"INSERT INTO alembic_version VALUES ('{HEAD}');",
    "our first version": "CREATE TABLE users (id INTEGER); CREATE TABLE alembic_version (version_num TEXT);"
    "INSERT INTO alembic_version VALUES ('0001');",
    "our version and a table named like ours": "CREATE TABLE sessions (id TEXT, data TEXT);"
    f"CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('{HEAD}');",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_another_programs_database_is_refused_and_left_alone(script: str, path: Path) -> None:
    """MG-10, UP-01: the wrong path used to be upgraded; "0001" is what many programs call their first revision."""
    made(path, script)
    before = state_of(path)

    error = written(path, ForeignDatabase)
    with Database.open(path) as database:
        for change in (*CHANGES.values(), Database.revision):
            with pytest.raises(ForeignDatabase):
                change(database)
        with pytest.raises(ForeignDatabase), database.read():
            pass

    assert isinstance(error, ForeignDatabase)
    assert error.tables[0] in ("users", "sessions")
    assert "AGENT_DB_PATH" in str(error)
    assert state_of(path) == before
    assert beside(path) == ["agent.db"]
