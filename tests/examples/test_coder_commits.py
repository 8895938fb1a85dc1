"""A coder that commits or goes to another branch by itself: that is no way around the second yes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codex_helpers import ALICE, Codex, commits, git, is_clean, stashes, text, waiting_release, waiting_start

COMMIT = "echo z > z; git add z; git commit -qm own"
BRANCH = "git checkout -q -b side"
REBASE = "GIT_SEQUENCE_EDITOR='sed -i s/^pick/edit/' git rebase -q -i HEAD~1 2> /dev/null"
CONFLICT = (
    "git checkout -q -b side; echo a > notes; git commit -qam a; git checkout -q main; "
    "echo b > notes; git commit -qam b; git merge -q side > /dev/null || true"
)


def run_in_the_second(codex: Codex, commands: str) -> str:
    """Run a coder that changes the first repository and does this in the second; return the job's reply."""
    codex.environment["AGENT_CODER"] = codex.script("coder", f"echo more >> notes; cd ../two; {commands}")
    waiting_start(codex)
    codex.say("builder", "m-1", ALICE, "/annehmen")
    return codex.reply("builder", "job-1.job") or ""


def as_it_was(repo: Path) -> bool:
    """Return whether the repository is on its branch and first commit, clean, with nothing stashed or half done."""
    assert is_clean(repo)
    status = git(repo, "status")
    return "On branch main" in status and "rebas" not in status and (commits(repo), stashes(repo)) == (1, [])


def brought_back(repo: Path, reply: str) -> set[str]:
    """Do in the repository what the reply says brings the work back, and return the names of its files."""
    git(repo, "stash", "apply", reply.split(f"{repo}: 'git stash apply ")[1].split("'")[0])
    return {file.name for file in repo.iterdir()} - {".git"}


def test_commits_that_a_coder_makes_by_itself_wait_for_the_yes_as_well(codex: Codex) -> None:
    """Several coding agents commit what they did; that must not be a way around the approval."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes; git commit -qam 'done it'")

    waiting_release(codex)
    before = (commits(codex.repos[0]), text(codex.repos[0]))
    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert before == (1, "first\n")
    assert (commits(codex.repos[0]), text(codex.repos[0])) == (2, "first\nmore\n")


@pytest.mark.parametrize(
    "commands",
    [
        f"{BRANCH}; {COMMIT}",
        f"{BRANCH}; {COMMIT}; echo y > y",
        f"{BRANCH}; echo z > z",
        f"{BRANCH}; git branch -qD main; echo z > z",
        f"{COMMIT}; {BRANCH}",
        f"git checkout -q --detach; {COMMIT}",
        "git checkout -q --orphan side; echo z > z",
        f"{COMMIT}; {REBASE}",
    ],
)
def test_a_coder_that_leaves_its_branch_is_undone_in_every_repository(codex: Codex, commands: str) -> None:
    """AP-05, AP-10: its commits became the next job's baseline, and 'did not run' was not true."""
    reply = run_in_the_second(codex, commands)

    assert all(as_it_was(repo) for repo in codex.repos)
    assert f"The coder ran and changed branch: {codex.repos[1]} is on" in reply
    assert "did not run" not in reply
    assert brought_back(codex.repos[0], reply) == {"notes"}
    assert text(codex.repos[0]) == "first\nmore\n"
    assert brought_back(codex.repos[1], reply) >= {"notes", "z"}
    assert codex.rows("start_pending", "job_id, claimed_by") == [("job-1", None)]


@pytest.mark.parametrize("commands", [f"{BRANCH}; {COMMIT}", f"{COMMIT}; git checkout -q -b side HEAD~1"])
def test_the_commits_of_a_coder_that_left_its_branch_are_named(codex: Codex, commands: str) -> None:
    """Its messages may be worth keeping, and from a deleted branch only the commit's id leads to them."""
    reply = run_in_the_second(codex, commands)

    own = reply.split("'git log ")[1].split("'")[0]
    assert git(codex.repos[1], "log", "-1", "--format=%s", own) == "own"


def test_a_coder_that_only_left_its_branch_has_nothing_to_put_aside(codex: Codex) -> None:
    """Then the reply promises nothing."""
    codex.environment["AGENT_CODER"] = codex.script("coder", BRANCH)
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    reply = codex.reply("builder", "job-1.job") or ""
    assert f"{codex.repos[0]} is on side, not main" in reply
    assert "put aside" not in reply
    assert all(as_it_was(repo) for repo in codex.repos)


