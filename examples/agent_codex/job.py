"""Running one accepted job: the coder edits the repositories, the changes are stashed, a person is asked.

    AGENT_CODER... -- REQUEST        in the first repository; AGENT_REPOS names them all, AGENT_JOB_ID the job

Exit code 0 means done; what it prints becomes the commit message (nothing: the request is). The job's own queue file
notes how far it came, because a kill leaves edited files behind:

    (nothing)   the repositories must be clean; nothing has been touched
    editing     the coder is at work: what lies there after a kill is half an edit, put aside before it runs again
    edited      the coder is done: what lies there is the job's change, and the coder is not run again
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from agent_codex.queue import Message, storable
from agent_codex.repos import branch_of, go_back, head, put_aside, refuse_if_dirty, refuse_if_shared, stash_changes
from agent_codex.role import Failed, Refused, Role
from agent_codex.steps import CommandFailed, run_command, step
from agentstate import adapter
from agentstate.approvals.records import RepoChange
from agentstate.approvals.stash import find_stash_commit, marker_for
from agentstate.errors import StashError

Heads: TypeAlias = Mapping[str, tuple[str, str]]  # of each repository the branch and the commit it stood on

EDITING, EDITED = "editing", "edited"


class Undone(Refused):
    """The coder ran, and what it did is undone; the text says why, and where it was put aside."""


def carry_out(role: Role, job: Message) -> None:
    """Run the job and ask for its release; run again after a kill, it goes on where the killed run was."""
    # The file is the yes. A killed /annehmen may have left its row, and a job cannot wait for both of its decisions.
    adapter.delete_start_pending(job.id)
    step("start deleted")
    approval = adapter.load_pending_approval(job.id)
    if approval is None:
        try:
            job = edit(role, job)
        except Refused as error:
            adapter.save_start_pending(job.id, job.sender, job.requested_by, job.body)
            step("start waits again")
            outcome = "is undone" if isinstance(error, Undone) else "did not run"
            raise Refused(f"{error}\n{job.id} {outcome}; /annehmen {job.id} tries again.") from error
        job, changes = stash(role, job)
        if not changes:
            role.reply(job, f"{job.id} changed nothing; there is nothing to release.{asides_of(job)}")
            return
        adapter.save_pending_approval(job.id, job.sender, job.notes["commit_message"], changes)
        step("approval saved")
        approval = adapter.load_pending_approval(job.id)
    assert approval is not None  # saved above, and only this process deletes it
    places = "".join(f"\n  {repo.repo_dir}" for repo in approval.repos)
    role.reply(
        job,
        f"{job.id} is done: {title_of(approval.commit_message)}{places}\n"
        f"/freigeben {job.id} commits it, /verwerfen {job.id} drops it.{asides_of(job)}",
    )


def edit(role: Role, job: Message) -> Message:
    """Let the coder edit the repositories, once, and return the job with the stage `edited`.

    Raises `Refused` with the repositories as they were when that cannot be done.
    """
    if job.notes.get("stage") == EDITED:
        return job
    if job.notes.get("stage") == EDITING:
        job = undo(role, job)
    try:
        heads, stashed = look(role, job)
    except (Refused, StashError) as error:
        raise Refused(f"{error}{asides_of(job)}") from error
    if stashed:
        commit_message = job.body  # the coder ran, but the file with the notes was lost and put again by hand
    else:
        job = role.queue.note(job, stage=EDITING, heads=heads)
        step("editing")
        commit_message = run_coder(role, job)
    job = role.queue.note(job, stage=EDITED, heads=heads, commit_message=commit_message)
    step("edited")
    return job


def look(role: Role, job: Message) -> tuple[Heads, bool]:
    """Return where the repositories stand, and whether the job's changes are in their stashes already.

    Raises `Refused` when the coder cannot start in them.
    """
    repos = role.settings.repos
    if not repos or not role.settings.coder:
        raise Refused("The builder is not configured: AGENT_REPOS or AGENT_CODER is not set.")
    refuse_if_shared(repos)
    heads = {str(repo): head(repo) for repo in repos}
    for repo in repos:
        refuse_if_dirty(repo)
    return heads, any(find_stash_commit(repo, marker_for(job.id)) for repo in repos)


def run_coder(role: Role, job: Message) -> str:
    """Run the configured coder and return the commit message; raises `Undone` when its work is not to be kept."""
    repos, heads = role.settings.repos, job.notes["heads"]
    environment = {"AGENT_REPOS": os.pathsep.join(map(str, repos)), "AGENT_JOB_ID": job.id}
    try:
        said = run_command([*role.settings.coder, "--", job.body], cwd=repos[0], environment=environment)
        moved = elsewhere(heads)
        if not moved:
            for repo, (branch, commit) in heads.items():
                go_back(repo, branch, commit)
            return storable(said).strip() or job.body
        reason = f"The coder ran and changed branch: {'; '.join(moved)}."
    except CommandFailed as error:
        reason = f"The coder failed: {error}"
    except Refused as error:
        reason = f"The coder ran, but then {error}"
    job = undo(role, job)
    raise Undone(f"{reason}{asides_of(job)}")


def elsewhere(heads: Heads) -> list[str]:
    """Return a few words about each repository that is not on its branch any more: nobody chose the other one."""
    now = {repo: branch_of(repo) for repo in heads}
    return [
        f"{repo} is on {short(now[repo])}, not {short(was)}" for repo, (was, _) in heads.items() if now[repo] != was
    ]


def undo(role: Role, job: Message) -> Message:
    """Make the repositories as they were before the coder, keeping aside what it did.

    Raises `Failed` when git refuses, with all the others done; the job goes on from here later.
    """
    refused = []
    for repo, (branch, commit) in job.notes["heads"].items():
        try:
            own = go_back(repo, branch, commit)
            job = clear(role, job, repo, own)
        except Refused as error:
            refused.append(str(error))
    if refused:
        words = "\n".join(refused)
        raise Failed(
            f"The coder ran, and this stands in the way of undoing it:\n{words}{later(role, job)}{asides_of(job)}"
        )
    job = role.queue.note(job, stage=None)
    step("undone")
    return job


def clear(role: Role, job: Message, repo: str, own: Sequence[str] = ()) -> Message:
    """Make one repository clean; the reply will name the commit that keeps what lay there, and the coder's own."""
    aside = put_aside(repo)
    places = [f"'git stash apply {aside}'"] if aside else []
    if own:
        places.append(f"the coder's own commits: 'git log {' '.join(own)}'")
    if not places:
        return job
    return role.queue.note(job, asides=[*job.notes.get("asides", []), f"{repo}: {'; '.join(places)}"])


