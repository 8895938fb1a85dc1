"""The second yes: each repository is committed once, and a no drops the job's stashes and no others."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from codex_helpers import ALICE, Codex, commits, git, is_clean, push_stash, stashes, text, waiting_release


def test_a_release_commits_each_repository_and_leaves_nothing(codex: Codex) -> None:
    """Seed 000: /freigeben; the row is there until the end and never after."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")

    reply = codex.say("builder", "m-1", ALICE, "/freigeben").splitlines()

    heads = [git(repo, "rev-parse", "HEAD") for repo in codex.repos]
    assert reply[1:] == [f"  {repo}: commit {sha[:12]} on main" for repo, sha in zip(codex.repos, heads, strict=True)]
    assert [git(repo, "show", "--format=", "--name-only") for repo in codex.repos] == ["fresh\nnotes"] * 2
    assert (codex.rows("pending_approval"), codex.rows("pending_approval_repo")) == ([], [])
    assert codex.stash_lists() == [[], []]
    assert all(is_clean(repo) for repo in codex.repos)


@pytest.mark.parametrize(("checkout", "words"), [("-bside", "on side"), ("--detach", "on no branch")])
def test_a_release_says_which_branch_it_committed_to(waiting: Codex, checkout: str, words: str) -> None:
    """It is whichever is checked out at the /freigeben, days after the job: nobody should have to guess."""
    git(waiting.repos[0], "checkout", "--quiet", checkout)

    reply = waiting.say("builder", "m-1", ALICE, "/freigeben")

    commit = git(waiting.repos[0], "rev-parse", "HEAD")
    assert f"{waiting.repos[0]}: commit {commit[:12]} {words}\n" in reply


def test_a_discard_drops_the_jobs_stashes_and_no_other(codex: Codex) -> None:
    """AP-06: positions moved since; somebody's own stashes above and below stay."""
    push_stash(codex.repos[0], "older")
    waiting_release(codex)
    push_stash(codex.repos[0], "newer")

    reply = codex.say("builder", "m-1", ALICE, "/verwerfen job-1")

    assert reply.startswith("Discarded job-1:")
    assert codex.stash_lists() == [["On main: newer", "On main: older"], []]
    assert codex.rows("pending_approval") == []
    assert [commits(repo) for repo in codex.repos] == [1, 1]


def test_a_release_applies_the_jobs_stash_and_no_other(waiting: Codex) -> None:
    """AP-06: another stash was pushed, and the wrong work was restored."""
    push_stash(waiting.repos[0], "newer", "wrong\n")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert text(waiting.repos[0]) == "first\na line\n"
    assert waiting.stash_lists() == [["On main: newer"], []]


def test_a_stash_pushed_at_the_moment_of_the_drop_is_not_dropped(waiting: Codex, tmp_path: Path) -> None:
    """AP-06: git drops by position, and a person's push moves positions between looking and dropping."""
    repo, once, shim = waiting.repos[0], tmp_path / "once", tmp_path / "bin" / "git"
    real = git(repo, "--exec-path") + "/git"
    shim.parent.mkdir()
    shim.write_text(f"""#!/bin/sh
        case "$*" in *"{repo} "*"stash drop"*)
            if ! test -e "{once}"; then
                echo precious > "{repo}/notes"
                {real} -C "{repo}" stash push -q -m precious
                echo > "{once}"
            fi
        esac
        exec {real} "$@"
    """)
    shim.chmod(stat.S_IRWXU)
    waiting.environment["PATH"] = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"

    waiting.say("builder", "m-1", ALICE, "/verwerfen")

    assert waiting.stash_lists() == [["On main: precious"], []]
    assert git(repo, "show", "stash@{0}:notes") == "precious"


def test_a_record_without_stash_commits_is_released_by_its_marker(waiting: Codex) -> None:
    """Seed 000: records from before the commit ids were kept."""
    waiting.change("UPDATE pending_approval_repo SET stash_commit = NULL")
    push_stash(waiting.repos[0], "quotes [agentstate:job-1] only", "wrong\n")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert [text(repo) for repo in waiting.repos] == ["first\na line\n"] * 2
    assert waiting.stash_lists() == [["On main: quotes [agentstate:job-1] only"], []]


