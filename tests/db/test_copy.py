"""A whole database moved to another one: every row or none, on either engine, whatever happens meanwhile."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Column, ForeignKey, LargeBinary, MetaData, Table, Text, event, literal, select
from sqlalchemy.types import TypeDecorator

from agentstate.db.base import NAMING_CONVENTION
from agentstate.db.copy import BATCH, CopyProgress, copy_database
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
from agentstate.db.types import CheckedText, Int64, JsonText, UnixSeconds
from agentstate.errors import (
    ConstraintViolated,
    CopyDiffers,
    DatabaseBusy,
    DatabaseReadOnly,
    ForeignDatabase,
    InvalidValue,
    SchemaAhead,
    SchemaBehind,
    SchemaUnversioned,
    TargetNotEmpty,
    UnreadableValue,
)
from agentstate.metadata import metadata
from agentstate.settings import Settings
from builders import NOON, a_session, a_start, an_approval, an_introduction, filled, finished, python, sql
from db_helpers import made
from migration_helpers import TIMES, contents
from naughty import FREE_TEXT, NAUGHTY
from postgres_server import Server

Ends = tuple[Database, Database]


@pytest.fixture
def other_file(tmp_path: Path, settings: Settings) -> Iterator[Database]:
    """A second database in a file, at head."""
    with Database.open(tmp_path / "other.db", "rwc", settings=settings) as found:
        upgrade(found)
        yield found


@pytest.fixture
def other_server_database(empty_server_url: str, settings: Settings) -> Iterator[Database]:
    """A second database on the server, at head."""
    with Database.open(empty_server_url, settings=settings) as found:
        upgrade(found)
        yield found


@pytest.fixture(params=["file to file", "file to server", "server to file", "server to server"])
def ends(request: pytest.FixtureRequest) -> Ends:
    """A source and a target, both at head and without rows, in every combination of engines."""
    source, _, target = request.param.partition(" to ")
    databases = {"file": ("file_database", "other_file"), "server": ("server_database", "other_server_database")}
    return request.getfixturevalue(databases[source][0]), request.getfixturevalue(databases[target][1])


@pytest.fixture(params=["file", "server"])
def target(request: pytest.FixtureRequest) -> Database:
    """A target on each engine, at head and without rows; the source is `file_database`."""
    found: Database = request.getfixturevalue("other_file" if request.param == "file" else "other_server_database")
    return found


@pytest.fixture
def target_url(target: Database, request: pytest.FixtureRequest) -> str:
    """What another process opens the target by."""
    return str(target.path or request.getfixturevalue("empty_server_url"))


def rows(database: Database, tables: MetaData = metadata) -> dict[str, list[Any]]:
    """Return what every table says, in a fixed order."""
    with database.connect() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in tables.sorted_tables
        }


def is_empty(database: Database) -> bool:
    """Return whether no table has a row."""
    return not any(rows(database).values())


def at(doing: str, act: Callable[[], object]) -> Callable[[CopyProgress], None]:
    """Return a listener that acts once, when the copy of the first table has begun to do that."""
    waiting = [act]

    def listen(step: CopyProgress) -> None:
        if step.doing == doing and waiting:
            waiting.pop()()

    return listen


@contextmanager
def inserts_into(database: Database) -> Iterator[list[int]]:
    """Collect the number of rows of every INSERT."""
    sizes: list[int] = []

    def listen(_: object, __: object, statement: str, parameters: Any, ___: object, many: bool) -> None:
        if statement.startswith("INSERT INTO sessions"):
            sizes.append(len(parameters) if many else 1)

    event.listen(database._engine, "before_cursor_execute", listen)
    try:
        yield sizes
    finally:
        event.remove(database._engine, "before_cursor_execute", listen)


def many_sessions(path: Path, count: int) -> None:
    """Put that many sessions into a file at once."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO sessions VALUES ('worker', ?, ?, '2026-11-29T12:00:00.123Z')",
            ((f"sender-{number}", f"session {number} 🐟") for number in range(count)),
        )
        connection.commit()


# --- what arrives ---


