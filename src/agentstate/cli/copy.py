"""`agentstate copy`: moving a whole database, from SQLite to PostgreSQL or back."""

from __future__ import annotations

import click

from agentstate.cli.output import json_option, print_json, say
from agentstate.cli.progress import Show, progress
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
    with Database.open(source, "ro") as old, Database.open(target) as new, progress("copying") as show:
        report = copy_database(old, new, metadata, on_progress=_step(show) if show else None)
    if as_json:
        print_json(report)
        return
    for name, table in report.tables.items():
        say(f"copied {name}: {table.rows} row{'' if table.rows == 1 else 's'}")
    for name in report.left_out:
        say(f"left out {name}, which is not agentstate's")
    say(f"{report.source} is now in {report.target}; counts and checksums are equal")


def _step(show: Show) -> OnProgress:
    def on_progress(step: CopyProgress) -> None:
        show(f"{step.doing} {step.table}", step.done, step.total)

    return on_progress
