"""The revisions: one line of history, each up, down and up again with every row, ending in the models' schema."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, migrations_directory, script_directory, upgrade
from agentstate.errors import ConstraintViolated
from builders import filled, sql
from migration_helpers import REVISION_NUMBERS, contents, normalised, schema, shape, version

# MG-13 (native enum types) and the PostgreSQL half of MG-02: tests/postgresql/test_migrations.py.
# MG-02 names partial indexes, CHECKs, triggers and AUTOINCREMENT: no area has any yet; the comparison below includes
# them.

NEWEST = REVISION_NUMBERS[-1]


def revision_module(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"revision_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_history_is_one_line_from_one_base_to_one_head() -> None:
    """MG-09: two branches with one parent made every installation stop with "multiple head revisions"."""
    script = script_directory()

    line = [revision.revision for revision in script.walk_revisions()][::-1]

    assert script.get_heads() == [NEWEST]
    assert script.get_bases() == [REVISION_NUMBERS[0]]
    assert line == REVISION_NUMBERS
    assert not any(revision.is_branch_point or revision.is_merge_point for revision in script.walk_revisions())


def test_every_revision_names_the_rows_that_going_back_costs() -> None:
    """MG-14: a downgrade counts what `LOSES` names; a revision without it would lose data without a word."""
    files = sorted((migrations_directory() / "versions").glob("[0-9]*.py"))

    declared = {path.stem[:4]: revision_module(path).LOSES for path in files}

    assert list(declared) == REVISION_NUMBERS
    assert all(isinstance(losses, dict) for losses in declared.values())


@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_a_shipped_revision_still_makes_the_schema_it_shipped(revision: str, tmp_path: Path) -> None:
    """A revision that is edited after its release leaves two kinds of databases with one version number."""
    frozen.load(revision, tmp_path / "shipped.db")

    with Database.open(tmp_path / "made.db", "rwc") as database:
        upgrade(database, revision)

    assert schema(tmp_path / "made.db") == schema(tmp_path / "shipped.db")
    assert version(tmp_path / "made.db") == version(tmp_path / "shipped.db") == [revision]


@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_a_shipped_database_holds_rows_in_every_table(revision: str, tmp_path: Path) -> None:
    """A dump without rows would prove nothing about rows."""
    frozen.load(revision, tmp_path / "shipped.db")

    rows = contents(tmp_path / "shipped.db")

    assert rows
    assert all(rows.values())


@pytest.mark.parametrize("way", ["at once", "step by step"])
@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_a_shipped_database_reaches_head_with_every_row(revision: str, way: str, path: Path) -> None:
    """MG-01, roles-and-approvals acceptance 1: what a user of any earlier version wrote is there afterwards."""
    frozen.load(revision, path)
    before, old = contents(path), shape(path)

    targets = ["head"] if way == "at once" else REVISION_NUMBERS[REVISION_NUMBERS.index(revision) :]
    with Database.open(path) as database:
        ran = [step for target in targets for step in upgrade(database, target).ran]

    assert ran == REVISION_NUMBERS[REVISION_NUMBERS.index(revision) + 1 :]
    assert version(path) == [NEWEST]
    assert contents(path, old) == before
    assert sql(path, "PRAGMA foreign_key_check") == []


def test_old_rows_get_nothing_but_null_in_the_columns_of_0003(path: Path) -> None:
    """MG-12: SQLite refuses DEFAULT CURRENT_TIMESTAMP here; and "now" would claim that somebody decides right now."""
    frozen.load("0002", path)
    old = shape(path)

    with Database.open(path) as database:
        upgrade(database, "0003")

    new = {table: [name for name in columns if name not in old[table]] for table, columns in shape(path).items()}
    added = {table: columns for table, columns in new.items() if columns}
    assert set(added) == {"start_pending", "pending_approval", "pending_approval_repo"}
    assert {value for rows in contents(path, added).values() for row in rows for value in row} == {None}


@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_every_step_goes_down_and_up_again_with_its_rows(revision: str, path: Path, tmp_path: Path) -> None:
    """MG-01, MG-14, roles-and-approvals acceptance 1: what both revisions know is the same before and after."""
    below = REVISION_NUMBERS[REVISION_NUMBERS.index(revision) - 1] if revision != REVISION_NUMBERS[0] else None
    original = tmp_path / "original.db"
    frozen.load(revision, original)
    frozen.load(revision, path)

    with Database.open(path) as database:
        downgrade(database, below or "base", force=True)
        kept, shape_below, schema_below, version_below = contents(path), shape(path), schema(path), version(path)
        upgrade(database, revision)

    assert version_below == ([below] if below else [])
    assert kept == contents(original, shape_below)
    assert contents(path, shape_below) == kept
    assert (schema(path), version(path)) == (schema(original), [revision])
    if below:
        frozen.load(below, tmp_path / "below.db")
        assert schema_below == schema(tmp_path / "below.db")
    else:
        assert schema_below == {}


def test_the_whole_way_down_and_up_leaves_nothing_behind(path: Path) -> None:
    """A table or index that a downgrade forgets makes the next upgrade fail with "already exists" (MG-03)."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
        made = schema(path)

        for revision in [*REVISION_NUMBERS[-2::-1], "base"]:
            downgrade(database, revision)
        bare = schema(path)
        for revision in REVISION_NUMBERS:
            upgrade(database, revision)

    assert bare == {}
    assert schema(path) == made


