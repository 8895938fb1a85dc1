"""Find a job's git stash again, whatever has happened to the stash list since.

`stash@{N}` is a position, not a name: it moves with every push and drop. So a builder puts `marker_for(job_id)` at
the start of the stash message, records the stash's commit id, and looks the position up at the moment it is used.
Nothing here changes a repository, and nothing here is ever half sure: it is the right entry, None, or an error.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple
from urllib.parse import quote

from agentstate.errors import AmbiguousStash, InvalidValue, StashError
from agentstate.identity import valid_job_id
from agentstate.settings import child_environment

RepoDir = str | os.PathLike[str]

# A caller may itself run inside a git hook; these would point every git call at the hook's repository (`-C` loses).
REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
    }
)
# What `git stash push -m` writes before the message. A branch name holds neither a blank nor a colon.
_BRANCH = re.compile(r"On (?:\([^)]*\)|[^ :]+): ")
_BLANKS = re.compile(r"[ \t\r\n]+")
GIT_SECONDS = 60.0
"""How long git may take to list a repository's stashes: one on a dead network share never answers."""

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class _Entry(NamedTuple):
    ref: str
    commit: str
    subject: str


def marker_for(job_id: str) -> str:
    """Return the text by which the job's stashes are recognised; it belongs at the start of the stash message.

    The id is percent-encoded and stands between delimiters that it therefore cannot hold: two ids never share a
    marker, no marker is the beginning of another (`job-1`, `job-10`), and it survives git's folding of blanks and
    any character set. Raises `InvalidIdentifier` for what is not a job id.
    """
    return f"[agentstate:{quote(valid_job_id(job_id), safe='')}]"


def find_stash_ref(repo_dir: RepoDir, marker: str) -> str | None:
    """Return the `stash@{N}` whose message starts with the marker, or None when there is none.

    The marker is literal text, followed by a blank or the end of the message. A message that only quotes it further
    on is somebody else's stash and does not count. The position is true now and may be another one after the next
    `git stash`; use it at once. Raises `AmbiguousStash` when several entries start with the marker, `StashError`
    with git's own words when git cannot answer, `InvalidValue` for an empty marker.
    """
    entry = _marked(repo_dir, marker)
    return entry.ref if entry else None


def find_stash_commit(repo_dir: RepoDir, marker: str) -> str | None:
    """Return the full commit id of the stash whose message starts with the marker, or None: the name that stays.

    Same rules and errors as `find_stash_ref`.
    """
    entry = _marked(repo_dir, marker)
    return entry.commit if entry else None


def find_stash_by_commit(repo_dir: RepoDir, commit: str) -> str | None:
    """Return the `stash@{N}` at which the stash with this commit id is now, or None when it is gone.

    `commit` is the full id in lower case, as git prints it: an abbreviation could come to mean another entry, so it
    raises `InvalidValue`. Raises `StashError` with git's own words when git cannot answer.
    """
    if not _FULL_COMMIT.fullmatch(commit):
        raise InvalidValue("commit", f"{commit!r} is not a full commit id in lower case")
    return next((entry.ref for entry in _entries(repo_dir) if entry.commit == commit), None)


def _marked(repo_dir: RepoDir, marker: str) -> _Entry | None:
    # git stores a message's subject with its blanks folded, so the marker is folded before they are compared.
    if not isinstance(marker, str):
        raise InvalidValue("marker", f"must be text, not {type(marker).__name__}")
    wanted = _BLANKS.sub(" ", marker).strip(" ")
    if not wanted:
        raise InvalidValue("marker", "must not be empty")
    found = [entry for entry in _entries(repo_dir) if _starts_with(entry.subject, wanted)]
    if len(found) > 1:
        raise AmbiguousStash(os.fspath(repo_dir), marker, [entry.ref for entry in found])
    return found[0] if found else None


def _starts_with(subject: str, marker: str) -> bool:
    branch = _BRANCH.match(subject)
    message = subject[branch.end() :] if branch else subject
    return message == marker or message.startswith(marker + " ")


def _entries(repo_dir: RepoDir) -> list[_Entry]:
    # NUL-separated, so that no subject can look like two. The positions are counted rather than asked for with %gd,
    # and the options say no to whatever the repository's configuration would add to the output.
    plain = ("-z", "--format=%H %gs", "--encoding=UTF-8", "--no-color", "--no-patch", "--no-show-signature")
    output = _git(repo_dir, "stash", "list", *plain)
    entries = []
    for position, line in enumerate(filter(None, output.split("\0"))):
        commit, _, subject = line.partition(" ")
        entries.append(_Entry(f"stash@{{{position}}}", commit, subject))
    return entries


def _git(repo_dir: RepoDir, *arguments: str) -> str:
    if not isinstance(repo_dir, str | os.PathLike):
        raise InvalidValue("repo_dir", f"must be a path, not {type(repo_dir).__name__}")
    place = os.fspath(repo_dir)
    if not place:  # git would take it for the current directory
        raise StashError(place, "no repository was named")
    try:
        done = subprocess.run(
            ["git", "--no-pager", "-C", place, *arguments],
            env=child_environment(REPOSITORY_VARIABLES, LC_ALL="C", GIT_OPTIONAL_LOCKS="0"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=GIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise StashError(place, f"git did not answer within {GIT_SECONDS:g} s") from None
    except (OSError, ValueError) as error:  # git is not on PATH; a NUL in the path
        raise StashError(place, f"git did not run: {error}") from error
    if done.returncode != 0:
        raise StashError(place, done.stderr.strip() or f"git ended with exit code {done.returncode}")
    return done.stdout
