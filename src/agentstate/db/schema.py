"""Changing the schema: the only door to Alembic, which nothing on the way to a normal call passes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect

from agentstate.db import state
from agentstate.db.backup import dated, write_backup
from agentstate.db.database import Database
from agentstate.db.takeover import take_over_tables
from agentstate.errors import CannotAdopt, DatabaseUnavailable, DowngradeLosesData, InvalidValue


def types_differ(context: MigrationContext, found: Any, wanted: Any, found_type: Any, wanted_type: Any) -> bool:
    """Return whether a column's type in the database is not the one its model asks for, as the engine writes both."""
    return bool(found_type.compile(context.dialect) != wanted_type.compile(context.dialect))


MIGRATION_OPTIONS: dict[str, Any] = {
    "transactional_ddl": True,
    "compare_type": types_differ,
    "compare_server_default": True,
}
"""What every migration context is configured with, here and in migrations/env.py. SQLite's DDL is transactional once
BEGIN is ours, so a failed upgrade leaves nothing behind (MG-03)."""

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What an upgrade or downgrade did: revisions before and after (None: no schema), those it ran, and the backup."""

    found: str | None
    reached: str | None
    ran: tuple[str, ...]
    backup: str | None


@dataclass(frozen=True, slots=True)
class Adoption:
    """What taking over a database did, step by step; `rows` counts the rows of each table, `backup` is its path."""

    steps: tuple[str, ...]
    rows: dict[str, int]
    reached: str
    backup: str | None


def migrations_directory() -> Path:
    """Return where the revisions are: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "migrations", package.parents[1] / "migrations"):
        if (candidate / "versions").is_dir():
            return candidate
    raise DatabaseUnavailable("the schema", f"no migrations beside {package}; the installation is incomplete")


def script_directory() -> ScriptDirectory:
    """Return Alembic's view of the revisions, loaded anew: nothing of it is shared between runs or threads."""
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def at_head(database: Database) -> bool:
    """Return whether the database's schema is the one that this code writes."""
    return database.revision() == state.HEAD


def upgrade(
    database: Database, to: str = "head", *, backup: bool = False, on_step: OnStep | None = None
) -> SchemaChange:
    """Bring the schema up to a revision, all steps or none; nothing to do is no error.

    `to` is "head" or a revision number. `backup` copies the database beside itself first, if it has rows and there is
    something to do. `on_step` is called with each revision as it is applied. Several processes and threads may upgrade
    at once: one does it, the others find it done (MG-04, MG-05). Raises `InvalidValue` for an unknown or older
    revision, and `SchemaAhead`, `SchemaUnversioned` or `ForeignDatabase` for what cannot be upgraded.
    """
    target = _known(to)
    with database.change_schema() as connection:
        found = state.schema_revision(connection, database.name)
        if found is not None and found not in state.REVISIONS:
            state.require_head(found, database.name)
        order = list(state.REVISIONS)
        if found is not None and order.index(target) < order.index(found):
            raise InvalidValue(
                "revision", f"{target} is older than the schema's {found}: 'agentstate downgrade {target}'"
            )
        if found == target:
            return SchemaChange(found, found, (), None)
        saved = _backup(database, connection, found) if backup else None
        script = script_directory()
        ran = _run(connection, script, lambda heads: _steps_up(script, target, heads[0] if heads else None), on_step)
    return SchemaChange(found, target, ran, saved)


def downgrade(
    database: Database, to: str, *, force: bool = False, backup: bool = False, on_step: OnStep | None = None
) -> SchemaChange:
    """Take the schema back to an earlier revision, all steps or none.

    `to` is "base" (no schema) or a revision number. Raises `DowngradeLosesData` counting the rows that would go,
    unless `force` (MG-14); `InvalidValue` for an unknown or newer revision.
    """
    target = "base" if to == "base" else _known(to)
    with database.change_schema() as connection:
        found = state.schema_revision(connection, database.name)
        if found is not None and found not in state.REVISIONS:
            state.require_head(found, database.name)
        order = ["base", *state.REVISIONS]
        if order.index(target) > order.index(found or "base"):
            raise InvalidValue(
                "revision", f"{target} is newer than the schema's {found or 'base'}: use 'agentstate upgrade'"
            )
        if target == (found or "base"):
            return SchemaChange(found, found, (), None)
        script = script_directory()
        steps = script._downgrade_revs(target, found)
        _refuse_loss(connection, steps, target, force=force)
        saved = _backup(database, connection, found) if backup else None
        ran = _run(connection, script, lambda heads: steps, on_step)
    return SchemaChange(found, None if target == "base" else target, ran, saved)


def upgrade_script(start: str | None = None, to: str = "head", *, dialect: str = "sqlite") -> str:
    """Return the SQL of an upgrade for review, without running it; `start` None means from an empty database.

    Raises `InvalidValue` for an unknown revision, and for a target older than the start.
    """
    target = _known(to)
    order = list(state.REVISIONS)
    if start is not None and order.index(_known(start)) > order.index(target):
        raise InvalidValue("revision", f"{target} is older than {start}, from which the script would start")
    script = script_directory()
    output = io.StringIO()
    context = _context(
        script,
        dialect_name=dialect,
        opts={"as_sql": True, "output_buffer": output, "starting_rev": start, "literal_binds": True},
        steps=lambda heads: _steps_up(script, target, start),
    )
    with context.begin_transaction():
        context.run_migrations()
    return output.getvalue()


