"""Commands that bring conversations in, write them out, and delete those that nobody uses: import, export, prune."""

from __future__ import annotations

import os
import re
from datetime import timedelta

import click

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, plain, print_json, print_json_text, say, target
from agentstate.cli.progress import progress
from agentstate.conversations import views
from agentstate.conversations.records import ImportEntry, ImportReport, PruneReport
from agentstate.db.database import Database
from agentstate.errors import NotASessionStore

# What they load is loaded when they run: `agentstate conversations` alone needs no importer.

_COUNTS = ("imported", "already", "skipped", "conflicts", "failed", "not_renamed", "complete")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _age(_: click.Context, option: click.Parameter, value: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,9})([dhms])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no length of time: write 7d, 12h, 30m or 90s", param=option)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.command("prune", short_help="Delete conversations that nobody has used for a while.")
@click.option("--older-than", metavar="AGE", callback=_age, default="7d", show_default=True, help="Unused for longer.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
@click.option("--include-imported", is_flag=True, help="Imported ones that were not used since, too.")
@database_option
@json_option
def prune_command(
    older_than: timedelta, dry_run: bool, include_imported: bool, database: str | None, as_json: bool
) -> None:
    """Delete trees of conversations in which nothing was used for that long and nothing is at work.

    A tree, that is a conversation and all that was forked from it, goes as a whole or not at all.
    """
    from agentstate.conversations.prune import prune

    with Database.open(target(database), "ro" if dry_run else "rw") as opened, progress("deleting") as show:
        report = prune(
            opened,
            older_than=older_than,
            dry_run=dry_run,
            include_imported=include_imported,
            on_progress=(lambda done, total: show("deleting", done, total)) if show else None,
        )
    if as_json:
        print_json(report)
    else:
        _print_pruned(report)


def _print_pruned(report: PruneReport) -> None:
    would = "would delete" if report.dry_run else "deleted"
    cutoff = plain(report.cutoff)
    say(f"{would} {report.deleted} of {report.candidates} unused since {cutoff}, with {report.deleted_turns} turns")
    for reason, count in report.kept.items():
        say(f"kept {count}: {reason}")
    for outcome, roots in report.roots.items():
        for root in roots:
            say(f"  {outcome}: {root}")


@click.command("import", short_help="Bring in session files, or the original program's database.")
@click.argument("path", metavar="PATH")
@click.option("--dry-run", is_flag=True, help="Say what would come in, and change nothing.")
@click.option("--no-rename", is_flag=True, help="Leave the names of the files as they are.")
@database_option
@json_option
def import_command(path: str, dry_run: bool, no_rename: bool, database: str | None, as_json: bool) -> int:
    """Bring in the session files (*.json) of the directory PATH, or the conversations of the database file PATH.

    What is stored already is recognised, and nothing stored is replaced, so that it can be run again at any time. Files
    that came in are renamed to NAME.migrated. Exit 8 if something could not be brought in.
    """
    with Database.open(target(database), "ro" if dry_run else "rw") as opened, progress("importing") as show:
        seen = 0

        def on_progress(entry: ImportEntry) -> None:
            nonlocal seen
            seen += 1
            if show is not None:
                show(f"importing {views.one_line(entry.source)}", seen, None)

        if os.path.isdir(path):
            from agentstate.conversations.importer import import_sessions

            report = import_sessions(opened, path, dry_run=dry_run, rename=not no_rename, on_progress=on_progress)
        elif os.path.lexists(path):
            from agentstate.conversations.importer_db import import_session_database

            report = import_session_database(opened, path, dry_run=dry_run, on_progress=on_progress)
        else:
            raise NotASessionStore(path, "there is neither a directory nor a file")
    if as_json:
        print_json({name: getattr(report, name) for name in ("dry_run", *_COUNTS, "entries")})
    else:
        _print_imported(report)
    return 0 if report.complete else exits.PARTLY


def _print_imported(report: ImportReport) -> None:
    for entry in report.entries:
        about = "; ".join(part for part in (entry.reason, *entry.flags) if part)
        renamed = "; not renamed" if entry.renamed is False else ""
        key = "" if entry.key is None else f" ({entry.key}, {entry.turns} turns, {entry.messages} messages)"
        say(f"{entry.outcome} {entry.source}{key}{': ' if about else ''}{about}{renamed}")
    counts = ", ".join(f"{getattr(report, name)} {name.replace('_', ' ')}" for name in _COUNTS[:-1])
    say(f"{'would be: ' if report.dry_run else ''}{counts}")


@click.command("export", short_help="Write a conversation out as JSON.")
@click.argument("key")
@click.option("--output", metavar="PATH", help="A file, or a directory, in which it is named by the key.")
@database_option
@json_option
def export_command(key: str, output: str | None, database: str | None, as_json: bool) -> None:
    """Write the conversation KEY, with all that it sees, as JSON that 'import' understands; on stdout by default.

    KEY may be the beginning of a key, if only one key begins so. A file is readable by its owner alone.
    """
    from agentstate.conversations.export import export_conversation, export_text, write_export

    with Database.open(target(database), "ro") as opened, opened.read() as work:
        key = views.resolve_key(work, key)
        document = export_conversation(work, key)
    if output is None:
        print_json_text(export_text(document).removesuffix("\n"))
        return
    path = str(write_export(document, output))
    if as_json:
        print_json({"key": key, "path": path})
    else:
        say(f"exported {key} to {path}")


COMMANDS = (prune_command, import_command, export_command)
