"""Alembic's own command in a checkout, and the SQL that both commands print for review."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import upgrade, upgrade_script
from agentstate.errors import InvalidValue
from builders import ROOT, agentstate, sql
from migration_helpers import REVISION_NUMBERS, alembic, beside, contents, schema, shape, state_of, version

# MG-06 with a password, MG-07 against a server and MG-10 (c) on PostgreSQL: tests/postgresql/test_passwords.py and
# test_migrations.py. MG-07's "data steps show as comments": no revision has a data step.

NEWEST = REVISION_NUMBERS[-1]


@pytest.fixture
def upgraded(tmp_path: Path) -> Path:
    """A database at head, made by `upgrade()`."""
    path = tmp_path / "upgraded.db"
    with Database.open(path, "rwc") as database:
        upgrade(database)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which no revision after 0002 has been written yet."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "migrations", root / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "alembic.ini", root)
    for revision in REVISION_NUMBERS[2:]:
        next((root / "migrations" / "versions").glob(f"{revision}_*.py")).unlink()
    return root


# --- online ----------------------------------------------------------------------------------------------------------


def test_alembics_upgrade_does_what_ours_does(path: Path, tmp_path: Path, upgraded: Path) -> None:
    """MG-03, MG-10: whichever of the two an operator runs, the database is the same, and `alembic check` is clean."""
    made = alembic("upgrade", "head", root=ROOT, AGENT_DB_PATH=str(path))
    checked = alembic("check", root=ROOT, AGENT_DB_PATH=str(path))

    assert (made.returncode, checked.returncode) == (0, 0), made.stderr + checked.stderr
    assert "No new upgrade operations detected" in checked.stdout
    assert (schema(path), version(path)) == (schema(upgraded), [NEWEST])
    assert oct(os.stat(path).st_mode)[-3:] == "600"


def test_alembics_check_finds_a_model_that_has_no_revision(checkout: Path, path: Path) -> None:
    """MG-10 (c), foundation acceptance 5: a check that cannot fail would be clean for ever."""
    frozen.load("0002", path)

    checked = alembic("check", root=checkout, AGENT_DB_PATH=str(path))

    assert checked.returncode != 0
    assert "add_column" in checked.stdout + checked.stderr


def test_a_generated_revision_names_stored_types_and_nothing_of_ours(checkout: Path, path: Path) -> None:
    """A revision that imports our types changes its meaning when they change; a frozen one must not."""
    frozen.load("0002", path)
    frozen.load(NEWEST, path.parent / "expected.db")

    made = alembic(
        "revision", "--autogenerate", "--rev-id", "0003", "-m", "again", root=checkout, AGENT_DB_PATH=str(path)
    )
    written = (checkout / "migrations" / "versions" / "0003_again.py").read_text(encoding="utf-8")
    done = alembic("upgrade", "head", root=checkout, AGENT_DB_PATH=str(path))

    assert made.returncode == 0, made.stderr
    assert re.findall(r"import agentstate|from agentstate|agentstate\.", written) == []
    assert 'sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")' in written
    assert 'sa.Text().with_variant(sa.Text(collation="C"), "postgresql")' in written.replace("'C'", '"C"')
    assert done.returncode == 0, done.stderr
    assert schema(path) == schema(path.parent / "expected.db")


def test_an_awkward_path_is_upgraded_stamped_and_read(tmp_path: Path) -> None:
    """MG-06: a `%` crashed the configuration with "invalid interpolation syntax"."""
    path = tmp_path / "100% of a?b#c %(here)s.db"

    done = [
        alembic("-x", f"database={path}", *arguments, root=ROOT)
        for arguments in (["upgrade", "0001"], ["current"], ["stamp", "0001"], ["upgrade", "head"])
    ]
    offline = alembic("upgrade", "0001:head", "--sql", root=ROOT, AGENT_DB_PATH=str(path))

    assert [result.returncode for result in [*done, offline]] == [0] * 5, [result.stderr for result in done]
    assert done[1].stdout.split() == ["0001"]
    assert version(path) == [NEWEST]
    assert [name for name in beside(path) if not name.endswith(("-wal", "-shm"))] == [path.name]


def test_alembics_downgrade_that_would_lose_rows_needs_force(path: Path) -> None:
    """MG-14: the same refusal whichever command is run."""
    frozen.load(NEWEST, path)
    before = contents(path)

    refused = alembic("downgrade", "0002", root=ROOT, AGENT_DB_PATH=str(path))
    kept = (contents(path), version(path))
    forced = alembic("-x", "force=yes", "downgrade", "0002", root=ROOT, AGENT_DB_PATH=str(path))

    assert refused.returncode != 0
    assert "would lose data" in refused.stdout
    assert kept == (before, [NEWEST])
    assert forced.returncode == 0, forced.stderr
    assert version(path) == ["0002"]


FOREIGN = "CREATE TABLE users (id INTEGER); CREATE TABLE sessions (id INTEGER, data TEXT);"
UNVERSIONED = "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT);"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (FOREIGN, "belongs to another program"),
        (
            f"{FOREIGN} CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('0001');",
            "belongs to another program",
        ),
        (UNVERSIONED, "no schema version"),
    ],
    ids=["foreign", "foreign with a number of ours", "unversioned"],
)
def test_alembics_upgrade_refuses_what_is_not_ours_or_has_no_version(script: str, error: str, path: Path) -> None:
    """MG-10: "0001" is what many programs call their first revision; ours went on from there in their database."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    before = state_of(path)

    refused = alembic("upgrade", "head", root=ROOT, AGENT_DB_PATH=str(path))

    assert refused.returncode != 0
    assert error in refused.stdout
    assert state_of(path) == before