def test_the_revisions_make_the_schema_of_the_models(path: Path) -> None:
    """MG-02, foundation acceptance 5: keys, references with ON DELETE, defaults and checks included."""
    with Database.open(path, "rwc") as database:
        upgrade(database)

    with Database.memory() as memory:
        with memory.read():
            pass
        with memory.connect() as connection:
            rows = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()

    assert schema(path) == normalised([tuple(row) for row in rows])
    assert any("ON DELETE CASCADE" in definition for definition in schema(path)["table pending_approval_repo"])


@pytest.mark.parametrize(
    ("parent", "child"), [("pending_approval", "pending_approval_repo"), ("conversations", "turns")]
)
def test_rebuilding_a_parent_table_keeps_its_children(path: Path, parent: str, child: str) -> None:
    """MG-01: with foreign keys on, the DROP in a rebuild deleted every child row, and the exit code was 0."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
        filled(database)
        before = contents(path)

        with database.change_schema() as connection:
            operations = Operations(MigrationContext.configure(connection))
            with operations.batch_alter_table(parent, recreate="always"):
                pass
        with database.write() as work:
            switch = work.session.connection().exec_driver_sql("PRAGMA foreign_keys").scalar_one()

    assert contents(path) == before
    assert before[child]
    assert switch == 1
    assert sql(path, "PRAGMA foreign_key_check") == []


def test_a_change_that_leaves_children_without_parents_is_not_kept(path: Path) -> None:
    """MG-01: foreign keys are off during the change, so they are checked before its commit."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
        filled(database)
        before = contents(path)

        with pytest.raises(ConstraintViolated) as caught, database.change_schema() as connection:
            connection.exec_driver_sql("DELETE FROM pending_approval")

    assert "pending_approval_repo (2)" in str(caught.value)
    assert contents(path) == before


def test_the_newest_dump_is_written_the_same_each_time(tmp_path: Path) -> None:
    """A dump that differs from run to run cannot be reviewed, and would hide what changed in it."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    first, second = frozen.write(tmp_path / "one"), frozen.write(tmp_path / "two")

    assert first.name == f"{NEWEST}.sql"
    assert first.read_bytes() == second.read_bytes()
    with closing(sqlite3.connect(tmp_path / "again.db")) as connection:
        connection.executescript(first.read_text(encoding="utf-8"))
    assert frozen.dump(tmp_path / "again.db") == first.read_text(encoding="utf-8")
