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

from agent_codex.queue import Message
from agent_codex.repos import go_back, head, put_aside, refuse_if_dirty, stash_changes
from agent_codex.role import Failed, Refused, Role
from agent_codex.steps import CommandFailed, run_command, step
from agentstate import adapter
from agentstate.approvals.records import RepoChange
from agentstate.approvals.stash import find_stash_commit, marker_for
from agentstate.errors import StashError
from agentstate.identity import UNSTORABLE

EDITING, EDITED = "editing", "edited"


def carry_out(role: Role, job: Message) -> None:
    """Run the job and ask for its release; run again after a kill, it goes on where the killed run was."""
    # The file is the yes. A killed /annehmen may have left its row, and a job cannot wait for both of its decisions.
    adapter.delete_start_pending(job.id)
    step("start deleted")
    approval = adapter.load_pending_approval(job.id)
    if approval is None:
        try:
            job = edit(role, job)
        except (Refused, StashError) as error:
            adapter.save_start_pending(job.id, job.sender, job.requested_by, job.body)
            step("start waits again")
            raise Refused(f"{error}\n{job.id} did not run; /annehmen {job.id} tries again.") from error
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
    repos, coder = role.settings.repos, role.settings.coder
    if job.notes.get("stage") == EDITED:
        return job
    if job.notes.get("stage") == EDITING:
        job = undo(role, job)
    if not repos or not coder:
        raise Refused("The builder is not configured: AGENT_REPOS or AGENT_CODER is not set.")
    heads = {str(repo): head(repo) for repo in repos}
    for repo in repos:
        refuse_if_dirty(repo)
    if any(find_stash_commit(repo, marker_for(job.id)) for repo in repos):
        commit_message = job.body  # the coder ran, but the file with the notes was lost and put again by hand
    else:
        job = role.queue.note(job, stage=EDITING, heads=heads)
        step("editing")
        commit_message = run_coder(role, job)
    job = role.queue.note(job, stage=EDITED, heads=heads, commit_message=commit_message)
    step("edited")
    return job


def run_coder(role: Role, job: Message) -> str:
    """Run the configured coder and return the commit message; raises `Refused` with its edits undone if it fails."""
    repos = role.settings.repos
    environment = {"AGENT_REPOS": os.pathsep.join(map(str, repos)), "AGENT_JOB_ID": job.id}
    try:
        said = run_command([*role.settings.coder, "--", job.body], cwd=repos[0], environment=environment)
        for repo, (branch, commit) in job.notes["heads"].items():
            go_back(repo, branch, commit)
    except CommandFailed as error:
        job = undo(role, job)
        raise Refused(f"The coder failed: {error}{asides_of(job)}") from error
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", said).strip() or job.body


def undo(role: Role, job: Message) -> Message:
    """Make the repositories as they were before the coder."""
    for repo, (branch, commit) in job.notes["heads"].items():
        go_back(repo, branch, commit)
        job = clear(role, job, repo)
    job = role.queue.note(job, stage=None)
    step("undone")
    return job


def clear(role: Role, job: Message, repo: str) -> Message:
    """Make one repository clean, keeping what lay there as a commit that the reply will name."""
    aside = put_aside(repo)
    if aside is None:
        return job
    return role.queue.note(job, asides=[*job.notes.get("asides", []), f"{repo}: 'git stash apply {aside}'"])


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
        raise Failed(
            f"{error}\n{job.id} is edited but not stashed. Put that right, then move its file from "
            f"{role.queue.failed} back to {role.queue.inbox}."
        ) from error
    return job, changes


def asides_of(job: Message) -> str:
    """Return what the reply says about interrupted edits that were put aside."""
    asides = job.notes.get("asides")
    return "\nAn interrupted edit was put aside; this brings it back:\n  " + "\n  ".join(asides) if asides else ""


def title_of(text: str) -> str:
    """Return the first line of a text, cut to what fits into a list."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 72 else line[:71] + "…"
