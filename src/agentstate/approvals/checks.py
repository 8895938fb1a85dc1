"""Decisions that stand still, and stashes that are gone, as findings of a look at the database."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from agentstate.approvals.records import UnfinishedRecord
from agentstate.approvals.repositories import PendingApprovals
from agentstate.approvals.stash import find_stash_by_commit, find_stash_commit, marker_for
from agentstate.approvals.workflows import unfinished
from agentstate.db.health.findings import Finding
from agentstate.db.uow import UnitOfWork
from agentstate.errors import AgentStateError, AmbiguousStash

PATIENCE = timedelta(minutes=10)
"""A decision that was begun later is taken to be under way."""


class WaitingStash(NamedTuple):
    """A change that waits in a repository's stash; `commit` None: it is known by the job's marker only."""

    job_id: str
    repo_dir: str
    commit: str | None


def unfinished_decisions(work: UnitOfWork) -> list[Finding]:
    """Return the decisions that were begun and not finished, unless they were begun just now."""
    return [
        Finding(
            "approvals",
            "warning",
            _told(record, work),
            "give the same command again, which goes on where it stopped; 'agentstate approvals unfinished' lists them",
        )
        for record in unfinished(work)
        if record.claimed_at is None or work.now - record.claimed_at > PATIENCE
    ]


def waiting_stashes(work: UnitOfWork) -> list[WaitingStash]:
    """Return the changes that are not released yet, which must still be there, ordered by job id and path."""
    found = PendingApprovals(work)
    jobs = {approval.job_id for approval in found.list_oldest_first()}
    return [
        WaitingStash(repo.job_id, repo.repo_dir, repo.stash_commit)
        for repo in found.all_repos()
        if repo.done_at is None and repo.job_id in jobs
    ]


def lost_stashes(stashes: Sequence[WaitingStash]) -> list[Finding]:
    """Return the stashes that are gone, or cannot be told; asks git, so outside any transaction."""
    if not stashes:
        return []
    if shutil.which("git") is None:
        do = "put git on the PATH, or ask on the machine that holds the repositories"
        return [Finding("stashes", "note", "git is not installed, so that stashes were not looked for", do)]
    return list(_lost(stashes))


def _lost(stashes: Iterable[WaitingStash]) -> Iterable[Finding]:
    for stash in stashes:
        try:
            found = _find(stash)
        except FileNotFoundError:
            what = f"the repository {stash.repo_dir} of {stash.job_id} is not there"
            do = f"ask on the machine that holds it; if it is gone for good, discard the job: {_drop(stash)}"
            yield Finding("stashes", "error", what, do)
        except AmbiguousStash as error:
            what, _, do = str(error).partition("; ")
            yield Finding("stashes", "error", f"{stash.job_id}: {what}", do)
        except (AgentStateError, OSError) as error:
            what = f"{stash.job_id}: whether its stash is in {stash.repo_dir} cannot be told ({error})"
            yield Finding("stashes", "warning", what, "ask as the user who owns the repository")
        else:
            if found is None:
                yield _gone(stash)


def _find(stash: WaitingStash) -> str | None:
    os.stat(stash.repo_dir)
    if stash.commit is not None:
        return find_stash_by_commit(stash.repo_dir, stash.commit)
    return find_stash_commit(stash.repo_dir, marker_for(stash.job_id))


def _gone(stash: WaitingStash) -> Finding:
    what = f"the change of {stash.job_id} is no longer in the stash of {stash.repo_dir}"
    if stash.commit is None:
        what = f"no stash in {stash.repo_dir} has the marker of {stash.job_id}"
        do = f"look at 'git stash list' there; if the change is gone, discard the job: {_drop(stash)}"
        return Finding("stashes", "warning", what, do)
    back = f"git -C {shlex.quote(stash.repo_dir)} stash store -m {shlex.quote(marker_for(stash.job_id))} {stash.commit}"
    return Finding("stashes", "error", what, f"{back} (if git still has it), or discard the job: {_drop(stash)}")


def _drop(stash: WaitingStash) -> str:
    return f"agentstate approvals drop {shlex.quote(stash.job_id)}"


def _told(record: UnfinishedRecord, work: UnitOfWork) -> str:
    what = "start" if record.kind == "start" else "release"
    done = f", {record.repos_done} of {record.repos_total} repositories done" if record.repos_total else ""
    if record.claimed_at is None:
        return f"the {what} of {record.job_id} was begun, and nobody has it in hand{done}"
    minutes = int((work.now - record.claimed_at) / timedelta(minutes=1))
    age = (
        f"{minutes} minutes"
        if minutes < 120
        else f"{minutes // 60} hours"
        if minutes < 2880
        else f"{minutes // 1440} days"
    )
    return f"the {what} of {record.job_id} was begun {age} ago by {record.claimed_by!r} and is not finished{done}"