def test_every_row_arrives_as_it_was(ends: Ends) -> None:
    """VA-12: text that has broken programs, in keys and in free text, through both engines."""
    source, target = ends
    with source.write(now=NOON) as work:
        for text in NAUGHTY:
            a_session(work, sender=text, session_id=text)
            an_introduction(work, sender=text)
        for number, text in enumerate(FREE_TEXT):
            a_start(work, f"start-{number}", body=text)
            an_approval(work, f"release-{number}", commit_message=text, repos=[f"/srv/{number}", "/srv/田"])

    report = copy_database(source, target, metadata)

    assert rows(target) == rows(source)
    assert {name: table.rows for name, table in report.tables.items()} == {
        name: len(found) for name, found in rows(source).items()
    }
    assert (report.source, report.target, report.left_out) == (source.name, target.name, ())
    with target.write() as work:  # and it is a database like any other
        a_session(work, sender="somebody new")


def test_the_way_there_and_back_gives_the_same_checksums(
    file_database: Database, server_database: Database, other_file: Database
) -> None:
    """Foundation 8, case 9, in small: the last database is the first."""
    filled(file_database)

    there = copy_database(file_database, server_database, metadata)
    back = copy_database(server_database, other_file, metadata)

    assert there.tables == back.tables
    assert contents(str(other_file.path)) == contents(str(file_database.path))


@pytest.mark.slow
def test_a_hundred_thousand_rows_go_to_a_server_and_come_back(
    file_database: Database, server_database: Database, other_file: Database, path: Path
) -> None:
    """Foundation 8, case 9."""
    many_sessions(path, 60_000)
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO pending_approval VALUES (?, 'alice@bot.example', ?, '2026-11-29T12:00:00.001Z', NULL, NULL)",
            ((f"job-{number}", f"line\n{number} 'quoted'") for number in range(20_000)),
        )
        connection.executemany(
            "INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES (?, '/srv/one')",
            ((f"job-{number}",) for number in range(20_000)),
        )
        connection.commit()

    there = copy_database(file_database, server_database, metadata)
    back = copy_database(server_database, other_file, metadata)

    assert sum(table.rows for table in there.tables.values()) == 100_000
    assert there.tables == back.tables
    assert contents(str(other_file.path)) == contents(path)


def test_rows_pass_in_bounded_batches(
    file_database: Database,
    server_database: Database,
    other_file: Database,
    path: Path,
    server: Server,
    server_url: str,
) -> None:
    """Memory must not grow with the database; a server would hand out all rows at once unless asked otherwise."""
    many_sessions(path, 5 * BATCH + 1)
    asked: list[str] = []

    def listen(step: CopyProgress) -> None:
        if step.doing == "copying" and step.table == "sessions":
            name = server_url.rpartition("/")[2]
            asked.append(server.psql(f"SELECT query FROM pg_stat_activity WHERE datname = '{name}'", name))

    with inserts_into(server_database) as to_server:
        copy_database(file_database, server_database, metadata)
    with inserts_into(other_file) as to_file:
        copy_database(server_database, other_file, metadata, on_progress=listen)

    assert to_server == to_file == [BATCH] * 5 + [1]
    fetched = [re.search(r"FETCH FORWARD (\d+) FROM", text) for text in asked]
    assert all(found is not None and int(found[1]) <= BATCH for found in fetched)
    assert len(fetched) == 6


def test_progress_is_told_batch_by_batch(ends: Ends) -> None:
    """A person sees how far it is: every table with rows, copied and then checked."""
    source, target = ends
    with source.write(now=NOON) as work:
        for number in range(BATCH + 1):
            a_session(work, sender=f"sender-{number}")
    steps: list[CopyProgress] = []

    copy_database(source, target, metadata, on_progress=steps.append)

    total = BATCH + 1
    assert steps == [
        CopyProgress("copying", "sessions", BATCH, total),
        CopyProgress("copying", "sessions", total, total),
        CopyProgress("checking", "sessions", BATCH, total),
        CopyProgress("checking", "sessions", total, total),
    ]


def test_a_database_without_rows_is_copied_too(ends: Ends) -> None:
    """Nothing to copy is no error."""
    report = copy_database(*ends, metadata)

    assert {table.rows for table in report.tables.values()} == {0}


def test_times_in_any_usual_form_arrive_in_the_stored_form(
    file_database: Database, target: Database, path: Path
) -> None:
    """TM-03: other hands wrote microseconds, other zones and epoch seconds; this code writes milliseconds."""
    for number, (time, _) in enumerate(TIMES):
        sql(path, "INSERT INTO sessions VALUES ('worker', ?, 's', ?)", (f"{number:02}", time))

    copy_database(file_database, target, metadata)

    assert [row[3] for row in rows(target)["sessions"]] == [
        datetime.fromisoformat(stored).astimezone(UTC) for _, stored in TIMES
    ]


