"""`agentstate copy`: moving a whole database, from SQLite to PostgreSQL or back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from agentstate.cli.output import json_option, print_json, say
from agentstate.db.copy import CopyProgress, OnProgress, copy_database
from agentstate.db.database import Database
from agentstate.metadata import metadata


@click.command(short_help="Copy a whole database to another file or server.")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy every row of SOURCE into TARGET, each a path or a URL: from SQLite to PostgreSQL, or back.

    Both must be at the newest schema, and TARGET without rows: 'agentstate upgrade --database TARGET' makes it so. The
    copy is SOURCE as it is now, whatever is written to it meanwhile; counts and checksums are compared before it is
    kept. All rows are copied or none.
    """
    with Database.open(source, "ro") as old, Database.open(target) as new, _progress() as on_progress:
        report = copy_database(old, new, metadata, on_progress=on_progress)
    if as_json:
        print_json(report)
        return
    for name, table in report.tables.items():
        say(f"copied {name}: {table.rows} row{'' if table.rows == 1 else 's'}")
    for name in report.left_out:
        say(f"left out {name}, which is not agentstate's")
    say(f"{report.source} is now in {report.target}; counts and checksums are equal")


@contextmanager
def _progress() -> Iterator[OnProgress | None]:
    """Show on a terminal how far the copy is; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=None)

        def show(step: CopyProgress) -> None:
            bar.update(task, description=f"{step.doing} {step.table}", completed=step.done, total=step.total)

        yield show
