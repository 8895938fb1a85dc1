"""Releasing and discarding the changes of one job, repository by repository, so that a kill anywhere is harmless.

A release applies the job's stash, commits the result, notes the commit in agent.db and drops the stash. Two traces
tell a later run how far a killed one came:

- the file `agentstate-release` in the repository's git directory, written before the stash is applied and removed
  after the commit: what lies in the working tree meanwhile is ours, not a person's;
- the trailer `Agentstate-Stash:` of the commit, which names the stash it came from: it is not committed again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agent_codex.repos import GitRefused, branch_with, conflicting_files, drop_stash, git, put_aside, refuse_if_dirty
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
    at work in the tree, `begun` that it was there and named this stash. `gone` says that the directory does not exist
    any more; then only a commit that was noted is known.
    """

    place: str
    stash: str | None
    listed: bool
    commit: str | None
    mark: Path
    begun: bool
    gone: bool = False


def ready_to_release(approval: PendingApprovalRecord) -> list[_Case]:
    """Return the job's repositories as a release finds them, having changed nothing.

    Raises `Refused` when one has changes of somebody's own, is not there, or its stash is gone or does not fit.
    """
    if not approval.repos:
        raise Refused(f"{approval.job_id} has no stash: there is nothing to release.")
    cases = ready_to_discard(approval)
    for case in cases:
        if case.commit is None and not case.listed:
            why = "does not exist any more" if case.gone else "no stash: its change is not in 'git stash list' any more"
            raise Refused(
                f"{case.place}: {why}; nothing was committed there. /verwerfen {approval.job_id} closes the case, "
                f"unless other parts of it are committed; then 'agentstate approvals drop {approval.job_id}' does."
            )
        if case.commit is None and not case.begun:
            refuse_if_dirty(case.place)
        if case.commit is None and (files := conflicting_files(case.place, str(case.stash))):
            raise Refused(_does_not_fit(case.place, files))
    return cases


def ready_to_discard(approval: PendingApprovalRecord) -> list[_Case]:
    """Return the job's repositories as a discard finds them, having changed nothing; raises `GitRefused`."""
    return [_look(approval.job_id, repo) for repo in approval.repos]


def release(approval: PendingApprovalRecord) -> list[str]:
    """Commit the job's change in each repository not done yet; return a line about each for the reply.

    Raises `Refused` as `ready_to_release` does, with nothing committed; and when git refuses half way, with that
    repository as it was and the ones before it released.
    """
    return [_release_one(approval, case) for case in ready_to_release(approval)]


def discard(approval: PendingApprovalRecord) -> list[str]:
    """Drop the job's stashes and no others; return a line about each repository for the reply."""
    return [_discard_one(case) for case in ready_to_discard(approval)] or [f"{approval.job_id} had no stash."]


def committed_anything(approval: PendingApprovalRecord) -> bool:
    """Return whether a release of this job has come as far as a commit."""
    return any(case.commit for case in ready_to_discard(approval))


def _look(job_id: str, repo: PendingRepoRecord) -> _Case:
    place = repo.repo_dir
    if _is_gone(place):
        return _Case(place, None, listed=False, commit=repo.commit_sha, mark=Path(place), begun=False, gone=True)
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


def _is_gone(place: str) -> bool:
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # there, but not for us: git will say why
        return False
    return False


def _discard_one(case: _Case) -> str:
    if case.gone:
        return f"{case.place}: does not exist any more, so a stash in it could not be dropped"
    aside = _take_back(case)
    step("taken back")
    dropped = case.stash is not None and drop_stash(case.place, case.stash)
    step("stash dropped")
    return f"{case.place}: {'its stash is dropped' if dropped else 'no stash, nothing to drop'}{aside}"


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
    branch = "" if case.gone else f" on {branch_with(case.place, commit)}"
    return f"{case.place}: commit {commit[:12]}{branch}{aside}"


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
        conflicts = git(place, "diff", "--name-only", "--diff-filter=U", "-z").split("\0")[:-1]
        put_aside(place)
        case.mark.unlink(missing_ok=True)
        raise Refused(_does_not_fit(place, conflicts, f"\n{error}")) from error
    return git(place, "rev-parse", "--verify", "HEAD").strip()


def _does_not_fit(place: str, conflicts: list[str], words: str = "") -> str:
    where = f" (it conflicts in {', '.join(conflicts)})" if conflicts else ""
    return (
        f"The change does not fit {place}{where}; the repository is as it was and the stash is kept.{words}\n"
        "Put that right and give the same command again."
    )


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
