"""Releases that are refused: nothing is committed, nothing is lost, and the case can still be decided."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from codex_helpers import (
    ALICE,
    DECISIONS,
    Codex,
    commits,
    git,
    is_clean,
    make_repo,
    push_stash,
    stashes,
    text,
    waiting_release,
    waiting_start,
)


def test_a_release_over_somebodys_changes_is_refused_until_they_are_gone(waiting: Codex) -> None:
    """A person's work in progress is neither overwritten nor committed; not one repository is released before."""
    (waiting.repos[1] / "notes").write_text("mine\n")
    refused = waiting.say("builder", "m-1", ALICE, "/freigeben")
    untouched = (text(waiting.repos[1]), [commits(repo) for repo in waiting.repos])
    git(waiting.repos[1], "checkout", "notes")

    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert f"{waiting.repos[1]} has changes that are not committed (notes)" in refused
    assert untouched == ("mine\n", [1, 1])
    assert [commits(repo) for repo in waiting.repos] == [2, 2]


def test_a_change_that_conflicts_leaves_the_repositories_and_the_case_as_they_were(codex: Codex) -> None:
    """Not one repository is released before; after the person put it right the same command goes on."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")
    (codex.repos[1] / "notes").write_text("rewritten\n")
    git(codex.repos[1], "commit", "-qam", "meanwhile")
    refused = codex.say("builder", "m-1", ALICE, "/freigeben")
    after = (is_clean(codex.repos[1]), text(codex.repos[1]), len(stashes(codex.repos[1])), commits(codex.repos[0]))
    git(codex.repos[1], "revert", "--no-edit", "HEAD")

    codex.say("builder", "m-2", ALICE, "/freigeben")

    assert f"does not fit {codex.repos[1]} (it conflicts in notes)" in refused
    assert after == (True, "rewritten\n", 1, 1)
    assert [commits(repo) for repo in codex.repos] == [2, 4]
    assert codex.stash_lists() == [[], []]
    assert codex.rows("pending_approval") == []


def test_with_a_git_that_cannot_tell_a_conflict_is_found_by_trying(waiting: Codex, tmp_path: Path) -> None:
    """git before 2.38; the repository is as it was, and the one before it is released and stays so."""
    shim = tmp_path / "bin" / "git"
    real = git(waiting.repos[0], "--exec-path") + "/git"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\ncase "$*" in *merge-tree*) exit 129; esac\nexec {real} "$@"\n')
    shim.chmod(stat.S_IRWXU)
    waiting.environment["PATH"] = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    (waiting.repos[1] / "notes").write_text("rewritten\n")
    git(waiting.repos[1], "commit", "-qam", "meanwhile")

    refused = waiting.say("builder", "m-1", ALICE, "/freigeben")
    after = (is_clean(waiting.repos[1]), text(waiting.repos[1]), len(stashes(waiting.repos[1])))
    git(waiting.repos[1], "revert", "--no-edit", "HEAD")
    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert f"does not fit {waiting.repos[1]} (it conflicts in notes)" in refused
    assert after == (True, "rewritten\n", 1)
    assert [commits(repo) for repo in waiting.repos] == [2, 4]
    assert waiting.rows("pending_approval") == []


def spoil(codex: Codex, how: str) -> None:
    """Make a release of the second repository impossible."""
    repo = codex.repos[1]
    if how == "missing":
        repo.rename(repo.with_name("away"))
    elif how == "unstashed":
        git(repo, "stash", "drop")
    else:
        (repo / "notes").write_text("rewritten\n")
        if how == "conflicting":
            git(repo, "commit", "-qam", "meanwhile")


@pytest.mark.parametrize("how", ["dirty", "conflicting", "unstashed", "missing"])
def test_a_release_that_is_refused_claims_nothing(waiting: Codex, how: str) -> None:
    """AP-11: the case read 'is being decided' for ever, and unfinished listed what nobody had begun."""
    before = waiting.rows("pending_approval")
    spoil(waiting, how)

    reply = waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert not reply.startswith("Released")
    assert str(waiting.repos[1]) in reply
    assert (waiting.rows("pending_approval"), waiting.unfinished()) == (before, [])
    assert commits(waiting.repos[0]) == 1


def test_a_discard_that_git_refuses_claims_nothing(waiting: Codex) -> None:
    """The directory is there, so its stash may be, too; the person may still release the job."""
    repo = waiting.repos[1]
    (repo / ".git").rename(repo / "git")
    refused = waiting.say("builder", "m-1", ALICE, "/verwerfen")
    unfinished = waiting.unfinished()
    (repo / "git").rename(repo / ".git")

    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert "not a git repository" in refused
    assert unfinished == []
    assert [commits(repo) for repo in waiting.repos] == [2, 2]


@pytest.mark.parametrize("killed_at", ["", "mark written"])
def test_a_case_whose_repository_does_not_exist_any_more_can_be_discarded(waiting: Codex, killed_at: str) -> None:
    """A checkout that was thrown away must not keep the case open; the reply says what it could not drop."""
    if killed_at:
        waiting.put("builder", "m-1", ALICE, "/freigeben")
        waiting.start("builder", AGENT_CODEX_KILL_AT=killed_at)
        waiting.path_of("builder", "processing", "m-1").unlink()
    shutil.rmtree(waiting.repos[1])

    reply = waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert f"{waiting.repos[0]}: its stash is dropped" in reply
    assert f"{waiting.repos[1]}: does not exist any more" in reply
    assert (stashes(waiting.repos[0]), waiting.rows("pending_approval")) == ([], [])


@pytest.mark.parametrize(("made_anew", "words"), [(False, ""), (True, " on no branch")])
def test_a_repository_that_is_gone_after_its_release_does_not_hold_up_the_others(
    waiting: Codex, made_anew: bool, words: str
) -> None:
    """AP-11: killed between the two, and the first needs nothing any more."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="repository noted as done")
    made = git(waiting.repos[0], "rev-parse", "HEAD")
    shutil.rmtree(waiting.repos[0])
    if made_anew:
        make_repo(waiting.repos[0])

    waiting.work_off("builder")

    assert f"{waiting.repos[0]}: commit {made[:12]}{words}\n" in (waiting.reply("builder", "m-1") or "")
    assert commits(waiting.repos[1]) == 2
    assert waiting.rows("pending_approval") == []


