"""`agentstate backup`, `verify` and `restore`: copies of the database, and the way back."""

from __future__ import annotations

import os

import click

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, print_fields, print_json, say, target
from agentstate.cli.progress import Show, progress
from agentstate.db import state, targets
from agentstate.db.backup import OnProgress, back_up
from agentstate.db.database import Database
from agentstate.db.health.findings import size as size_text
from agentstate.db.restore import Restored
from agentstate.db.restore import restore as restore_file
from agentstate.db.verify import Verification, verify_file
from agentstate.errors import ServerDatabase
from agentstate.metadata import metadata
from agentstate.settings import read_settings

_NEXT = {
    "at head": "",
    "behind": f"older than this agentstate's {state.describe(state.HEAD)}: once restored, run 'agentstate upgrade'",
    "ahead": f"newer than this agentstate's {state.describe(state.HEAD)}: use it with the agentstate that wrote it",
    "unversioned": "no schema version: once restored, run 'agentstate adopt'",
}
_SEALS = {
    "intact": "every byte is as it was when the backup was made",
    "written since": "a program has written to it since it was made, so only its structure is checked",
    "none": "none: not made by 'agentstate backup', so only its structure is checked",
}


@click.command(short_help="Copy the database to a file, while others use it.")
@click.argument("destination", metavar="DEST")
@click.option("--verify", "verified", is_flag=True, help="Read the finished backup again, as 'agentstate verify' does.")
@database_option
@json_option
def backup(destination: str, verified: bool, database: str | None, as_json: bool) -> int:
    """Copy the database to the new file DEST, or to a file of a dated name in the directory DEST.

    Others may go on writing: the copy is the database as it was at one moment, with everything committed before the
    call. It is checked, and has its name only when it is whole. That one file is the backup, and nothing beside it.
    """
    if not destination.strip():
        raise click.UsageError("DEST is empty: name a file or a directory")
    named = target(database)
    if targets.is_server(named):
        from agentstate.db import postgresql  # only whoever has a server loads what knows it

        command = postgresql.dump_command(named, os.path.abspath(destination))
        raise ServerDatabase(postgresql.without_password(named), command)
    with Database.open(named, "ro") as opened, progress("copying") as show:
        made = back_up(opened, destination, on_progress=_pages(show))
    if not as_json:
        schema = state.describe(made.revision) if made.revision else "no schema version"
        say(f"{made.database} is now in {made.file}: {schema}, {size_text(made.size)}")
    found = None
    if verified:
        with progress("verifying"):
            found = verify_file(made.file, metadata, opened.settings)
    if as_json:
        print_json({"backup": made, "verification": found})
    elif found is not None:
        say(f"verified: it is whole, with {_rows(found)}")
    return 0


@click.command(short_help="Check whether a backup can be restored.")
@click.argument("file", metavar="FILE")
@json_option
def verify(file: str, as_json: bool) -> int:
    """Read the whole of FILE, a backup or another copy of a database, and say what it holds. It is not changed.

    \b
    Exit code: 0 it can be restored, of whatever revision it is · 5 no schema version, or another program's ·
    6 damaged, or no database · 7 missing or empty · 9 it cannot be read
    """
    with progress("verifying"):
        found = verify_file(file, metadata, read_settings())
    if as_json:
        print_json(found)
    else:
        known = state.describe(found.revision) if found.revision else ""
        schema = ", ".join(part for part in (known, _NEXT[found.schema] or found.schema) if part)
        print_fields(
            [
                ("file", found.file),
                ("state", "whole: structure, references and schema are good"),
                ("seal", _SEALS[found.seal]),
                ("schema", schema),
                ("size", size_text(found.size)),
                *((f"rows in {table}", count) for table, count in found.rows.items()),
            ]
        )
    return exits.UNVERSIONED if found.schema == "unversioned" else 0


@click.command(short_help="Put a backup in the place of the database.")
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Even while others have the database open: they go on with the former one.")
@database_option
@json_option
def restore(file: str, force: bool, database: str | None, as_json: bool) -> int:
    """Verify FILE, and put a copy of it in the place of the database, whatever state that is in.

    The former database is kept beside it under a dated name, with everything that belongs to it. Stop its users first;
    while any has it open, this is refused. A damaged FILE is refused, with --force too.
    """
    named = target(database)
    if targets.is_server(named):
        from agentstate.db import postgresql

        command = postgresql.restore_command(named, os.path.abspath(file))
        raise ServerDatabase(postgresql.without_password(named), command)
    with progress("verifying and copying") as show:
        done = restore_file(file, named, metadata, read_settings(), force=force, on_progress=_pages(show))
    if as_json:
        print_json(done)
    else:
        _tell(done)
    return 0


def _tell(done: Restored) -> None:
    found = done.backup
    schema = state.describe(found.revision) if found.revision else "no schema version"
    say(f"{done.database} is now what {found.file} holds: {schema}, {_rows(found)}")
    if done.kept:
        say(f"what was there is kept as {', '.join(done.kept)}")
    if done.open_in:
        say(f"still open in {', '.join(done.open_in)}: restart that, since what it writes may go to the kept file")
    if _NEXT[found.schema]:
        say(f"the schema: {_NEXT[found.schema].replace('once restored, ', '')}")


def _rows(found: Verification) -> str:
    rows, tables = sum(found.rows.values()), len(found.rows)
    return f"{rows} row{'' if rows == 1 else 's'} in {tables} table{'' if tables == 1 else 's'}"


def _pages(show: Show | None) -> OnProgress | None:
    if show is None:
        return None
    return lambda done, total: show("copying pages", done, total)