def test_the_next_run_starts_from_the_branch_and_not_from_the_commits(codex: Codex) -> None:
    """AP-10: released or discarded, what nobody approved was in the history for good."""
    run_in_the_second(codex, f"{BRANCH}; {COMMIT}")
    codex.environment["AGENT_CODER"] = codex.script("coder", "cd ../two; echo more >> notes")

    codex.say("builder", "m-2", ALICE, "/annehmen")
    codex.say("builder", "m-3", ALICE, "/freigeben")

    assert git(codex.repos[1], "log", "--format=%s", "main") == "notes: a line\nfirst"
    assert git(codex.repos[1], "symbolic-ref", "HEAD") == "refs/heads/main"


def test_a_repository_without_a_branch_is_left_without_one(codex: Codex) -> None:
    """A checkout of a tag, say: the commit is what counts there."""
    git(codex.repos[1], "checkout", "--quiet", "--detach")

    reply = run_in_the_second(codex, f"{BRANCH}; {COMMIT}")

    assert "is on side, not no branch" in reply
    assert (git(codex.repos[1], "branch", "--show-current"), commits(codex.repos[1])) == ("", 1)


def test_a_failed_coder_is_undone_from_another_branch_too(codex: Codex) -> None:
    """It is likeliest to leave a branch behind when it breaks off."""
    reply = run_in_the_second(codex, f"{BRANCH}; {COMMIT}; exit 4")

    assert "exit code 4" in reply
    assert "did not run" not in reply
    assert all(as_it_was(repo) for repo in codex.repos)


def test_a_run_killed_on_another_branch_starts_over_from_the_first(codex: Codex) -> None:
    """AP-11: the next start found the repository on a branch of the coder's and gave up for good."""
    once = codex.state.parent / "once"
    killed = f'test -e "{once}" || {{ echo > "{once}"; {BRANCH}; {COMMIT}; kill -9 $PPID; sleep 1; }}'
    codex.environment["AGENT_CODER"] = codex.script("coder", f"{killed}; echo more >> notes")
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    for _ in range(2):
        codex.start("builder")

    codex.work_off("builder")

    reply = codex.reply("builder", "job-1.job") or ""
    assert "job-1 is done" in reply
    assert "git log" in reply
    assert git(codex.repos[0], "stash", "show", "--name-only") == "notes"
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


def test_where_an_undone_run_is_kept_is_said_also_when_the_next_cannot_start(codex: Codex) -> None:
    """The reply is the only place that names it."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo half > notes; kill -9 $PPID; sleep 1")
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    for _ in range(2):
        codex.start("builder")

    codex.start("builder", AGENT_CODER="")

    reply = codex.reply("builder", "job-1.job") or ""
    assert "AGENT_CODER is not set" in reply
    brought_back(codex.repos[0], reply)
    assert text(codex.repos[0]) == "half\n"


def test_what_git_does_not_undo_is_said_and_undone_later(codex: Codex) -> None:
    """Neither 'did not run' nor 'is undone' would be true; the other repository is undone nevertheless."""
    lock = codex.repos[1] / ".git" / "HEAD.lock"
    refused = run_in_the_second(codex, f"{BRANCH}; echo z > z; echo > .git/HEAD.lock")
    untouched, rows = as_it_was(codex.repos[0]), codex.rows("start_pending")
    lock.unlink()
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes")

    os.rename(codex.path_of("builder", "failed", "job-1"), codex.path_of("builder", "inbox", "job-1"))
    codex.work_off("builder")

    assert "stands in the way of undoing it" in refused
    assert "HEAD.lock" in refused
    assert (untouched, rows) == (True, [])
    assert as_it_was(codex.repos[1])
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]
    assert codex.files("builder", "failed") == []


def test_what_a_coder_leaves_in_the_middle_of_a_merge_waits_like_any_change(codex: Codex) -> None:
    """git refuses to take commits back during a merge; a person's next commit must not become that merge either."""
    reply = run_in_the_second(codex, CONFLICT)

    assert "job-1 is done" in reply
    assert [len(entries) for entries in codex.stash_lists()] == [1, 1]
    assert all(is_clean(repo) and commits(repo) == 1 for repo in codex.repos)
    assert not (codex.repos[1] / ".git" / "MERGE_HEAD").exists()