def test_a_change_that_is_in_head_already_is_done_without_an_empty_commit(waiting: Codex) -> None:
    """Somebody made the same change by hand while the case waited."""
    (waiting.repos[0] / "notes").write_text("first\na line\n")
    git(waiting.repos[0], "commit", "-qam", "the same by hand")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert [commits(repo) for repo in waiting.repos] == [2, 2]
    assert waiting.rows("pending_approval") == []
    assert waiting.stash_lists() == [[], []]


def test_a_change_goes_on_top_of_what_was_committed_meanwhile(waiting: Codex) -> None:
    """A case may wait for days; other files have moved on."""
    (waiting.repos[0] / "other").write_text("meanwhile\n")
    git(waiting.repos[0], "add", "other")
    git(waiting.repos[0], "commit", "-qm", "meanwhile")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert commits(waiting.repos[0]) == 3
    assert text(waiting.repos[0]) == "first\na line\n"


def test_an_old_commit_of_a_reused_job_id_is_not_taken_for_the_new_one(waiting: Codex) -> None:
    """AP-10: recognised by id alone, the second change would be dropped unreleased."""
    waiting.say("builder", "m-1", ALICE, "/freigeben")

    waiting_release(waiting, body="notes: another line")
    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert text(waiting.repos[0]) == "first\na line\nanother line\n"
    assert commits(waiting.repos[0]) == 3


def test_a_stop_during_a_commit_lets_git_finish_and_loses_nothing(waiting: Codex) -> None:
    """AP-11: git killed half way would leave a lock that a person has to remove."""
    hook = waiting.repos[0] / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text('#!/bin/sh\nkill -TERM $(cut -d " " -f 4 /proc/$PPID/stat); sleep 0.1\n')
    hook.chmod(stat.S_IRWXU)
    waiting.put("builder", "m-1", ALICE, "/freigeben")

    code = waiting.start("builder")
    after = (commits(waiting.repos[0]), waiting.files("builder", "inbox"))
    waiting.work_off("builder")

    assert code == -signal.SIGTERM
    assert after == (2, ["m-1"])
    assert [commits(repo) for repo in waiting.repos] == [2, 2]
    assert waiting.rows("pending_approval") == []


def test_a_commit_made_before_a_kill_is_recognised_under_newer_ones(waiting: Codex) -> None:
    """AP-11: looked for by its contents, the change would be applied to what a person has made of it since."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="committed")
    made = git(waiting.repos[0], "rev-parse", "HEAD")
    (waiting.repos[0] / "notes").write_text("a better line\n")
    git(waiting.repos[0], "commit", "-qam", "polished")

    waiting.work_off("builder")

    assert f"{waiting.repos[0]}: commit {made[:12]}" in (waiting.reply("builder", "m-1") or "")
    assert text(waiting.repos[0]) == "a better line\n"
    assert [commits(repo) for repo in waiting.repos] == [3, 2]


def test_what_a_person_wrote_over_an_interrupted_release_is_put_aside_and_named(waiting: Codex) -> None:
    """AP-11: the half-applied state is ours to finish; what else lies there by then is not ours to lose."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="stash applied")
    (waiting.repos[0] / "notes").write_text("precious\n")

    waiting.work_off("builder")

    reply = waiting.reply("builder", "m-1") or ""
    aside = reply.split("git stash apply ")[1].split("'")[0]
    assert git(waiting.repos[0], "show", f"{aside}:notes") == "precious"
    assert text(waiting.repos[0]) == "first\na line\n"
    assert stashes(waiting.repos[0]) == []


def test_a_command_without_an_id_means_the_same_case_when_it_is_taken_up_again(codex: Codex) -> None:
    """AP-11: the case it meant is decided by now, and another one is the only open one."""
    waiting_release(codex, "job-1")
    codex.put("builder", "m-1", ALICE, "/verwerfen")
    codex.start("builder", AGENT_CODEX_KILL_AT="approval deleted")
    os.rename(codex.path_of("builder", "processing", "m-1"), codex.state / "held back")
    waiting_release(codex, "job-2")
    os.rename(codex.state / "held back", codex.path_of("builder", "processing", "m-1"))

    codex.work_off("builder")

    assert codex.rows("pending_approval", "job_id") == [("job-2",)]
    assert (codex.reply("builder", "m-1") or "").startswith("Discarded job-1:")
