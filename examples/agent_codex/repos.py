"""What the builder does with git in one repository: look, put changes into a stash, put aside what a kill left.

Everything is asked of the `git` on PATH. Its own words are what a person gets to read when it refuses.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from agent_codex.role import Refused
from agentstate.approvals.stash import REPOSITORY_VARIABLES, find_stash_by_commit, find_stash_commit
from agentstate.settings import child_environment


class GitRefused(Refused):
    """git did not do what was asked; the text names the repository and has git's own words."""


def git(repo: str | Path, *arguments: str, stdin: str = "", codes: Collection[int] = (0,)) -> str:
    """Run git in the repository and return what it printed; raises `GitRefused` for an exit code not in `codes`."""
    done = subprocess.run(
        ["git", "-C", str(repo), "-c", "i18n.commitEncoding=UTF-8", *arguments],
        env=child_environment(REPOSITORY_VARIABLES, LC_ALL="C", GIT_TERMINAL_PROMPT="0"),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    if done.returncode not in codes:
        words = (done.stderr.strip() or done.stdout.strip()).encode("utf-8", "replace").decode()
        raise GitRefused(f"{repo}: git {arguments[0]} failed: {words}")
    return done.stdout


# --- looking ---------------------------------------------------------------------------------------------------------


def head(repo: str | Path) -> tuple[str, str]:
    """Return the branch (empty when there is none) and the commit that the repository stands on."""
    return branch_of(repo), git(repo, "rev-parse", "--verify", "HEAD").strip()


def branch_of(repo: str | Path) -> str:
    """Return the full name of the branch that is checked out, empty when HEAD is detached."""
    return git(repo, "symbolic-ref", "--quiet", "HEAD", codes=(0, 1)).strip()


def commit_of(repo: str | Path, name: str) -> str:
    """Return the commit that a branch or HEAD stands for, empty when there is none."""
    return git(repo, "rev-parse", "--verify", "--quiet", name, codes=(0, 1)).strip()


def branch_with(repo: str | Path, commit: str) -> str:
    """Return the branch that has the commit, in words for a person: the one that is checked out, if it is several."""
    words = ("--contains", commit, "--format=%(HEAD)%(refname:short)", "refs/heads")
    branches = git(repo, "for-each-ref", *words, codes=(0, 128, 129)).splitlines()  # there is no such commit any more
    branches.sort(key=lambda branch: not branch.startswith("*"))
    return branches[0][1:] if branches else "no branch"


def dirty_files(repo: str | Path) -> list[str]:
    """Return the paths that differ from HEAD or are not tracked, ignored ones left out."""
    entries = git(repo, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=normal").split("\0")
    return [entry[3:] for entry in entries if entry]


def refuse_if_dirty(repo: str | Path) -> None:
    """Raise `Refused`, naming the files, when somebody has changes of their own there."""
    files = dirty_files(repo)
    if files:
        some = ", ".join(files[:5]) + (" and more" if len(files) > 5 else "")
        raise Refused(f"{repo} has changes that are not committed ({some}). Commit or stash them first.")


def refuse_if_shared(repos: Iterable[Path]) -> None:
    """Raise `Refused` when two of them are one repository, such as two worktrees: they would share one stash list."""
    found: dict[str, Path] = {}
    for repo in repos:
        common = os.path.realpath(os.path.join(repo, git(repo, "rev-parse", "--git-common-dir").rstrip("\n")))
        other = found.setdefault(common, repo)
        if other != repo:
            raise Refused(
                f"The builder is not configured: {other} and {repo} in AGENT_REPOS are one repository ({common}), like "
                "two worktrees of it, and would mix up their stashes. Name only one of them."
            )


def conflicting_files(repo: str | Path, stash: str) -> list[str]:
    """Return the files in which applying the stash to HEAD would conflict, found without touching anything.

    Empty also when git is too old to tell (before 2.38); then applying it will.
    """
    # What `git stash apply` merges: HEAD and the stash, over the commit that the stash was made on.
    ours = git(repo, "commit-tree", "HEAD^{tree}", "-p", f"{stash}^1", "-m", "HEAD, for a trial").strip()
    try:
        trial = git(repo, "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, stash, codes=(0, 1))
    except GitRefused:
        return []
    _tree, *files = trial.split("\0")
    return list(dict.fromkeys(filter(None, files)))


# --- changing --------------------------------------------------------------------------------------------------------


def put_aside(repo: str | Path) -> str | None:
    """Make the repository clean and return the commit that holds what lay there, or None when it was clean.

    The commit is no entry of `git stash list`, so nothing is left to tidy up; `git stash apply COMMIT` brings it back.
    """
    if not dirty_files(repo):
        return None
    git(repo, "add", "--all")  # so that new files are kept, and removed, like the others
    commit = git(repo, "stash", "create", "put aside by the builder").strip()
    git(repo, "reset", "--quiet", "--hard")
    return commit or None


def go_back(repo: str | Path, branch: str, commit: str) -> list[str]:
    """Stand on the branch and the commit again, and return the last of the commits that the coder made on its own.

    Only HEAD and the branch move, not the files: what the coder changed, committed or not, lies there as changes, and
    there is nothing that could stand in the way. Any other branch stays as the coder left it.
    """
    if (branch_of(repo), commit_of(repo, "HEAD")) == (branch, commit):
        return []
    names = [name for name in ("HEAD", branch) if name and commit_of(repo, name)]
    own = [git(repo, "rev-list", "--max-count=1", name, f"^{commit}").strip() for name in names]
    for unfinished in ("merge", "rebase", "cherry-pick", "revert"):
        git(repo, unfinished, "--quit", codes=range(256))  # of the coder's; they refuse when there is none
    if branch:
        git(repo, "symbolic-ref", "HEAD", branch)
        git(repo, "update-ref", "HEAD", commit)
    else:
        git(repo, "update-ref", "--no-deref", "HEAD", commit)
    return list(dict.fromkeys(filter(None, own)))


def stash_changes(repo: str | Path, marker: str, title: str) -> str | None:
    """Stash what was changed in the repository under the marker; return the stash's commit, None without changes."""
    if not dirty_files(repo):
        return None
    git(repo, "add", "--all")  # git cannot stash a file that is only meant to be added (`git add -N`)
    git(repo, "stash", "push", "--quiet", "--message", f"{marker} {title}")
    return find_stash_commit(repo, marker)


def drop_stash(repo: str | Path, commit: str) -> bool:
    """Drop the stash entry with this commit and no other; return whether there was one."""
    dropped = False
    while ref := find_stash_by_commit(repo, commit):
        # git drops by position only, and positions move when somebody pushes a stash at this very moment.
        gone = _dropped_commit(git(repo, "stash", "drop", ref))
        if gone == commit:
            dropped = True
        else:
            title = git(repo, "show", "--no-patch", "--format=%s", gone).strip()
            git(repo, "stash", "store", "--message", title, gone)
    return dropped


def _dropped_commit(words: str) -> str:
    found = re.search(r"\(([0-9a-f]{40,64})\)\s*$", words)
    if found is None:
        raise GitRefused(f"git stash drop did not say what it dropped: {words.strip()}")
    return found[1]