def adopt(database: Database, metadata: MetaData, *, dry_run: bool = False, backup: bool = True) -> Adoption:
    """Take over a database that has our tables but no version, with every row, or refuse it untouched.

    `metadata` holds the tables of all areas (`agentstate.metadata.metadata`). Each table found is rebuilt as this code
    knows it: times in any usual form become the stored form, senders their normal form, later columns are added. What
    is missing is created, and the schema is stamped. `dry_run` does all of that and rolls it back. Raises
    `CannotAdopt` naming what stands in the way, and `ForeignDatabase`.
    """
    with database.change_schema(keep=not dry_run) as connection:
        tables = state.our_tables(connection)
        if not tables:
            found = state.schema_revision(connection, database.name)  # raises for another program's database
            raise CannotAdopt(database.name, f"there is nothing to take over ({state.describe(found)})")
        if inspect(connection).has_table(state.VERSION_TABLE):
            versions = connection.exec_driver_sql(f"SELECT version_num FROM {state.VERSION_TABLE}").scalars().all()
            if versions:
                reason = f"it has a schema version already ({', '.join(versions)}), so there is nothing to adopt"
                raise CannotAdopt(database.name, reason)
        saved = _backup(database, connection, None) if backup and not dry_run else None
        try:
            steps, rows = take_over_tables(connection, metadata, database.name)
        except BaseException:
            if saved is not None:
                Path(saved).unlink()  # refused, so there is no change to go back from
            raise
        context = MigrationContext.configure(connection, opts=dict(MIGRATION_OPTIONS))
        context.stamp(script_directory(), state.HEAD)
    return Adoption((*steps, f"stamped as {state.describe(state.HEAD)}"), rows, state.HEAD, saved)


def guard_data(context: MigrationContext, *, force: bool) -> None:
    """Make a context refuse steps back that would lose data, as `downgrade` does; for migrations/env.py."""
    planned = context._migrations_fn

    def steps(heads: tuple[str, ...], of: MigrationContext) -> Iterable[RevisionStep]:
        found = list(planned(heads, of)) if planned is not None else []
        back = [step for step in found if isinstance(step, RevisionStep) and not step.is_upgrade]
        if back and context.connection is not None:
            _refuse_loss(context.connection, back, str(back[-1].revision.down_revision or "base"), force=force)
        return found

    context._migrations_fn = steps


def _run(
    connection: Connection,
    script: ScriptDirectory,
    steps: Callable[[tuple[str, ...]], Iterable[RevisionStep]],
    on_step: OnStep | None,
) -> tuple[str, ...]:
    ran: list[str] = []

    def applied(*, step: Any, **_: Any) -> None:
        ran.append(step.up_revision_id)
        if on_step is not None:
            on_step(step.up_revision_id)

    context = _context(script, connection=connection, opts={"on_version_apply": (applied,)}, steps=steps)
    context.run_migrations()
    return tuple(ran)


def _context(
    script: ScriptDirectory,
    *,
    opts: dict[str, Any],
    steps: Callable[[tuple[str, ...]], Iterable[RevisionStep]],
    connection: Connection | None = None,
    dialect_name: str | None = None,
) -> MigrationContext:
    """Return a context whose revisions work on it through their own `op`.

    Alembic usually puts the running context into module globals (`alembic.op`, `alembic.context`), which two threads,
    or a host with migrations of its own, would pull away from each other (MG-05). A script directory loads its
    revisions as modules of its own, so each run can be given its own `op` instead.
    """

    def bound(heads: tuple[str, ...], of: MigrationContext) -> Iterable[RevisionStep]:
        found = list(steps(heads))
        for step in found:
            setattr(step.revision.module, "op", Operations(of))  # noqa: B010  (a module's type knows no names)
        return found

    return MigrationContext.configure(
        connection=connection,
        dialect_name=dialect_name,
        opts={**MIGRATION_OPTIONS, **opts, "script": script, "fn": bound},
    )


def _steps_up(script: ScriptDirectory, target: str, start: str | None) -> Iterable[RevisionStep]:
    return script._upgrade_revs(target, cast(str, start))  # None is the base, which its annotation forgets


def _known(revision: str) -> str:
    if revision == "head":
        return state.HEAD
    if revision not in state.REVISIONS:
        raise InvalidValue("revision", f"{revision!r} is not known; known are {', '.join(state.REVISIONS)}")
    return revision


def _refuse_loss(connection: Connection, steps: Iterable[RevisionStep], target: str, *, force: bool) -> None:
    losses: dict[str, int] = {}
    for step in steps:
        for table, condition in step.revision.module.LOSES.items():
            rows = connection.exec_driver_sql(f"SELECT count(*) FROM {table} WHERE {condition}").scalar_one()
            losses[table] = max(losses.get(table, 0), rows)
    losses = {table: rows for table, rows in losses.items() if rows}
    if losses and not force:
        raise DowngradeLosesData(target, losses)


def _backup(database: Database, connection: Connection, revision: str | None) -> str | None:
    """Copy the database beside itself while its lock is held, so that the copy is what the change starts from."""
    if database.path is None:
        return None
    tables = state.our_tables(connection)
    if not any(connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() for table in tables):
        return None
    destination = dated(database.path, revision)
    write_backup(database.path, destination, database.settings)
    return destination
