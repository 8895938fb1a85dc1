"""Requests that wait for a person's yes before they start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentstate.approvals import workflows
from agentstate.approvals.records import StartPendingRecord
from agentstate.approvals.repositories import StartsPending
from agentstate.db.database import Database
from agentstate.errors import AlreadyPending, InvalidValue
from builders import LATER, NOON, a_start, an_approval
from naughty import FREE_TEXT, NAUGHTY


def test_a_request_comes_back_as_it_was_made(database: Database) -> None:
    """What the person asked for is what the builder will do."""
    with database.write(now=NOON) as work:
        a_start(work, "job-1", "Alice@Bot.Example/phone", "worker", "do it")

    with database.read() as work:
        found = workflows.load_start_pending(work, "job-1")
        missing = workflows.load_start_pending(work, "job-2")
    assert found == StartPendingRecord("job-1", "alice@bot.example", "worker", "do it", NOON, None, None)
    assert missing is None


def test_the_same_request_again_changes_nothing(database: Database) -> None:
    """A role that was killed after saving saves once more."""
    with database.write(now=NOON) as work:
        a_start(work)

    with database.write(now=LATER) as work:
        a_start(work, sender="ALICE@bot.example/tablet")

    with database.read() as work:
        found = workflows.list_start_pending(work)
    assert [record.created_at for record in found] == [NOON]


@pytest.mark.parametrize("other", [{"body": "else"}, {"sender": "bob@bot.example"}, {"requested_by": "worker"}])
def test_another_request_under_the_same_id_is_refused(database: Database, other: dict[str, str]) -> None:
    """An id that means two things would start the wrong one."""
    with database.write() as work:
        a_start(work)

    with pytest.raises(AlreadyPending) as caught, database.write() as work:
        a_start(work, **other)

    assert (caught.value.job_id, caught.value.kind) == ("job-1", "start")
    with database.read() as work:
        found = workflows.load_start_pending(work, "job-1")
        assert found is not None
        assert found.body == "please add a licence"


def test_a_job_that_waits_for_its_release_cannot_wait_for_its_start(database: Database) -> None:
    """A job is in one place at a time."""
    with database.write() as work:
        an_approval(work, "job-1")

    with pytest.raises(AlreadyPending) as caught, database.write() as work:
        a_start(work, "job-1")

    assert caught.value.kind == "approval"


def test_requests_are_listed_oldest_first_and_by_sender(database: Database) -> None:
    """TM-06: in the order in which they were made, equal times by id."""
    with database.write(now=LATER) as work:
        a_start(work, "a-late", sender="bob@bot.example")
    with database.write(now=NOON) as work:
        a_start(work, "c-early")
        a_start(work, "b-early")

    with database.read() as work:
        everybody = [record.job_id for record in workflows.list_start_pending(work)]
        bob = [record.job_id for record in workflows.list_start_pending(work, "Bob@Bot.Example/x")]
    assert everybody == ["b-early", "c-early", "a-late"]
    assert bob == ["a-late"]


def test_deleting_says_whether_there_was_one(database: Database) -> None:
    """A second click must be told apart from the first."""
    with database.write() as work:
        a_start(work)

    with database.write() as work:
        answers = [StartsPending(work).delete("job-1") for _ in range(2)]

    assert answers == [True, False]


def test_a_body_of_any_text_comes_back_unchanged(database: Database) -> None:
    """VA-12: emoji, CJK, quotes, newlines and a megabyte."""
    bodies = [*FREE_TEXT, "👩‍👩‍👧 'quoted' \"twice\"\r\n" * 40_000]
    with database.write(now=NOON) as work:
        for number, body in enumerate(bodies):
            a_start(work, f"job-{number:03}", body=body)

    with database.read() as work:
        found = [record.body for record in workflows.list_start_pending(work)]
    assert found == bodies


def test_every_storable_id_is_its_own_job(database: Database) -> None:
    """VA-12, ID-05: `%` and `_` are letters, case and forms are distinct, and a look-up finds that row only."""
    names = [name for name in [*NAUGHTY, "job_1", "jobX1", "100%", "100x", "Job-1", "job-1"] if "/" not in name]
    with database.write() as work:
        for name in names:
            a_start(work, name, body=f"body of {name}")

    with database.read() as work:
        found = [workflows.load_start_pending(work, name) for name in names]
    assert [(record.job_id, record.body) for record in found if record] == [(n, f"body of {n}") for n in names]


@pytest.mark.parametrize("text", ["W\x00s", "half \ud83d"])
@pytest.mark.parametrize("field", ["body", "sender", "requested_by", "job_id"])
def test_what_cannot_be_stored_is_refused_by_name_and_the_next_call_works(
    database: Database, field: str, text: str
) -> None:
    """VA-01, VA-02: one such character lost the whole request to a driver's error."""
    with pytest.raises(InvalidValue) as caught, database.write() as work:
        a_start(work, **{field: text})

    assert caught.value.field == field
    with database.write() as work:
        a_start(work)
    with database.read() as work:
        assert len(workflows.list_start_pending(work)) == 1


def test_times_are_the_units_own(database: Database) -> None:
    """One use case happens at one instant."""
    with database.write(now=NOON + timedelta(microseconds=1_999)) as work:
        a_start(work)

    with database.read() as work:
        found = workflows.load_start_pending(work, "job-1")
    assert found is not None
    assert found.created_at == NOON + timedelta(milliseconds=1)
