"""Releases that are refused: nothing is committed, nothing is lost, and the case can still be decided."""

from __future__ import annotations

import stat

import pytest

from codex_helpers import (
    ALICE,
    DECISIONS,
    Codex,
    commits,
    git,
    is_clean,
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


def test_a_change_that_conflicts_leaves_the_repository_and_the_case_as_they_were(codex: Codex) -> None:
    """The stash is kept; after the person put it right the same command goes on, also with the other repository."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")
    (codex.repos[1] / "notes").write_text("rewritten\n")
    git(codex.repos[1], "commit", "-qam", "meanwhile")
    refused = codex.say("builder", "m-1", ALICE, "/freigeben")
    after = (is_clean(codex.repos[1]), text(codex.repos[1]), len(stashes(codex.repos[1])), commits(codex.repos[0]))
    done = codex.rows("pending_approval_repo", "done_at IS NOT NULL")
    git(codex.repos[1], "revert", "--no-edit", "HEAD")

    codex.say("builder", "m-2", ALICE, "/freigeben")

    assert f"does not fit {codex.repos[1]} (it conflicts in notes)" in refused
    assert after == (True, "rewritten\n", 1, 2)
    assert done == [(1,), (0,)]
    assert [commits(repo) for repo in codex.repos] == [2, 4]
    assert codex.stash_lists() == [[], []]
    assert codex.rows("pending_approval") == []


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