def test_a_change_that_does_not_fit_can_be_discarded(waiting: Codex) -> None:
    """Else the refused release would hold the case for ever."""
    for repo in waiting.repos:
        (repo / "notes").write_text("rewritten\n")
        git(repo, "commit", "-qam", "meanwhile")
    waiting.say("builder", "m-1", ALICE, "/freigeben")

    waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert waiting.rows("pending_approval") == []
    assert waiting.stash_lists() == [[], []]
    assert all(is_clean(repo) and text(repo) == "rewritten\n" for repo in waiting.repos)


def test_a_release_that_has_committed_something_cannot_be_discarded(waiting: Codex) -> None:
    """Half of an approved change would be in, the other half gone."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="committed")
    waiting.path_of("builder", "processing", "m-1").unlink()

    reply = waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert "is being decided already: /freigeben alice@bot.example since" in reply
    assert waiting.rows("pending_approval", "job_id") == [("job-1",)]
    assert [len(entries) for entries in waiting.stash_lists()] == [1, 1]


@pytest.mark.parametrize("command", DECISIONS)
def test_a_case_claimed_by_another_decision_is_left_to_it(codex: Codex, command: str) -> None:
    """Section 3: a reject or discard of a claimed case by somebody else gets AlreadyClaimed."""
    table = "start_pending" if command in DECISIONS[:2] else "pending_approval"
    (waiting_start if table == "start_pending" else waiting_release)(codex)
    codex.change(f"UPDATE {table} SET claimed_by = 'operator', claimed_at = '2026-09-05T12:00:00.000Z'")
    before = codex.rows(table)

    reply = codex.say("builder", "m-1", ALICE, f"{command} job-1")

    assert "is being decided already: /operator since 2026-09-05 12:00 UTC" in reply
    assert codex.rows(table) == before


def test_a_stash_that_is_gone_commits_nothing_and_the_case_can_be_closed(codex: Codex) -> None:
    """AP-06, AP-08: the entry was dropped by hand; another entry does not take its place."""
    push_stash(codex.repos[0], "somebody's own", "wrong\n")
    waiting_release(codex)
    git(codex.repos[0], "stash", "drop", "stash@{0}")

    refused = codex.say("builder", "m-1", ALICE, "/freigeben")
    after = [commits(repo) for repo in codex.repos]
    closed = codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert f"{codex.repos[0]}: no stash" in refused
    assert after == [1, 1]
    assert f"{codex.repos[0]}: no stash, nothing to drop" in closed
    assert codex.stash_lists() == [["On main: somebody's own"], []]
    assert codex.rows("pending_approval") == []


def test_a_case_without_repositories_reads_so_and_can_be_closed(codex: Codex) -> None:
    """AP-08: a record made by other hands with nothing stashed."""
    push_stash(codex.repos[0], "somebody's own")
    codex.change(
        "INSERT INTO pending_approval (job_id, requested_by, commit_message, created_at) "
        f"VALUES ('job-1', '{ALICE}', 'nothing', '2026-09-05T12:00:00.000Z')"
    )

    released = codex.say("builder", "m-1", ALICE, "/freigeben")
    discarded = codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert ("no stash" in released, "no stash" in discarded) == (True, True)
    assert stashes(codex.repos[0]) == ["On main: somebody's own"]
    assert codex.rows("pending_approval") == []


def test_a_hook_that_refuses_the_commit_is_quoted_and_nothing_is_left_applied(waiting: Codex) -> None:
    """A repository's own rules hold for the builder, too."""
    hook = waiting.repos[0] / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\necho trailing blanks >&2; exit 1\n")
    hook.chmod(stat.S_IRWXU)

    refused = waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert "trailing blanks" in refused
    assert is_clean(waiting.repos[0])
    assert [len(entries) for entries in waiting.stash_lists()] == [1, 1]
    assert waiting.rows("pending_approval", "job_id") == [("job-1",)]
