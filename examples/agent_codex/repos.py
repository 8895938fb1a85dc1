"""What the builder does with git in one repository: look, put changes into a stash, put aside what a kill left.

Everything is asked of the `git` on PATH. Its own words are what a person gets to read when it refuses.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from agent_codex.role import Refused
from agentstate.approvals.stash import find_stash_by_commit, find_stash_commit

# Set inside git hooks; they would win over the directory that is named.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


class GitRefused(Refused):
    """git did not do what was asked; the text names the repository and has git's own words."""


def git(repo: str | Path, *arguments: str, stdin: str = "") -> str:
    """Run git in the repository and return what it printed; raises `GitRefused`."""
    environment = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
    done = subprocess.run(
        ["git", "-C", str(repo), "-c", "i18n.commitEncoding=UTF-8", *arguments],
        env=environment | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).encode("utf-8", "replace").decode()
        raise GitRefused(f"{repo}: git {arguments[0]} failed: {words}")
    return done.stdout


def head(repo: str | Path) -> tuple[str, str]:
    """Return the branch (empty when there is none) and the commit that the repository stands on."""
    commit = git(repo, "rev-parse", "--verify", "HEAD").strip()
    try:
        return git(repo, "symbolic-ref", "--quiet", "HEAD").strip(), commit
    except GitRefused:
        return "", commit


def dirty_files(repo: str | Path) -> list[str]:
    """Return the paths that differ from HEAD or are not tracked, ignored ones left out."""
    entries = git(repo, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=normal").split("\0")
    return [entry[3:] for entry in entries if entry]


def refuse_if_dirty(repo: str | Path) -> None:
    """Raise `Refused`, naming the files, when somebody has changes of their own there."""
    files = dirty_files(repo)
    if files:
        some = ", ".join(files[:5]).encode("utf-8", "replace").decode() + (" and more" if len(files) > 5 else "")
        raise Refused(f"{repo} has changes that are not committed ({some}). Commit or stash them first.")


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


def go_back(repo: str | Path, branch: str, commit: str) -> None:
    """Undo commits that the coder made on its own, keeping what they changed as changes that wait for a yes."""
    branch_now, commit_now = head(repo)
    if branch_now != branch:
        raise Refused(f"{repo} was left on {branch_now or 'no branch'} instead of {branch or 'no branch'}.")
    if commit_now != commit:
        git(repo, "reset", "--quiet", "--soft", commit)


def stash_changes(repo: str | Path, marker: str, title: str) -> str | None:
    """Stash what was changed in the repository under the marker; return the stash's commit, None without changes."""
    if not dirty_files(repo):
        return None
    git(repo, "stash", "push", "--quiet", "--include-untracked", "--message", f"{marker} {title}")
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