# --- the SQL for review ----------------------------------------------------------------------------------------------


def replayed(script: str, path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_the_printed_sql_makes_the_same_database(tmp_path: Path, upgraded: Path) -> None:
    """MG-07: generating SQL crashed on inspecting a mock connection, or gave SQL that made another schema."""
    ours = agentstate("upgrade", "--sql", AGENT_DB_PATH=str(tmp_path / "none.db"))
    theirs = alembic("upgrade", "base:head", "--sql", root=ROOT)

    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    for name, script in (("ours", ours.stdout), ("theirs", theirs.stdout)):
        assert script.split()[0] == "BEGIN;"  # one transaction: a replay that stops half-way leaves nothing (MG-03)
        assert script.count("BEGIN;") == script.count("COMMIT;") == 1
        path = replayed(script, tmp_path / f"{name}.db")
        assert (schema(path), version(path)) == (schema(upgraded), [NEWEST])
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("revision", REVISION_NUMBERS[:-1])
def test_the_printed_sql_begins_where_the_database_is(revision: str, path: Path, upgraded: Path) -> None:
    """MG-07: what is reviewed is what would run, and asking for it changes nothing."""
    frozen.load(revision, path)
    untouched, before, old = state_of(path), contents(path), shape(path)

    printed = agentstate("upgrade", "--sql", AGENT_DB_PATH=str(path))
    afterwards = state_of(path)
    replayed(printed.stdout, path)

    assert printed.returncode == 0, printed.stderr
    assert afterwards == untouched
    assert (schema(path), version(path), contents(path, old)) == (schema(upgraded), [NEWEST], before)


@pytest.mark.parametrize("start", [None, *REVISION_NUMBERS])
def test_the_sql_for_postgresql_is_printed_without_a_server(start: str | None) -> None:
    """MG-07: both dialects; with PostgreSQL's own types and no native enum (MG-13)."""
    script = upgrade_script(start, dialect="postgresql")

    assert script.startswith("BEGIN;")
    assert script.rstrip().endswith("COMMIT;")
    assert "CREATE TYPE" not in script
    if start is None:
        assert 'sender TEXT COLLATE "C" NOT NULL' in script
        assert "updated_at TIMESTAMP WITH TIME ZONE NOT NULL" in script


def test_alembic_prints_the_same_sql_for_postgresql() -> None:
    """MG-07: `-x dialect=postgresql` reviews in a checkout what a server would be asked."""
    theirs = alembic("-x", "dialect=postgresql", "upgrade", "base:head", "--sql", root=ROOT)

    assert theirs.returncode == 0, theirs.stderr
    assert statements(theirs.stdout) == statements(upgrade_script(dialect="postgresql"))


def statements(script: str) -> list[str]:
    lines = (line for line in script.splitlines() if not line.startswith("--"))
    return ["".join(statement.split()) for statement in "\n".join(lines).split(";") if statement.strip()]


@pytest.mark.parametrize(
    ("start", "to"), [("r999", "head"), ("0003", "0001"), ("0001", "r999")], ids=["unknown", "back", "unknown target"]
)
def test_sql_from_or_to_a_revision_that_makes_no_sense_is_refused(start: str, to: str) -> None:
    """MG-07: an empty script for review reads as "nothing to do"."""
    with pytest.raises(InvalidValue):
        upgrade_script(start, to)


def test_the_command_prints_no_sql_for_a_newer_database(path: Path) -> None:
    """UP-01: one line with both versions instead of Alembic's traceback."""
    frozen.load(NEWEST, path)
    sql(path, "UPDATE alembic_version SET version_num = 'r999'")

    refused = agentstate("upgrade", "--sql", AGENT_DB_PATH=str(path))

    assert (refused.returncode, refused.stdout) == (4, "")
    assert len(refused.stderr.splitlines()) == 1
    assert "r999" in refused.stderr
    assert NEWEST in refused.stderr
