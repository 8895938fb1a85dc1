"""Upgrades that meet each other: processes, threads, and another library's migrations in the same process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import SchemaChange, downgrade, upgrade
from agentstate.settings import Settings
from builders import sql
from migration_helpers import REVISION_NUMBERS, beside, contents, schema, shape, together, version

# MG-04 on PostgreSQL (advisory lock): tests/postgresql/test_migrations.py.

NEWEST = REVISION_NUMBERS[-1]
UPGRADE = """
import sys
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings

def work():
    with Database.open(sys.argv[1], "rwc", settings=Settings(busy_timeout=60)) as database:
        return " ".join(upgrade(database, backup=True).ran)
"""


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, list[str]]:
    """The schema that one undisturbed upgrade makes."""
    with Database.open(tmp_path / "expected.db", "rwc") as database:
        upgrade(database)
    return schema(tmp_path / "expected.db")


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("processes", [6, 8])
def test_processes_that_make_one_new_database_at_once_all_succeed(
    processes: int, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """LK-06, MG-04, foundation acceptance 3: "table exists" and a WAL switch that failed at once killed the losers."""
    path = tmp_path / "store" / "agent.db"
    path.parent.mkdir()

    ran = together(processes, UPGRADE, path)

    assert ran == [*[""] * (processes - 1), " ".join(REVISION_NUMBERS)]
    assert schema(path) == expected
    assert version(path) == [NEWEST]
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.slow
@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_processes_that_upgrade_a_filled_database_at_once_all_succeed(
    journal_mode: str, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """MG-04, foundation acceptance 3: one runs each step once and backs up first, the others find it done."""
    path = tmp_path / "store" / "agent.db"
    path.parent.mkdir()
    frozen.load("0001", path, journal_mode=journal_mode)
    before, old = contents(path), shape(path)

    ran = together(6, UPGRADE, path)

    assert ran == [*[""] * 5, " ".join(REVISION_NUMBERS[1:])]
    assert (schema(path), contents(path, old)) == (expected, before)
    assert version(path) == [NEWEST]
    assert len([name for name in beside(path) if "backup" in name]) == 1


# --- threads ---------------------------------------------------------------------------------------------------------


def at_once(work: Sequence[Callable[[], SchemaChange]]) -> list[SchemaChange]:
    """Run each in a thread of its own, all released at one moment."""
    barrier = threading.Barrier(len(work))

    def run(one: Callable[[], SchemaChange]) -> SchemaChange:
        barrier.wait(60)
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result(120) for future in [pool.submit(run, one) for one in work]]


@pytest.mark.parametrize("handles", ["shared", "own"])
@pytest.mark.parametrize("start", ["new", "0001"])
def test_threads_that_upgrade_one_database_at_once_all_succeed(
    handles: str, start: str, path: Path, tmp_path: Path, settings: Settings, expected: dict[str, list[str]]
) -> None:
    """MG-05: Alembic keeps the running migration in module globals; two threads died of KeyError 'script'."""
    if start != "new":
        frozen.load(start, path)
    before, old = (contents(path), shape(path)) if start != "new" else ({}, {})

    with Database.open(path, "rwc", settings=settings) as shared:
        own = [Database.open(path, "rwc", settings=settings) for _ in range(6)]
        used = own if handles == "own" else [shared] * 6
        changes = at_once([partial(upgrade, database) for database in used])
        for database in own:
            database.close()

    ran = [revision for change in changes for revision in change.ran]
    assert ran == [revision for revision in REVISION_NUMBERS if start == "new" or revision > start]
    assert {change.reached for change in changes} == {NEWEST}
    assert (schema(path), contents(path, old), version(path)) == (expected, before, [NEWEST])


def test_threads_that_change_databases_of_their_own_do_not_meet(
    tmp_path: Path, settings: Settings, expected: dict[str, list[str]]
) -> None:
    """MG-05: six databases, half going up and half going down; a shared `op` would write into another thread's."""
    paths = [tmp_path / f"{number}.db" for number in range(6)]
    for path in paths:
        frozen.load("0002", path)
    databases = [Database.open(path, settings=settings) for path in paths]

    up = [partial(upgrade, database) for database in databases[:3]]
    down = [partial(downgrade, database, "0001", force=True) for database in databases[3:]]
    at_once([*up, *down])
    for database in databases:
        database.close()

    assert [version(path) for path in paths] == [[NEWEST]] * 3 + [["0001"]] * 3
    assert [schema(path) == expected for path in paths] == [True] * 3 + [False] * 3
    assert {tuple(schema(path)) for path in paths[3:]} == {("table introductions", "table sessions")}


# --- somebody else's Alembic -----------------------------------------------------------------------------------------

THEIR_ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.config.attributes["before"]()
        context.run_migrations()
engine.dispose()
"""
THEIR_REVISION = """
import sqlalchemy as sa
from alembic import context, op
revision, down_revision, branch_labels, depends_on = "0001", None, None, None
def upgrade():
    op.create_table("theirs", sa.Column("id", sa.Integer, primary_key=True))
    context.config.attributes["during"]()
    op.add_column("theirs", sa.Column("added", sa.Text))
"""


def their_upgrade(directory: Path, *, before: Callable[[], object], during: Callable[[], object]) -> None:
    """Run another library's migrations, which call back before they begin and in the middle of their revision."""
    (directory / "versions").mkdir(parents=True)
    (directory / "env.py").write_text(THEIR_ENVIRONMENT, encoding="utf-8")
    (directory / "versions" / "0001_theirs.py").write_text(THEIR_REVISION, encoding="utf-8")
    config = Config()
    config.set_main_option("script_location", str(directory))
    config.set_main_option("sqlalchemy.url", f"sqlite:///{directory}/their.db")
    config.attributes.update(before=before, during=during)
    command.upgrade(config, "head")


def their_columns(directory: Path) -> list[str]:
    with closing(sqlite3.connect(directory / "their.db")) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(theirs)")]


@pytest.mark.parametrize("moment", ["before", "during"])
def test_an_upgrade_inside_another_librarys_migrations_disturbs_neither(
    moment: str, path: Path, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """MG-05: `alembic.op` and `alembic.context` must be the host's again, and never ours in between."""
    frozen.load("0001", path)
    before, old = contents(path), shape(path)

    def ours() -> None:
        with Database.open(path) as database:
            upgrade(database)
            downgrade(database, "0001")
            upgrade(database)

    hooks: dict[str, Callable[[], object]] = {"before": lambda: None, "during": lambda: None, moment: ours}
    their_upgrade(tmp_path / "their", before=hooks["before"], during=hooks["during"])

    assert their_columns(tmp_path / "their") == ["id", "added"]
    assert (schema(path), contents(path, old), version(path)) == (expected, before, [NEWEST])


def test_an_upgrade_beside_another_librarys_migrations_disturbs_neither(
    path: Path, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """MG-05: the other library stands in the middle of its revision, in its own thread, while we begin and end."""
    inside, done = threading.Event(), threading.Event()

    def wait_for_us() -> None:
        inside.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as pool, Database.open(path, "rwc") as database:
        theirs = pool.submit(their_upgrade, tmp_path / "their", before=lambda: None, during=wait_for_us)
        try:
            assert inside.wait(60)
            upgrade(database)
            ours_then = version(path)
        finally:
            done.set()
        theirs.result(60)

    assert ours_then == [NEWEST]
    assert their_columns(tmp_path / "their") == ["id", "added"]
    assert schema(path) == expected
