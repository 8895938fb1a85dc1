"""kill -9 after every single step of every command: the same command, given again, ends in the right state.

The example's code counts its steps and kills itself at the one that AGENT_CODEX_KILL_AT names; each test here goes
through all of them until a run is not killed any more.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_helpers import ALICE, Codex, commits, git, is_clean

pytestmark = pytest.mark.slow

SIGKILL = -signal.SIGKILL


def killed_at_each_step(start_from: Codex, tmp_path: Path, body: str) -> Iterator[Codex]:
    """Give the command in a fresh copy, kill it at its 1st, 2nd, ... step, and yield the copy after each kill.

    The copy whose run was not killed comes last, with the command carried out.
    """
    step, code = 0, SIGKILL
    while code == SIGKILL:
        step += 1
        codex = start_from.copy(tmp_path / f"{step}")
        codex.put("builder", "m-1", ALICE, body)
        code = codex.start("builder", AGENT_CODEX_KILL_AT=str(step))
        assert code in (0, SIGKILL), codex.stderr
        yield codex


def give_again(codex: Codex, body: str) -> str:
    """Give the same command as a new message, as a person would, and have the builder work off all there is."""
    codex.put("builder", "m-2", ALICE, body)
    codex.work_off("builder")
    reply = codex.reply("builder", "m-1")
    assert reply is not None
    assert codex.files("builder", "failed") == []
    return reply


@pytest.fixture
def waiting_start(codex: Codex) -> Codex:
    """A request of Alice's, job-1, that waits for its start, and a coder that writes down each of its runs."""
    edit = 'IFS=:; for repo in $AGENT_REPOS; do echo more >> "$repo/notes"; echo > "$repo/fresh"; done'
    codex.environment["AGENT_CODER"] = codex.script("coder", f"echo run >> ../runs; {edit}")
    codex.say("builder", "job-1", ALICE, "more, please")
    return codex


def assert_waits_for_its_release_once(codex: Codex) -> None:
    """The job ran once: one stash in each repository, one edit in each stash, one record that names them."""
    assert (codex.state.parent / "runs").read_text() == "run\n"
    assert [len(entries) for entries in codex.stash_lists()] == [1, 1]
    assert [git(repo, "show", "stash@{0}:notes") for repo in codex.repos] == ["first\nmore"] * 2
    assert all(is_clean(repo) and commits(repo) == 1 for repo in codex.repos)
    assert codex.rows("start_pending") == []
    assert codex.rows("pending_approval", "job_id, claimed_by") == [("job-1", None)]
    assert codex.rows("pending_approval_repo", "repo_dir, stash_commit") == [
        (str(repo), git(repo, "rev-parse", "stash@{0}")) for repo in codex.repos
    ]
    assert codex.files("builder", "inbox") + codex.files("builder", "processing") == []


def test_a_request_is_noted_once(codex: Codex, tmp_path: Path) -> None:
    """AP-11: killed after start_pending was saved."""
    runs = 0
    for killed in killed_at_each_step(codex, tmp_path, "more, please"):
        runs += 1
        killed.work_off("builder")

        assert killed.rows("start_pending", "job_id, body, claimed_by") == [("m-1", "more, please", None)]
        assert "/annehmen m-1" in (killed.reply("builder", "m-1") or "")
    assert runs == 4


def test_annehmen_runs_the_job_once(waiting_start: Codex, tmp_path: Path) -> None:
    """Section 8.7, AP-11: no job is lost, no job file is there twice, none runs twice."""
    runs = 0
    for codex in killed_at_each_step(waiting_start, tmp_path, "/annehmen"):
        runs += 1
        claimed = codex.rows("start_pending", "claimed_by") == [("annehmen alice@bot.example",)]
        assert codex.unfinished() == ([("start", "job-1")] if claimed else [])
        assert (codex.files("builder", "processing") + codex.files("builder", "inbox")).count("job-1") <= 1

        reply = give_again(codex, "/annehmen")

        assert "Accepted job-1" in reply
        assert_waits_for_its_release_once(codex)
    assert runs == 7