def checksum(tmp_path: Path, *values: tuple[str, str, str, object]) -> str:
    """Return the checksum of a table `sessions` with these rows, inserted in this order."""
    source, target = (made(tmp_path / f"{uuid4()}.db") for _ in range(2))
    for row in values:
        sql(source, "INSERT INTO sessions VALUES (?, ?, ?, ?)", row)
    with Database.open(source) as old, Database.open(target) as new:
        return copy_database(old, new, metadata).tables["sessions"].checksum


def test_a_checksum_is_of_what_the_rows_say(tmp_path: Path) -> None:
    """It neither knows the order of rows, which collations make differ, nor the spelling of a time; but all else."""
    one = ("worker", "Zoe", "s-1", "2026-03-02T07:15:09.250Z")
    two = ("worker", "émile", "s-2", "2026-03-02T07:15:09.000Z")

    found = checksum(tmp_path, one, two)

    assert len(found) == 64
    assert checksum(tmp_path, two, one) == found
    assert checksum(tmp_path, (*one[:3], 1772435709.25), (*two[:3], "2026-03-02 09:15:09+02:00")) == found
    for other in ((two,), (one, one[:1] + two[1:3] + one[3:]), (one, (*two[:2], "s-1", two[3])), ()):
        assert checksum(tmp_path, *other) != found


def test_tables_of_others_are_named_and_left_out(file_database: Database, target: Database, path: Path) -> None:
    """An operator's own table beside ours must not be missed only after the old file is gone."""
    sql(path, "CREATE TABLE notes (text TEXT)")

    report = copy_database(file_database, target, metadata)

    assert report.left_out == ("notes",)


# --- tables of kinds that come later ---


class Blob(TypeDecorator[bytes]):
    """Bytes."""

    impl = LargeBinary
    cache_ok = True


numbered = MetaData(naming_convention=NAMING_CONVENTION)
NODES = Table(
    "nodes",
    numbered,
    Column("id", Int64("id"), primary_key=True, autoincrement=True),
    Column("parent_id", Int64("parent_id"), ForeignKey("nodes.id")),
    Column("document", JsonText("document")),
    Column("content", Blob),
    Column("at", UnixSeconds("at")),
    sqlite_autoincrement=True,
)
PLAIN = Table("plain", numbered, Column("id", Int64("id"), primary_key=True), Column("text", CheckedText("text")))


@pytest.fixture
def numbered_ends(ends: Ends) -> Ends:
    """A source and a target with tables that number their rows and refer to themselves."""
    for database in ends:
        with database.change_schema() as connection:
            numbered.create_all(connection)
    return ends


def insert(database: Database, table: Table, *values: dict[str, Any]) -> list[int]:
    """Insert rows and return their numbers."""
    with database.write() as work:
        found = (work.connection.execute(table.insert().values(row)).inserted_primary_key for row in values)
        return [int(key[0]) for key in found if key is not None]


def test_documents_and_bytes_arrive_byte_for_byte(numbered_ends: Ends) -> None:
    """VA-05: a document is its text; reading and writing it anew would respell what another hand wrote."""
    source, target = numbered_ends
    documents = ['{"b": 1,"a":[1.50, 1e400]}', '"\\ud800 \\u0000"', "[]", "12345678901234567890123", '{"x":1,"x":2}']
    insert(source, NODES, *({"content": bytes(range(256)), "at": NOON} for _ in documents))
    with source.change_schema() as connection:
        for number, text in enumerate(documents, 1):  # as another hand would spell them
            connection.execute(NODES.update().where(NODES.c.id == number).values(document=literal(text, Text())))

    there = copy_database(source, target, numbered)

    with target.connect() as connection:
        found = connection.exec_driver_sql("SELECT document, content FROM nodes ORDER BY id").all()
    assert [text for text, _ in found] == documents
    assert {bytes(content) for _, content in found} == {bytes(range(256))}
    assert there.tables["nodes"].rows == len(documents)


