"""An accepted job: the coder runs once, and its changes wait in stashes for the second yes."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from agentstate.approvals.stash import REPOSITORY_VARIABLES
from codex_helpers import (
    ALICE,
    REQUEST,
    Codex,
    commits,
    git,
    has_ended,
    is_clean,
    push_stash,
    stashes,
    text,
    wait_for,
    waiting_release,
    waiting_start,
)


def test_a_jobs_changes_are_stashed_and_recorded_with_their_commits(codex: Codex) -> None:
    """AP-06: what is recorded is the stash's commit, never its position; new files belong to the change."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")

    recorded = codex.rows("pending_approval_repo", "repo_dir, stash_commit")
    assert recorded == [(str(repo), git(repo, "rev-parse", "stash@{0}")) for repo in codex.repos]
    assert all(is_clean(repo) and text(repo) == "first\n" for repo in codex.repos)


def test_only_changed_repositories_wait_for_a_release(codex: Codex) -> None:
    """AP-08: a repository without a change has no stash, and none is looked for there."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes")

    waiting_release(codex)

    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


def test_a_job_that_changes_nothing_leaves_no_case(codex: Codex) -> None:
    """AP-08: the stash push made nothing, the pop ran anyway and took the user's unrelated stash."""
    push_stash(codex.repos[0], "somebody's own")
    waiting_start(codex, body="just think")

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "changed nothing" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("pending_approval") == []
    assert stashes(codex.repos[0]) == ["On main: somebody's own"]


def test_the_request_is_the_commit_message_of_a_silent_coder(codex: Codex) -> None:
    """Any command can take the coder's place, also one that prints nothing."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes")
    waiting_release(codex, body="Please\nadd a line")

    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert git(codex.repos[0], "log", "-1", "--format=%B").startswith("Please\nadd a line\n\nAgentstate-Job: job-1\n")


def test_a_request_is_an_argument_and_never_an_option_or_a_command(codex: Codex) -> None:
    """Whoever may write a request must not be able to switch off the coder's safeguards."""
    codex.environment["AGENT_CODER"] = codex.script("coder", 'printf "%s|" "$@" > notes')

    waiting_release(codex, body="--yolo; $(touch x)")

    assert git(codex.repos[0], "show", "stash@{0}:notes") == "--|--yolo; $(touch x)|"


def test_what_the_coder_leaves_running_ends_with_it(codex: Codex) -> None:
    """A process in the background would edit the files after they were stashed, and keep its output open for ever."""
    pid = codex.state.parent / "pid"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'sleep 600 & echo $! > "{pid}"; echo more >> notes')

    waiting_release(codex)

    assert has_ended(int(pid.read_text()))


def test_a_job_file_put_again_by_hand_finds_its_stash(codex: Codex) -> None:
    """AP-11: killed after the stash was made; no edit is lost, none is made twice, even if the notes are gone."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")
    codex.start("builder", AGENT_CODEX_KILL_AT="stashed")
    codex.path_of("builder", "processing", "job-1").unlink()
    before = codex.stash_lists()
    git(codex.repos[1], "reset", "--quiet", "--hard")  # killed before the second was stashed: a person tidied up

    codex.put("builder", "job-1", ALICE, REQUEST, kind="job")
    codex.work_off("builder")

    assert before == [["On main: [agentstate:job-1] Add a line to notes"], []]
    assert codex.stash_lists() == before
    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


def test_a_job_runs_although_a_killed_accept_left_its_row(codex: Codex) -> None:
    """AP-11: the job file is the yes; with its row still there the approval could not be saved."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder", AGENT_CODEX_KILL_AT="job file put")
    codex.path_of("builder", "processing", "m-1").unlink()

    codex.work_off("builder")

    assert codex.rows("start_pending") == []
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


def test_a_stash_that_git_was_killed_over_is_not_stashed_twice(codex: Codex) -> None:
    """AP-11: a power failure between git's storing the stash and its cleaning the files."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")
    codex.start("builder", AGENT_CODEX_KILL_AT="stashed")
    git(codex.repos[0], "stash", "apply")

    codex.work_off("builder")

    assert [len(entries) for entries in codex.stash_lists()] == [1, 1]
    assert all(is_clean(repo) for repo in codex.repos)
    assert "brings it back" in (codex.reply("builder", "job-1.job") or "")


@pytest.mark.parametrize("stop", ["kill -9 $PPID", "kill -TERM $PPID"])
def test_a_run_ended_while_the_coder_edits_starts_the_edit_over(codex: Codex, stop: str) -> None:
    """AP-11, the incident of 30.07.2026: half an edit is put aside, the whole one is made, and made once."""
    once = codex.state.parent / "once"
    ended = f'test -e "{once}" || {{ echo > "{once}"; {stop}; sleep 1; }}'
    coder = f"echo one >> notes; echo > fresh; {ended}; echo two >> notes"
    codex.environment["AGENT_CODER"] = codex.script("coder", coder)
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    code = codex.start("builder")
    lies_in = [directory for directory in ("inbox", "processing") if codex.files("builder", directory)]
    codex.work_off("builder")

    assert (code, lies_in) in [(-signal.SIGKILL, ["processing"]), (-signal.SIGTERM, ["inbox"])]
    assert git(codex.repos[0], "show", "stash@{0}:notes") == "first\none\ntwo"
    assert len(stashes(codex.repos[0])) == 1
    assert "brings it back" in (codex.reply("builder", "job-1.job") or "")


def test_a_stop_while_the_coder_works_puts_the_job_back_and_ends_the_coder(codex: Codex) -> None:
    """AP-11: a switch sends SIGTERM to a builder job; nothing is orphaned, nothing goes on editing."""
    begun = codex.state.parent / "begun"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'sleep 600 & echo $! > "{begun}"; wait')
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    process = codex.begin("builder")
    coders_child = int(wait_for(begun))
    os.kill(process.pid or 0, signal.SIGTERM)
    code = codex.join(process)

    assert code == -signal.SIGTERM
    assert codex.files("builder", "inbox") == ["job-1"]
    assert has_ended(coders_child)


def test_a_file_that_is_only_meant_to_be_added_is_stashed_like_the_others(codex: Codex) -> None:
    """Several coding agents say `git add -N`; git refuses to stash that, and the job lay in failed/ for good."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo new > fresh; git add -N fresh")

    waiting_release(codex)
    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert git(codex.repos[0], "show", "HEAD:fresh") == "new"
    assert is_clean(codex.repos[0])


def test_a_builder_that_runs_inside_a_git_hook_works_on_its_own_repositories(codex: Codex, tmp_path: Path) -> None:
    """A hook's variables win over the directory that is named, for every git the builder or the coder starts."""
    seen, shim = tmp_path / "seen", tmp_path / "bin" / "git"
    real = git(codex.repos[0], "--exec-path") + "/git"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nenv >> "{seen}"\nexec {real} "$@"\n')
    shim.chmod(stat.S_IRWXU)
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    codex.environment |= dict.fromkeys(REPOSITORY_VARIABLES, "/nonexistent") | {"PATH": path}
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes; git add notes")

    waiting_release(codex)
    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert commits(codex.repos[0]) == 2
    assert "/nonexistent" not in seen.read_text()
