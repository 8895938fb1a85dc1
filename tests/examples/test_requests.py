"""The first yes: a request waits for it and nothing runs before; only the person whose case it is decides."""

from __future__ import annotations

import pytest

from codex_helpers import ALICE, BOB, DECISIONS, REQUEST, Codex, commits, is_clean, waiting_release, waiting_start


def test_a_request_waits_and_nothing_runs(codex: Codex) -> None:
    """Seed 000: a builder that edits at once would edit for anybody who can write to it."""
    reply = codex.say("builder", "job-1", "Alice@Bot.Example/phone", REQUEST)

    assert "/annehmen job-1" in reply
    assert codex.rows("start_pending", "job_id, sender, body") == [("job-1", ALICE, REQUEST)]
    assert all(is_clean(repo) for repo in codex.repos)


def test_accepting_puts_the_job_file_and_the_next_start_runs_it(codex: Codex) -> None:
    """Section 6: each start handles one file; the job file appears in the builder's queue and starts it again."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen job-1")

    codex.start("builder")
    accepted = codex.files("builder", "inbox")
    codex.start("builder")

    assert accepted == ["job-1"]
    assert codex.files("builder", "processing") == []
    assert codex.rows("start_pending") == []
    assert codex.rows("pending_approval", "job_id, requested_by, commit_message") == [
        ("job-1", ALICE, "Add a line to notes")
    ]


def test_rejecting_forgets_the_request(codex: Codex) -> None:
    """Seed 000: /ablehnen."""
    waiting_start(codex)

    reply = codex.say("builder", "m-1", ALICE, "/ablehnen job-1")

    assert "Rejected job-1" in reply
    assert codex.rows("start_pending") == []
    assert codex.files("builder", "processing") == []


@pytest.mark.parametrize("command", DECISIONS)
def test_somebody_elses_case_is_not_ones_own_to_decide(codex: Codex, command: str) -> None:
    """AP-05: with a shared or guessed id somebody else's record was resolved."""
    waiting_release(codex, "released")
    waiting_start(codex, "started")
    job_id = "started" if command in DECISIONS[:2] else "released"
    before = [codex.rows(table) for table in ("start_pending", "pending_approval", "pending_approval_repo")]

    reply = codex.say("builder", "m-1", BOB, f"{command} {job_id}")

    assert reply == f"{job_id} is not yours to decide; nothing was changed."
    assert before == [codex.rows(table) for table in ("start_pending", "pending_approval", "pending_approval_repo")]
    assert codex.stash_lists() == [["On main: [agentstate:released] Add a line to notes"]] * 2


@pytest.mark.parametrize("command", DECISIONS)
def test_a_device_of_the_same_person_may_decide_and_case_does_not_matter(codex: Codex, command: str) -> None:
    """AP-05, ID-01: identity is compared after normalisation."""
    if command in DECISIONS[:2]:
        waiting_start(codex)
    else:
        waiting_release(codex)

    codex.say("builder", "m-1", "ALICE@bot.example/tablet", f"{command.upper()}   job-1  ")

    assert "not yours" not in (codex.reply("builder", "m-1") or "")
    assert codex.rows("start_pending") == []


def test_without_an_id_a_command_means_the_one_open_case_of_its_sender(codex: Codex) -> None:
    """Section 6; a case of somebody else does not count."""
    waiting_start(codex, "job-1", ALICE)
    waiting_start(codex, "job-2", BOB)

    codex.say("builder", "m-1", ALICE, "/annehmen")
    codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert codex.rows("start_pending", "job_id") == [("job-2",)]
    assert codex.rows("pending_approval") == []


def test_without_an_id_several_open_cases_are_listed_and_none_is_decided(codex: Codex) -> None:
    """Section 6: a command never guesses which one is meant."""
    for job_id in ("job-1", "job-2"):
        waiting_start(codex, job_id, ALICE, f"{REQUEST} for {job_id}\nand more")

    reply = codex.say("builder", "m-1", ALICE, "/annehmen").splitlines()

    assert reply[1:] == [f"/annehmen {job_id} — notes: a line for {job_id}" for job_id in ("job-1", "job-2")]
    assert len(codex.rows("start_pending")) == 2


@pytest.mark.parametrize("command", DECISIONS)
@pytest.mark.parametrize("job_id", ["", " job-1"])
def test_a_decision_about_nothing_says_so(codex: Codex, command: str, job_id: str) -> None:
    """A second click, or a typing error."""
    reply = codex.say("builder", "m-1", ALICE, command + job_id)

    assert reply.startswith("No job")


@pytest.mark.parametrize("body", ["/hilfe", "/neu", "", " "])
def test_what_is_neither_a_request_nor_a_decision_is_answered_with_help(codex: Codex, body: str) -> None:
    """An unknown command must not become a request that somebody then accepts."""
    reply = codex.say("builder", "m-1", ALICE, body)

    assert "/freigeben ID" in reply
    assert codex.rows("start_pending") == []


@pytest.mark.parametrize("job_id", ["job 1 [x]", ".*+()[]%_\\", "Über-日本-🐟", "a]b"])
def test_ids_of_any_characters_go_all_the_way(codex: Codex, job_id: str) -> None:
    """AP-07: the id names a file, a marker, a trailer and a row."""
    waiting_release(codex, job_id)

    reply = codex.say("builder", "m-1", ALICE, f"/freigeben {job_id}")

    assert reply.startswith(f"Released {job_id}:")
    assert [commits(repo) for repo in codex.repos] == [2, 2]
    assert codex.stash_lists() == [[], []]


def test_a_request_with_the_id_of_an_open_job_is_refused(waiting: Codex) -> None:
    """AP-10: the open case keeps its meaning."""

    reply = waiting.say("builder", "job-1", ALICE, "something else")

    assert "is taken" in reply
    assert waiting.rows("start_pending") == []


def test_a_command_that_has_the_jobs_own_id_loses_no_job(codex: Codex) -> None:
    """Both would be the same queue file."""
    waiting_start(codex)
    refused = codex.say("builder", "job-1", ALICE, "/annehmen job-1")

    codex.say("builder", "m-1", ALICE, "/annehmen job-1")

    assert "cannot run now" in refused
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]