def test_rows_may_refer_to_rows_that_come_later_and_to_each_other(numbered_ends: Ends) -> None:
    """A child that is read before its parent, or a circle, has no order in which it could be inserted."""
    source, target = numbered_ends
    insert(source, NODES, *({"id": 1_000 - number} for number in range(3 * BATCH)))
    with source.change_schema() as connection:
        connection.execute(NODES.update().values(parent_id=NODES.c.id - 1).where(NODES.c.id > 1_001 - 3 * BATCH))
        connection.execute(NODES.update().values(parent_id=1_000).where(NODES.c.parent_id.is_(None)))

    copy_database(source, target, numbered)

    assert rows(target, numbered) == rows(source, numbered)

    def add_an_orphan() -> None:
        with target.write() as work:
            work.connection.execute(NODES.insert().values(parent_id=5_000))
            pytest.fail("the reference is still checked only by the commit")

    with pytest.raises(ConstraintViolated):
        add_an_orphan()


def test_a_row_whose_parent_is_nowhere_is_refused(numbered_ends: Ends) -> None:
    """Foreign keys hold in the copy, also those that are checked last."""
    source, target = numbered_ends
    if source.backend == "sqlite":
        sql(str(source.path), "INSERT INTO nodes (id, parent_id) VALUES (1, 2)")
    else:
        with source.change_schema() as connection:
            connection.exec_driver_sql("ALTER TABLE nodes DROP CONSTRAINT fk_nodes_parent_id_nodes")
            connection.exec_driver_sql("INSERT INTO nodes (id, parent_id) VALUES (1, 2)")

    with pytest.raises(ConstraintViolated, match="nodes") as caught:
        copy_database(source, target, numbered)

    assert caught.value.database == target.name
    assert rows(target, numbered) == {"nodes": [], "plain": []}


def test_numbers_go_on_where_the_source_was(numbered_ends: Ends) -> None:
    """PG-05: a number given out again would be somebody else's message; that of a deleted row counts too."""
    source, target = numbered_ends
    insert(source, NODES, {}, {}, {})
    insert(source, PLAIN, {"text": "one"}, {"text": "two"})
    with source.change_schema() as connection:
        connection.execute(NODES.delete().where(NODES.c.id == 3))

    copy_database(source, target, numbered)

    assert insert(target, NODES, {}) == [4]
    assert insert(target, PLAIN, {}) == [3]


def test_numbers_of_a_table_that_was_emptied_are_not_given_out_again(numbered_ends: Ends) -> None:
    """PG-05: with no row left only the sequence knows."""
    source, target = numbered_ends
    insert(source, NODES, {}, {})
    with source.change_schema() as connection:
        connection.execute(NODES.delete())

    copy_database(source, target, numbered)

    assert insert(target, NODES, {}) == [3]


def test_a_table_without_a_sequence_is_copied_like_any_other(
    server_database: Database, other_server_database: Database
) -> None:
    """One made by other hands, whose numbers come from its writers."""
    for database in (server_database, other_server_database):
        with database.change_schema() as connection:
            numbered.create_all(connection)
            connection.exec_driver_sql("ALTER TABLE plain ALTER COLUMN id DROP DEFAULT")
            connection.exec_driver_sql("DROP SEQUENCE plain_id_seq")
    insert(server_database, PLAIN, {"id": 7, "text": "seven"})

    copy_database(server_database, other_server_database, numbered)

    assert rows(other_server_database, numbered)["plain"] == [(7, "seven")]


def test_an_interrupted_copy_leaves_the_sequences_alone(numbered_ends: Ends) -> None:
    """A sequence is usually not part of a transaction; the target must be as it was."""
    source, target = numbered_ends
    insert(source, NODES, {}, {}, {})
    insert(source, PLAIN, {"text": "one"})

    def stop(step: CopyProgress) -> None:
        if (step.doing, step.table) == ("checking", "plain"):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        copy_database(source, target, numbered, on_progress=stop)

    assert insert(target, NODES, {}) == [1]


# --- what is refused, with nothing changed ---


def test_a_target_with_rows_is_refused(ends: Ends) -> None:
    """Two databases are never mixed; the rows that are there stay as they are."""
    source, target = ends
    filled(source)
    with target.write(now=NOON) as work:
        a_session(work, sender="bob@bot.example")
    before = rows(target)

    with pytest.raises(TargetNotEmpty) as caught:
        copy_database(source, target, metadata)

    assert (caught.value.database, caught.value.tables) == (target.name, ("sessions",))
    assert rows(target) == before


