"""`agentstate upgrade`, `downgrade` and `adopt`: changing the schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from agentstate.cli.output import database_option, json_option, print_json, say, target
from agentstate.db import state
from agentstate.db.database import Database
from agentstate.db.files import Mode
from agentstate.db.schema import OnStep, SchemaChange, upgrade_script
from agentstate.db.schema import adopt as adopt_database
from agentstate.db.schema import downgrade as downgrade_schema
from agentstate.db.schema import upgrade as upgrade_schema
from agentstate.errors import DatabaseEmpty, DatabaseMissing
from agentstate.metadata import metadata


@click.command(short_help="Bring the schema up to date, creating the database if needed.")
@click.option("--to", "to", metavar="REV", default="head", show_default=True, help="Stop at this revision.")
@click.option("--sql", is_flag=True, help="Print the SQL for review instead of running it.")
@click.option(
    "--backup/--no-backup", default=True, show_default=True, help="Copy a filled database beside itself first."
)
@database_option
@json_option
def upgrade(to: str, sql: bool, backup: bool, database: str | None, as_json: bool) -> None:
    """Bring the database's schema up to date, creating the database if there is none.

    All steps happen or none. Several processes may upgrade at once, and nothing to do is no error, so this can run
    before every start.
    """
    if sql and as_json:
        raise click.UsageError("--sql prints SQL, not JSON: leave one of them out")
    if sql:
        revision, dialect = _current_revision(database)
        click.echo(upgrade_script(revision, to, dialect=dialect), nl=False)
        return
    with _open(database, "rwc") as opened, _progress("upgrading") as on_step:
        change = upgrade_schema(opened, to, backup=backup, on_step=on_step)
    _report(opened, change, as_json=as_json)


@click.command(short_help="Take the schema back to an earlier revision.")
@click.argument("revision", metavar="REV")
@click.option("--force", is_flag=True, help="Go back even if rows are lost.")
@click.option(
    "--backup/--no-backup", default=True, show_default=True, help="Copy a filled database beside itself first."
)
@database_option
@json_option
def downgrade(revision: str, force: bool, backup: bool, database: str | None, as_json: bool) -> None:
    """Take the schema back to REV (a revision number, or 'base' for none).

    Refused with the number of rows when data would be lost, unless --force.
    """
    with _open(database, "rw") as opened, _progress("downgrading") as on_step:
        change = downgrade_schema(opened, revision, force=force, backup=backup, on_step=on_step)
    _report(opened, change, as_json=as_json)


@click.command(short_help="Take over a database that has no schema version.")
@click.option("--dry-run", is_flag=True, help="Report every step and change nothing.")
@click.option("--backup/--no-backup", default=True, show_default=True, help="Copy the database beside itself first.")
@database_option
@json_option
def adopt(dry_run: bool, backup: bool, database: str | None, as_json: bool) -> None:
    """Take over a database that has agentstate's tables but no schema version.

    For a database made by hand or by an earlier program: every row is kept, times in any usual form become the stored
    form, and what is missing is added. What cannot be taken over with every row is refused and left as it was.
    """
    with _open(database, "rw") as opened:
        adoption = adopt_database(opened, metadata, dry_run=dry_run, backup=backup)
    if as_json:
        print_json({"database": opened.name, "dry_run": dry_run, "adoption": adoption})
        return
    if adoption.backup:
        say(f"backup: {adoption.backup}")
    for step in adoption.steps:
        say(step)
    if dry_run:
        click.echo("dry run: nothing was changed")


def _open(named: str | None, mode: Mode) -> Database:
    return Database.open(target(named), mode)


def _current_revision(named: str | None) -> tuple[str | None, str]:
    try:
        with _open(named, "ro") as database:
            revision = database.revision()
            if revision is not None and revision not in state.REVISIONS:
                state.require_head(revision, database.name)
            return revision, database.backend
    except (DatabaseMissing, DatabaseEmpty) as error:
        return None, "postgresql" if "://" in error.database else "sqlite"


def _report(database: Database, change: SchemaChange, *, as_json: bool) -> None:
    if as_json:
        print_json({"database": database.name, "change": change})
    elif not change.ran:
        say(f"{database.name}: schema is at {state.describe(change.reached)}, nothing to do")
    else:
        if change.backup:
            say(f"backup: {change.backup}")
        for revision in change.ran:
            say(f"ran {state.describe(revision)}")
        say(f"{database.name}: from {state.describe(change.found)} to {state.describe(change.reached)}")


@contextmanager
def _progress(verb: str) -> Iterator[OnStep | None]:
    """Show on a terminal which revision has just been applied; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{verb} …") as status:
        yield lambda revision: status.update(f"{verb} … {state.describe(revision)} done")