def stash(role: Role, job: Message) -> tuple[Message, list[RepoChange]]:
    """Stash the job's changes and return them; raises `Failed`, to go on from here later, when git refuses."""
    marker, changes = marker_for(job.id), []
    try:
        for repo in job.notes["heads"]:
            commit = find_stash_commit(repo, marker)
            if commit is None:
                commit = stash_changes(repo, marker, title_of(job.notes["commit_message"]))
            else:  # a killed run made it; if git was killed with it, the change lies in the files as well
                job = clear(role, job, repo)
            step("stashed")
            if commit is not None:
                changes.append(RepoChange(repo, commit))
    except (Refused, StashError) as error:
        raise Failed(f"{error}\n{job.id} is edited but not stashed.{later(role, job)}") from error
    return job, changes


def later(role: Role, job: Message) -> str:
    """Return what the reply says about how a failed job goes on."""
    return f"\nPut that right, then move {job.id}'s file from {role.queue.failed} back to {role.queue.inbox}."


def asides_of(job: Message) -> str:
    """Return what the reply says about the coder's work that was put aside."""
    asides = job.notes.get("asides")
    return "\nUndone work of the coder was put aside; this brings it back:\n  " + "\n  ".join(asides) if asides else ""


def short(branch: str) -> str:
    """Return a branch's name as people say it."""
    return branch.removeprefix("refs/heads/") or "no branch"


def title_of(text: str) -> str:
    """Return the first line of a text, cut to what fits into a list."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 72 else line[:71] + "…"
