"""Jobs that cannot run or go on: the person reads the truth, nothing is lost, and it can be tried again."""

from __future__ import annotations

import os

import pytest

from codex_helpers import ALICE, Codex, commits, git, is_clean, push_stash, stashes, text, waiting_start


def test_a_repository_with_somebodys_changes_is_left_alone_and_the_job_waits_again(codex: Codex) -> None:
    """A person's uncommitted work must not end up in the job's stash."""
    waiting_start(codex)
    (codex.repos[1] / "mine").write_text("work in progress")
    codex.say("builder", "m-1", ALICE, "/annehmen")
    refused = codex.reply("builder", "job-1.job") or ""
    (codex.repos[1] / "mine").unlink()

    codex.say("builder", "m-2", ALICE, "/annehmen")

    assert f"{codex.repos[1]} has changes that are not committed (mine)" in refused
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


@pytest.mark.parametrize(
    ("coder", "words"),
    [
        ("echo half > notes; echo more > fresh; echo no credit >&2; exit 4", "exit code 4\n  no credit"),
        ("echo half > notes; git -C . add notes; git commit -qm mine; exit 4", "exit code 4"),
        ("exec /nonexistent", "exit code"),
    ],
)
def test_a_failed_coder_leaves_the_repositories_as_they_were(codex: Codex, coder: str, words: str) -> None:
    """Half an edit must neither be released nor stand in the way of the next job; the job can be tried again."""
    codex.environment["AGENT_CODER"] = codex.script("coder", coder)
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    reply = codex.reply("builder", "job-1.job") or ""
    assert words in reply
    assert all(is_clean(repo) and commits(repo) == 1 and stashes(repo) == [] for repo in codex.repos)
    assert codex.rows("start_pending", "job_id, claimed_by") == [("job-1", None)]
    assert ("brings it back" in reply) == ("half" in coder)


@pytest.mark.parametrize(("name", "value"), [("AGENT_CODER", ""), ("AGENT_REPOS", ""), ("AGENT_REPOS", "/nonexistent")])
def test_a_builder_that_is_not_configured_says_so_and_the_job_waits(codex: Codex, name: str, value: str) -> None:
    """The yes was given; it must not be lost over a missing variable."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    code = codex.start("builder", **{name: value})

    assert code == 0
    assert (value or name) in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_two_stashes_of_one_job_are_a_persons_to_sort_out(codex: Codex) -> None:
    """AP-07: ambiguous is an error in the reply, and the job can go on once it is not."""
    waiting_start(codex)
    for n in (1, 2):
        push_stash(codex.repos[0], f"[agentstate:job-1] {n}", f"{n}\n")

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "2 stashes carry the marker" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_a_change_that_git_cannot_stash_keeps_its_place(codex: Codex) -> None:
    """The edit is there; once the obstacle is gone the job goes on from it, without the coder."""
    lock = codex.repos[0] / ".git" / "index.lock"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'echo more >> notes; echo > "{lock}"')
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")
    refused = codex.reply("builder", "job-1.job") or ""
    lock.unlink()
    codex.environment["AGENT_CODER"] = "false"
    os.rename(codex.path_of("builder", "failed", "job-1"), codex.path_of("builder", "inbox", "job-1"))
    codex.work_off("builder")

    assert "edited but not stashed" in refused
    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


@pytest.mark.parametrize("second", ["worktree", "link", "folder"])
def test_one_repository_that_is_configured_twice_is_refused(codex: Codex, second: str) -> None:
    """AP-06: two worktrees share their stashes, and one's change was committed in place of the other's."""
    repo, other = codex.repos[0], codex.state.parent / "other"
    if second == "worktree":
        git(repo, "worktree", "add", "--quiet", "-b", "side", str(other))
    elif second == "link":
        other.symlink_to(repo)
    else:
        other = repo / "folder"
        other.mkdir()
    codex.environment["AGENT_REPOS"] = f"{repo}{os.pathsep}{other}"
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    reply = codex.reply("builder", "job-1.job") or ""
    assert f"The builder is not configured: {repo} and {other} in AGENT_REPOS are one repository" in reply
    assert (text(repo), stashes(repo)) == ("first\n", [])
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_an_accept_that_cannot_be_carried_out_claims_nothing(codex: Codex) -> None:
    """AP-11: claimed for nothing, the request could not be rejected any more and was listed as unfinished."""
    waiting_start(codex)
    refused = codex.say("builder", "job-1", ALICE, "/annehmen job-1")
    unfinished = codex.unfinished()

    rejected = codex.say("builder", "m-1", ALICE, "/ablehnen job-1")

    assert "cannot run now" in refused
    assert unfinished == []
    assert "Rejected job-1" in rejected
