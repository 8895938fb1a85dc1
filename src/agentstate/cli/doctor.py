"""`agentstate doctor`: what is wrong with the database, how bad it is, and what to do."""

from __future__ import annotations

import sys

import click

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, print_json, print_rows, say
from agentstate.doctor import Report, examine


@click.command(short_help="Find what is wrong, and say what to do.")
@database_option
@json_option
def doctor(database: str | None, as_json: bool) -> int:
    """Look at the database and everything around it, and say what is wrong, how bad it is, and what to do.

    Changes nothing. An error is damaged, exposed or does not work now; a warning will be, or is work that stands still;
    a note could be better.

    \b
    Exit code: 0 nothing found · 1 something found · 2 wrong settings · 5 another program's database ·
    6 corrupt, or no database · 7 missing or empty · 9 busy or out of reach
    """
    report = examine(database)
    if as_json:
        print_json({"database": report.database or None, "findings": report.findings, "checked": report.checked})
    elif sys.stdout.isatty():
        _tell(report)
    else:
        rows = [(found.severity, found.check, found.what, found.do) for found in report.findings]
        print_rows(("Severity", "Check", "What", "What to do"), rows, empty="")
    if report.error is not None:
        return exits.exit_code(report.error)
    return exits.NO if report.findings else 0


def _tell(report: Report) -> None:
    for found in report.findings:
        say(f"{found.severity}: {found.what}")
        say(f"    {found.do}")
    if not report.findings:
        say(f"{report.database}: nothing found in {len(report.checked)} checks")
