"""Releasing and discarding the changes of one job, repository by repository, so that a kill anywhere is harmless.

A release applies the job's stash, commits the result, notes the commit in agent.db and drops the stash. Two traces
tell a later run how far a killed one came:

- the file `agentstate-release` in the repository's git directory, written before the stash is applied and removed
  after the commit: what lies in the working tree meanwhile is ours, not a person's;
- the trailer `Agentstate-Stash:` of the commit, which names the stash it came from: it is not committed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agent_codex.repos import GitRefused, drop_stash, git, put_aside, refuse_if_dirty
from agent_codex.role import Refused
from agent_codex.steps import step
from agentstate import adapter
from agentstate.approvals.records import PendingApprovalRecord, PendingRepoRecord
from agentstate.approvals.stash import find_stash_by_commit, find_stash_commit, marker_for


@dataclass(frozen=True, slots=True)
class _Case:
    """One repository of the job as it was found: how far did a release come, and what is there to go on with?

    `stash` is the change, None when nobody knows it any more, and `listed` says that it still is in the stash list.
    `commit` is the commit it became, None as long as it is not committed. `mark` is the file that says a release is
    at work in the tree, `begun` that it was there and named this stash.
    """

    place: str
    stash: str | None
    listed: bool
    commit: str | None
    mark: Path
    begun: bool


def release(approval: PendingApprovalRecord) -> list[str]:
    """Commit the job's change in each repository not done yet; return a line about each for the reply.

    Raises `Refused` with nothing committed when a repository has changes of somebody's own, or a stash is gone; and
    when a stash does not fit any more, with that repository as it was and the ones before it released.
    """
    if not approval.repos:
        raise Refused(f"{approval.job_id} has no stash: there is nothing to release.")
    cases = [_look(approval.job_id, repo) for repo in approval.repos]
    for case in cases:
        if case.commit is None and not case.listed:
            raise Refused(
                f"{case.place}: no stash: {approval.job_id}'s change is not in 'git stash list' any more; nothing was "
                f"committed there. /verwerfen {approval.job_id} closes the case, unless other parts of it are "
                f"committed; then 'agentstate approvals drop {approval.job_id}' does."
            )
        if case.commit is None and not case.begun:
            refuse_if_dirty(case.place)
    return [_release_one(approval, case) for case in cases]


def discard(approval: PendingApprovalRecord) -> list[str]:
    """Drop the job's stashes and no others; return a line about each repository for the reply."""
    lines = []
    for case in [_look(approval.job_id, repo) for repo in approval.repos]:
        aside = _take_back(case)
        step("taken back")
        dropped = case.stash is not None and drop_stash(case.place, case.stash)
        step("stash dropped")
        lines.append(f"{case.place}: {'its stash is dropped' if dropped else 'no stash, nothing to drop'}{aside}")
    return lines or [f"{approval.job_id} had no stash."]


def committed_anything(approval: PendingApprovalRecord) -> bool:
    """Return whether a release of this job has come as far as a commit."""
    return any(_look(approval.job_id, repo).commit for repo in approval.repos)


def _look(job_id: str, repo: PendingRepoRecord) -> _Case:
    place = repo.repo_dir
    stash = repo.stash_commit or find_stash_commit(place, marker_for(job_id))
    listed = stash is not None and find_stash_by_commit(place, stash) is not None
    mark = Path(place, git(place, "rev-parse", "--git-path", "agentstate-release").strip())
    begun = stash is not None and mark.exists() and mark.read_text() == stash
    commit = repo.commit_sha
    if commit is None and stash is not None:
        trailer = ("--fixed-strings", f"--grep=Agentstate-Stash: {stash}")
        # It was made after the stash, so look no further back, as long as the stash is there to tell.
        since = (f"^{stash}^1",) if listed else ()
        commit = git(place, "rev-list", "--max-count=1", *trailer, "HEAD", "--branches", *since).strip() or None
    return _Case(place, stash, listed, commit, mark, begun)


def _release_one(approval: PendingApprovalRecord, case: _Case) -> str:
    commit, aside = case.commit, ""
    if commit is None:
        aside = _take_back(case)
        commit = _apply_and_commit(approval, case)
    if case.begun or case.commit is None:
        case.mark.unlink(missing_ok=True)
    step("mark removed")
    adapter.mark_repo_done(approval.job_id, case.place, commit)
    step("repository noted as done")
    if case.listed and case.stash is not None:
        drop_stash(case.place, case.stash)
        step("stash dropped")
    return f"{case.place}: commit {commit[:12]}{aside}"


def _apply_and_commit(approval: PendingApprovalRecord, case: _Case) -> str:
    place, stash = case.place, str(case.stash)
    case.mark.write_text(stash)
    step("mark written")
    try:
        git(place, "stash", "apply", "--quiet", stash)
        step("stash applied")
        git(place, "add", "--all")
        if git(place, "diff", "--cached", "--name-only"):  # else the same change is in HEAD already
            git(place, "commit", "--quiet", "--cleanup=whitespace", "--file=-", stdin=_message(approval, stash))
            step("committed")
    except GitRefused as error:
        conflicts = ", ".join(git(place, "diff", "--name-only", "--diff-filter=U").split())
        put_aside(place)
        case.mark.unlink(missing_ok=True)
        raise Refused(
            f"The change does not fit {place}{f' (it conflicts in {conflicts})' if conflicts else ''}; the repository "
            f"was left as it was and the stash is kept.\n{error}\nPut that right and give the same command again."
        ) from error
    return git(place, "rev-parse", "--verify", "HEAD").strip()


def _take_back(case: _Case) -> str:
    """Clear away what an interrupted release left in the working tree; return what to say about it."""
    if not case.begun:
        return ""
    aside = put_aside(case.place)
    case.mark.unlink(missing_ok=True)
    return f" (an interrupted release lay there; 'git stash apply {aside}' would bring it back)" if aside else ""


def _message(approval: PendingApprovalRecord, stash: str) -> str:
    text = approval.commit_message.strip() or f"Job {approval.job_id}"
    return f"{text}\n\nAgentstate-Job: {quote(approval.job_id, safe='')}\nAgentstate-Stash: {stash}\n"