def test_a_killed_job_goes_on_without_a_second_edit(waiting_start: Codex, tmp_path: Path) -> None:
    """Section 8.7, AP-11: after the edit, after each stash, after the record: no edit is lost and none is doubled."""
    waiting_start.put("builder", "m-0", ALICE, "/annehmen")
    assert waiting_start.start("builder") == 0
    runs, code = 0, SIGKILL
    while code == SIGKILL:
        runs += 1
        codex = waiting_start.copy(tmp_path / f"{runs}")

        code = codex.start("builder", AGENT_CODEX_KILL_AT=str(runs))
        assert code in (0, SIGKILL), codex.stderr
        codex.work_off("builder")

        assert "/freigeben job-1" in (codex.reply("builder", "job-1.job") or "")
        assert_waits_for_its_release_once(codex)
    assert runs == 9


def test_ablehnen_forgets_the_request(waiting_start: Codex, tmp_path: Path) -> None:
    """Section 8.7: and nothing runs, whenever the kill comes."""
    runs = 0
    for codex in killed_at_each_step(waiting_start, tmp_path, "/ablehnen"):
        runs += 1
        reply = give_again(codex, "/ablehnen")

        assert "Rejected job-1" in reply
        assert codex.rows("start_pending") + codex.rows("pending_approval") == []
        assert not (codex.state.parent / "runs").exists()
        assert codex.files("builder", "inbox") + codex.files("builder", "processing") == []
    assert runs == 6


def test_freigeben_commits_each_repository_once(finished_job: Codex, tmp_path: Path) -> None:
    """Section 8.7, AP-11: no commit twice, none missing, no row and no stash left."""
    runs = 0
    for codex in killed_at_each_step(finished_job, tmp_path, "/freigeben"):
        runs += 1
        claimed = codex.rows("pending_approval", "claimed_by") == [("freigeben alice@bot.example",)]
        assert codex.unfinished() == ([("approval", "job-1")] if claimed else [])

        reply = give_again(codex, "/freigeben")

        assert "Released job-1" in reply
        assert [commits(repo) for repo in codex.repos] == [2, 2]
        assert [(repo / "notes").read_text() for repo in codex.repos] == ["first\na line\n"] * 2
        assert all(is_clean(repo) and not list((repo / ".git").glob("agentstate*")) for repo in codex.repos)
        assert codex.stash_lists() == [[], []]
        assert codex.rows("pending_approval") + codex.rows("pending_approval_repo") == []
        assert codex.files("builder", "inbox") + codex.files("builder", "processing") == []
    assert runs == 18


def test_verwerfen_drops_the_stashes(finished_job: Codex, tmp_path: Path) -> None:
    """Section 8.7: and nothing is committed, whenever the kill comes."""
    runs = 0
    for codex in killed_at_each_step(finished_job, tmp_path, "/verwerfen"):
        runs += 1
        reply = give_again(codex, "/verwerfen")

        assert "Discarded job-1" in reply
        assert all(is_clean(repo) and commits(repo) == 1 for repo in codex.repos)
        assert codex.stash_lists() == [[], []]
        assert codex.rows("pending_approval") + codex.rows("pending_approval_repo") == []
    assert runs == 10


@pytest.mark.parametrize("at", ["mark written", "stash applied"])
def test_a_release_killed_before_its_first_commit_may_still_be_discarded(waiting: Codex, at: str) -> None:
    """A person who changed their mind gets the repository as it was, half-applied state and all."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    assert waiting.start("builder", AGENT_CODEX_KILL_AT=at) == SIGKILL
    waiting.path_of("builder", "processing", "m-1").unlink()

    reply = waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert "Discarded job-1" in reply
    assert all(is_clean(repo) and commits(repo) == 1 for repo in waiting.repos)
    assert waiting.stash_lists() == [[], []]
