"""`agentstate maintain`: deleting what is old, and giving its space back to the disk. A timer runs it."""

from __future__ import annotations

from dataclasses import replace

import click

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, plain, print_json, say, target
from agentstate.cli.progress import progress
from agentstate.db.database import Database
from agentstate.db.health.findings import size as size_text
from agentstate.db.space import SpaceReport
from agentstate.errors import AgentStateError
from agentstate.retention import POLICIES, PolicyReport, SweepReport, sweep

_REASONS = {
    "unknown_time": "their last use cannot be read",
    "protected": "a request or a release that waits for a yes may need them",
    "status": "something in their tree is at work",
    "in_use": "something in their tree was used since",
    "imported": "imported and not used since; 'agentstate conversations prune --include-imported' deletes them",
    "changed": "used or deleted meanwhile",
    "not reached": "not reached; the next run goes on",
}


@click.command(short_help="Delete what is old, and give its space back.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and change nothing.")
@click.option("--full", is_flag=True, help="Rewrite the whole file without what is free in it; writers wait meanwhile.")
@click.option("--max-seconds", metavar="N", type=click.FloatRange(0), help="Begin nothing new after so many seconds.")
@database_option
@json_option
def maintain(dry_run: bool, full: bool, max_seconds: float | None, database: str | None, as_json: bool) -> int:
    """Delete rows that are older than they are kept for, and give their space back to the disk.

    Works in small steps, so that others go on meanwhile, and may be run at any time and any number of times. How long
    rows are kept: AGENT_KEEP_CONVERSATIONS, such as 30d, 12h or never; without it 7d.

    Exit 8 if something failed or was left for the next run.
    """
    if dry_run and full:
        raise click.UsageError("--full rewrites the file, --dry-run changes nothing: leave one of them out")
    with Database.open(target(database), "ro" if dry_run else "rw") as opened:
        with progress("looking") as show:
            report = sweep(opened, dry_run=dry_run, max_seconds=max_seconds, on_progress=show)
        if not as_json:
            _print_policies(report)
        if full:
            with progress("rewriting the file"):
                try:
                    report = _with_full(report, opened.reclaim(full=True))
                except AgentStateError as error:
                    if as_json:  # what the sweep did is done, and told all the same
                        print_json(replace(report, finished=False, error=str(error)))
                    raise
    if as_json:
        print_json(report)
    else:
        _print_space(report)
    return 0 if report.finished else exits.PARTLY


def _with_full(report: SweepReport, space: SpaceReport) -> SweepReport:
    """Return the report with what the file had before the sweep and has after it was rewritten."""
    if report.space is not None:
        first = report.space
        space = replace(
            space,
            free_pages_before=first.free_pages_before,
            file_before=first.file_before,
            wal_before=first.wal_before,
        )
    return replace(report, space=space)


def _print_policies(report: SweepReport) -> None:
    found = {policy.policy: policy for policy in report.policies}
    for policy in POLICIES:
        if policy.name in found:
            _print_policy(found[policy.name], dry_run=report.dry_run)
        else:
            say(f"{policy.name}: kept for ever, as AGENT_KEEP_{policy.name.upper()} says")
    if report.dry_run:
        say("dry run: nothing was changed")


def _print_policy(report: PolicyReport, *, dry_run: bool) -> None:
    cutoff = plain(report.cutoff)
    if report.candidates:
        would = "would delete" if dry_run else "deleted"
        say(f"{report.policy}: {would} {report.deleted} of {report.candidates} older than {cutoff}")
    elif report.error is None:
        say(f"{report.policy}: none is older than {cutoff}")
    for reason, count in report.kept.items():
        say(f"{report.policy}: kept {count}: {_REASONS.get(reason, reason)}")
    if report.error is not None:
        say(f"agentstate: {report.policy}: {report.error}", err=True)


def _print_space(report: SweepReport) -> None:
    space = report.space
    if space is not None and space.auto_vacuum is not None:
        sizes = (("file", space.file_before, space.file_after), ("write-ahead log", space.wal_before, space.wal_after))
        for name, before, after in sizes:
            if before or after:
                was = f"was {size_text(before)}" if before != after else "as before"
                say(f"{name}: {size_text(after)}, {was}")
    if space is not None and space.hint:
        say(f"space: {space.hint}")
    if report.error is not None:
        say(f"agentstate: no space was given back: {report.error}", err=True)