@pytest.mark.parametrize("ends", ["file to server", "server to file"], indirect=True)
@pytest.mark.parametrize("which", ["source", "target"])
@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("behind", SchemaBehind),
        ("no schema", SchemaBehind),
        ("ahead", SchemaAhead),
        ("unversioned", SchemaUnversioned),
        ("foreign", ForeignDatabase),
    ],
)
def test_both_must_be_at_head(ends: Ends, which: str, state: str, error: type[Exception]) -> None:
    """UP-01: columns that one of them lacks, or that this code does not know, would be lost without a word."""
    source, target = ends
    filled(source)
    odd = source if which == "source" else target
    if state in ("behind", "no schema", "foreign"):
        downgrade(odd, "0002" if state == "behind" else "base", force=True)
    with odd.change_schema() as connection:
        if state == "ahead":
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r999'")
        elif state == "unversioned":
            connection.exec_driver_sql("DROP TABLE alembic_version")
        elif state == "foreign":
            connection.exec_driver_sql("CREATE TABLE songs (title TEXT)")

    with pytest.raises(error) as caught:
        copy_database(source, target, metadata)

    assert caught.value.database == odd.name  # type: ignore[attr-defined]
    assert odd is target or is_empty(target)


def test_a_database_is_not_copied_into_itself(path: Path, tmp_path: Path) -> None:
    """A second name, or a link, hides that it is the same file."""
    made(path, settings=Settings(journal_mode="delete"))  # with a log, SQLite itself stumbles over a hard link
    os.link(path, tmp_path / "hard.db")
    (tmp_path / "soft.db").symlink_to(path)

    for name in (path, tmp_path / "hard.db", tmp_path / "soft.db"):
        with (
            Database.open(path, "ro") as source,
            Database.open(name) as same,
            pytest.raises(InvalidValue, match="is the source itself"),
        ):
            copy_database(source, same, metadata)


def test_a_server_database_is_not_copied_into_itself(server_database: Database, server_url: str) -> None:
    """Two URLs may name one database."""
    with (
        Database.open(server_url + "?application_name=another") as same,
        pytest.raises(InvalidValue, match="is the source itself"),
    ):
        copy_database(server_database, same, metadata)


def test_a_target_that_cannot_be_written_is_refused(file_database: Database, other_file: Database) -> None:
    """Before anything is read."""
    with Database.open(str(other_file.path), "ro") as target, pytest.raises(DatabaseReadOnly):
        copy_database(file_database, target, metadata)


