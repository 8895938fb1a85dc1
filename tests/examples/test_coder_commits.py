"""A coder that commits, or goes to another branch, by itself: that is no way around the second yes."""

from __future__ import annotations

from codex_helpers import ALICE, Codex, commits, git, text, waiting_release, waiting_start


def test_a_coder_that_leaves_another_branch_is_reported(codex: Codex) -> None:
    """Its change would be committed to a branch that nobody chose; a branch is not moved by us."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "git checkout -q -b own")
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "was left on refs/heads/own" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_commits_that_a_coder_makes_by_itself_wait_for_the_yes_as_well(codex: Codex) -> None:
    """Several coding agents commit what they did; that must not be a way around the approval."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes; git commit -qam 'done it'")

    waiting_release(codex)
    before = (commits(codex.repos[0]), text(codex.repos[0]))
    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert before == (1, "first\n")
    assert (commits(codex.repos[0]), text(codex.repos[0])) == (2, "first\nmore\n")
