"""`agentstate approvals`: the jobs that wait for a person's yes."""

from __future__ import annotations

import click

from agentstate.approvals import views, workflows
from agentstate.approvals.records import PendingApprovalRecord, StartPendingRecord
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.cli import exits
from agentstate.cli.output import (
    WithDefault,
    database_option,
    json_option,
    print_fields,
    print_json,
    print_rows,
    say,
    target,
)
from agentstate.db.database import Database


@click.group(cls=WithDefault)
def approvals() -> None:
    """List the jobs that wait for a person's yes, or show or drop one."""


@approvals.command("list", short_help="List what waits (the default).")
@database_option
@json_option
def list_cases(database: str | None, as_json: bool) -> None:
    """List what waits: requests for their start, finished jobs for their release. Oldest first."""
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        cases = views.open_cases(work)
    if as_json:
        print_json(cases)
        return
    rows = [
        (case.job_id, case.waits_for, case.requested_by, case.created_at, _progress(case), case.summary)
        for case in cases
    ]
    print_rows(("Job", "Waits for", "Requested by", "Since", "State", "What"), rows, empty="nothing waits for a yes")


@approvals.command("show", short_help="Show one job with all that is known of it.")
@click.argument("job")
@database_option
@json_option
def show_case(job: str, database: str | None, as_json: bool) -> int:
    """Show one job with everything that is known of it. Exit 1 if it does not wait for anything."""
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        found = workflows.load_pending_approval(work, job) or workflows.load_start_pending(work, job)
    if found is None:
        return _nothing_waits(job)
    if as_json:
        kind = "release" if isinstance(found, PendingApprovalRecord) else "start"
        print_json({"waits_for": kind, "record": found})
    else:
        print_fields(_fields(found))
    return 0


@approvals.command("unfinished", short_help="List decisions begun and not finished.")
@database_option
@json_option
def list_unfinished(database: str | None, as_json: bool) -> None:
    """List decisions that were begun and not finished, as a killed process leaves them.

    Nothing is changed: give the same chat command again to finish one.
    """
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        found = workflows.unfinished(work)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.job_id,
            row.kind,
            row.claimed_by,
            row.claimed_at,
            f"{row.repos_done} of {row.repos_total}" if row.repos_total else "-",
        )
        for row in found
    ]
    print_rows(("Job", "Decision", "Claimed by", "Since", "Repositories done"), rows, empty="nothing is unfinished")


@approvals.command("drop", short_help="Delete a job's record, and nothing else.")
@click.argument("job")
@database_option
def drop_case(job: str, database: str | None) -> int:
    """Delete the record of JOB without releasing or discarding anything; its stashes stay. Exit 1 if there is none."""
    with Database.open(target(database)) as opened, opened.write() as work:
        found = workflows.load_pending_approval(work, job)
        if found is not None:
            PendingApprovals(work).delete(job)
        elif not StartsPending(work).delete(job):
            return _nothing_waits(job)
    say(f"dropped the record of {job}")
    for repo in found.repos if found is not None else ():
        if repo.done_at is None:
            say(f"its stash in {repo.repo_dir} is still there: {repo.stash_commit or 'see git stash list'}")
    return 0


def _nothing_waits(job: str) -> int:
    click.echo(
        f"agentstate: no job {job!r} waits for a start or a release; 'agentstate approvals' lists them", err=True
    )
    return exits.NO


def _progress(case: views.OpenCase) -> str:
    done = f"{case.repos_done} of {case.repos_total} released" if case.repos_done else ""
    claim = f"being decided: {case.claimed_by}" if case.claimed_at is not None else ""
    return ", ".join(part for part in (claim, done) if part) or "open"


def _fields(record: PendingApprovalRecord | StartPendingRecord) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("job", record.job_id),
        ("waits for", "release" if isinstance(record, PendingApprovalRecord) else "start"),
        ("requested by", record.requested_by),
        ("since", record.created_at),
        ("claimed by", record.claimed_by),
        ("claimed at", record.claimed_at),
    ]
    if isinstance(record, StartPendingRecord):
        return [*pairs, ("sender", record.sender), ("request", record.body)]
    pairs.append(("commit message", record.commit_message))
    for repo in record.repos:
        state = (
            f"released as {repo.commit_sha}" if repo.done_at else f"stash {repo.stash_commit or 'found by its marker'}"
        )
        pairs.append(("repository", f"{repo.repo_dir}  {state}"))
    if not record.repos:
        pairs.append(("repository", "none: nothing was stashed"))
    return pairs