@pytest.mark.parametrize(
    ("damage", "key", "words"),
    [
        ("session_id = CAST(x'ff41' AS TEXT)", "'bob'", "not UTF-8"),
        ("sender = CAST(x'ff41' AS TEXT)", r"'\udcffA'", "not UTF-8"),
        ("session_id = 'a' || char(0)", "'bob'", "U+0000"),
        ("session_id = x'00'", "'bob'", "must be text, not bytes"),
        ("session_id = ''", "'bob'", "must not be empty"),
        ("updated_at = 'soon'", "'bob'", "'soon' is not a time"),
        ("sender = 'B@X'", "'B@X'", "'B@X' should be 'b@x'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_nothing_copied(
    file_database: Database, target: Database, path: Path, damage: str, key: str, words: str
) -> None:
    """VA-08: a copy without that row would look complete; a copy with it would be refused by the server."""
    with file_database.write() as work:
        for number in range(2 * BATCH):
            a_session(work, sender=f"sender-{number}")
        a_session(work, sender="bob")
    sql(path, f"UPDATE sessions SET {damage} WHERE sender = 'bob'")

    with pytest.raises(UnreadableValue) as caught:
        copy_database(file_database, target, metadata)

    assert (caught.value.database, caught.value.field) == (file_database.name, damage.split()[0])
    assert f"in table sessions the row with role='worker', sender={key}: " in str(caught.value)
    assert words in caught.value.detail
    assert is_empty(target)


@pytest.mark.parametrize("time", ["infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00Z"])
def test_a_time_that_only_the_server_knows_is_named(
    server_database: Database, server_url: str, other_file: Database, server: Server, time: str
) -> None:
    """VA-08: the driver fails on it without saying where it is. The server's style of writing times does not matter."""
    filled(server_database)
    name = server_url.rpartition("/")[2]
    server.psql(f"UPDATE sessions SET updated_at = '{time}' WHERE role = 'worker'", name)
    server.execute(f"ALTER DATABASE {name} SET datestyle = 'SQL, DMY'")
    server_database.close()

    with pytest.raises(UnreadableValue, match=r"row with role='worker', sender='alice@bot\.example': .* is not a time"):
        copy_database(server_database, other_file, metadata)
    server.psql("UPDATE sessions SET updated_at = '2026-11-29 12:00:00Z'", name)
    copy_database(server_database, other_file, metadata)

    assert rows(other_file)["sessions"][0][3] == NOON


def test_a_document_that_is_none_is_named(numbered_ends: Ends) -> None:
    """VA-08: carried as its text, it would only be noticed by its first reader."""
    source, target = numbered_ends
    insert(source, NODES, {"document": {}})
    with source.change_schema() as connection:
        connection.exec_driver_sql("UPDATE nodes SET document = '{'")

    with pytest.raises(UnreadableValue, match=r"in table nodes the row with id=1: not JSON") as caught:
        copy_database(source, target, numbered)

    assert caught.value.field == "document"


def test_an_orphan_in_the_source_is_refused(file_database: Database, target: Database, path: Path) -> None:
    """Written with foreign keys off; the table is named, and nothing copied."""
    sql(path, "INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES ('job-1', '/srv/one')")

    with pytest.raises(ConstraintViolated, match="pending_approval_repo") as caught:
        copy_database(file_database, target, metadata)

    assert caught.value.database == target.name
    assert is_empty(target)


# --- interrupted ---


@pytest.mark.parametrize("doing", ["copying", "checking"])
def test_an_error_in_the_middle_leaves_the_target_as_it_was(ends: Ends, doing: str) -> None:
    """One transaction; and the same call afterwards does it."""
    source, target = ends
    filled(source)

    def fail() -> None:
        raise RuntimeError("the middle")

    with pytest.raises(RuntimeError, match="the middle"):
        copy_database(source, target, metadata, on_progress=at(doing, fail))
    left = is_empty(target)
    copy_database(source, target, metadata)

    assert left
    assert rows(target) == rows(source)


COPIER = """
import sys, time
from agentstate.db.copy import copy_database
from agentstate.db.database import Database
from agentstate.metadata import metadata

def stop(step):
    if (step.doing, step.table, step.done) == (sys.argv[3], "sessions", 200):
        print("in the middle", flush=True)
        time.sleep(3600)

with Database.open(sys.argv[1], "ro") as source, Database.open(sys.argv[2]) as target:
    copy_database(source, target, metadata, on_progress=stop)
"""


@pytest.mark.parametrize("doing", ["copying", "checking"])
def test_a_killed_copy_leaves_the_target_empty_and_the_next_one_works(
    file_database: Database, target: Database, target_url: str, path: Path, doing: str
) -> None:
    """kill -9 between two batches: half a database under the right name is worse than none."""
    many_sessions(path, 3 * BATCH)
    copier = python(COPIER, path, target_url, doing)
    try:
        assert copier.stdout is not None
        assert copier.stdout.readline() == "in the middle\n"
    finally:
        copier.kill()
        copier.communicate()

    left = is_empty(target)
    copy_database(file_database, target, metadata)

    assert left
    assert rows(target) == rows(file_database)


@pytest.mark.parametrize(
    ("on_sqlite", "on_postgresql", "words"),
    [
        (
            "AFTER INSERT ON sessions BEGIN UPDATE sessions SET session_id = 'x' WHERE sender = NEW.sender; END",
            "NEW.session_id = 'x'; RETURN NEW;",
            "the 2 rows of sessions say something else",
        ),
        (
            "BEFORE INSERT ON sessions WHEN NEW.role = 'builder' BEGIN SELECT RAISE(IGNORE); END",
            "IF NEW.role = 'builder' THEN RETURN NULL; END IF; RETURN NEW;",
            "sessions has 1 rows instead of 2",
        ),
        (
            "AFTER INSERT ON sessions WHEN NEW.role = 'builder' "
            "BEGIN UPDATE sessions SET updated_at = '2026-11-29T12:00:00.001Z' WHERE role = 'builder'; END",
            "NEW.updated_at = NEW.updated_at + interval '1 ms'; RETURN NEW;",
            "the 2 rows of sessions say something else",
        ),
    ],
    ids=["another text", "a row less", "a millisecond"],
)
def test_what_the_target_alters_is_noticed_and_rolled_back(
    file_database: Database, target: Database, on_sqlite: str, on_postgresql: str, words: str
) -> None:
    """A trigger, or a fault of ours or of an engine: the comparison is with what was read, not with what was sent."""
    filled(file_database)
    with target.change_schema() as connection:
        if target.backend == "sqlite":
            connection.exec_driver_sql(f"CREATE TRIGGER alter_it {on_sqlite}")
        else:
            connection.exec_driver_sql(
                f"CREATE FUNCTION alter_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {on_postgresql} END $$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER alter_it BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION alter_it()"
            )

    with pytest.raises(CopyDiffers) as caught:
        copy_database(file_database, target, metadata)

    assert (caught.value.database, caught.value.detail) == (target.name, words)
    assert is_empty(target)


# --- others at work ---


def change(source: Database, url: str) -> None:
    """Let another process change, add and delete rows of the source."""
    statements = [
        "UPDATE sessions SET session_id = 'changed' WHERE sender = 'sender-299'",
        "DELETE FROM sessions WHERE sender = 'sender-298'",
        "INSERT INTO start_pending (job_id, sender, requested_by, body, created_at) "
        "VALUES ('job-1', 'later', 'later', 'do it', '2026-11-29T12:00:00Z')",
    ]
    if source.path is None:
        code = "import psycopg, sys\nwith psycopg.connect(sys.argv[1]) as it:\n [it.execute(s) for s in sys.argv[2:]]"
    else:
        code = (
            "import sqlite3, sys\nit = sqlite3.connect(sys.argv[1])\n[it.execute(s) for s in sys.argv[2:]]\n"
            "it.commit()\nit.close()"
        )
    finished(python(code, url, *statements))


def test_the_copy_is_the_source_as_it_was_at_the_call(ends: Ends, request: pytest.FixtureRequest) -> None:
    """FS-08: roles go on writing; rows of two moments side by side would be a state that never was."""
    source, target = ends
    with source.write(now=NOON) as work:
        for number in range(3 * BATCH):
            a_session(work, sender=f"sender-{number}", session_id=f"s-{number}")
    before = rows(source)
    url = str(source.path or request.getfixturevalue("server_url"))

    copy_database(source, target, metadata, on_progress=at("copying", lambda: change(source, url)))

    assert rows(target) == before
    assert rows(source) != before
    assert len(rows(source)["start_pending"]) == 1  # in a table that is copied later


def test_nobody_writes_to_the_target_meanwhile(file_database: Database, target: Database, target_url: str) -> None:
    """A role that was started too early would be counted as an error of the copy."""
    filled(file_database)

    def write() -> None:
        with (
            Database.open(target_url, settings=Settings(busy_timeout=0.2)) as early,
            pytest.raises(DatabaseBusy),
            early.write() as work,
        ):
            a_session(work, sender="too early")

    copy_database(file_database, target, metadata, on_progress=at("copying", write))

    assert rows(target) == rows(file_database)


def test_a_copy_takes_as_long_as_it_takes(file_database: Database, server_url: str) -> None:
    """The limit on a statement is for what people wait for; counting a large table may take longer."""
    filled(file_database)

    with Database.open(server_url, settings=Settings(statement_timeout=0.1)) as target:
        with target.change_schema() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql "
                "AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER wait BEFORE INSERT ON introductions FOR EACH ROW EXECUTE FUNCTION wait()"
            )
        copy_database(file_database, target, metadata)

        assert rows(target) == rows(file_database)


def test_two_copies_at_once_have_one_winner(
    file_database: Database, target: Database, target_url: str, path: Path
) -> None:
    """The second waits for the first and finds a target with rows."""
    filled(file_database)
    code = """
import sys
from agentstate.db.copy import copy_database
from agentstate.db.database import Database
from agentstate.errors import TargetNotEmpty
from agentstate.metadata import metadata
with Database.open(sys.argv[1], "ro") as source, Database.open(sys.argv[2]) as target:
    try:
        copy_database(source, target, metadata)
        print("copied")
    except TargetNotEmpty:
        print("too late")
"""
    processes = [python(code, path, target_url) for _ in range(3)]

    answers = sorted(finished(process) for process in processes)

    assert answers == ["copied\n", "too late\n", "too late\n"]
    assert rows(target) == rows(file_database)
