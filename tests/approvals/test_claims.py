"""Deciding: one winner, no matter how many try, and nothing lost when the winner dies."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.approvals import workflows
from agentstate.approvals.records import UnfinishedRecord
from agentstate.db.database import Database
from agentstate.errors import (
    AlreadyClaimed,
    ApprovalNotFound,
    Forbidden,
    InvalidIdentifier,
    InvalidValue,
    NotFound,
    StartNotFound,
)
from builders import NOON, a_start, an_approval, finished, python

COMMIT = "b" * 40
HOUR = timedelta(hours=1)

CLAIM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from agentstate import adapter
from agentstate.errors import AlreadyClaimed
path, name, claim = sys.argv[1], sys.argv[2], getattr(adapter, sys.argv[3])
def decide(number):
    by = f"{('accept', 'reject')[number % 2]} {name}-{number}"
    try:
        claim("job-1", by, database=path)
        return by
    except AlreadyClaimed as error:
        return "lost to " + error.by
with ThreadPoolExecutor(10) as pool:
    print("\\n".join(pool.map(decide, range(10))))
"""


def test_a_claim_says_by_whom_and_since_when(database: Database) -> None:
    """The person who comes second must be told."""
    with database.write(now=NOON) as work:
        a_start(work)
        won = workflows.claim_start(work, "job-1", "builder alice")

    with pytest.raises(AlreadyClaimed) as caught, database.write(now=NOON + HOUR) as work:
        workflows.claim_start(work, "job-1", "builder bob")

    assert (won.claimed_by, won.claimed_at) == ("builder alice", NOON)
    assert (caught.value.job_id, caught.value.by, caught.value.at) == ("job-1", "builder alice", NOON)
    assert "2026-11-29 12:00:00 UTC" in str(caught.value)


def test_the_same_person_does_not_claim_twice(database: Database) -> None:
    """AP-01: a double click must not run the side effect twice."""
    with database.write() as work:
        an_approval(work)
        workflows.claim_approval(work, "job-1", "alice")

    with pytest.raises(AlreadyClaimed), database.write() as work:
        workflows.claim_approval(work, "job-1", "alice")


@pytest.mark.parametrize(
    ("age", "stale_after", "taken"),
    [
        (HOUR, None, False),
        (HOUR, HOUR + timedelta(milliseconds=1), False),
        (HOUR, HOUR, True),
        (HOUR, timedelta(minutes=59), True),
        (timedelta(0), timedelta(0), True),
        (-HOUR, timedelta(0), True),
        (-HOUR, timedelta(minutes=1), False),
    ],
)
def test_a_stale_claim_is_taken_over_and_a_fresh_one_is_not(
    database: Database, age: timedelta, stale_after: timedelta | None, taken: bool
) -> None:
    """AP-11: what a dead process claimed must not wait for ever; a living one must not be robbed."""
    with database.write(now=NOON) as work:
        an_approval(work)
        workflows.claim_approval(work, "job-1", "dead")
        workflows.mark_repo_done(work, "job-1", "/srv/one", COMMIT)

    try:
        with database.write(now=NOON + age) as work:
            found = workflows.claim_approval(work, "job-1", "alive", stale_after)
    except AlreadyClaimed:
        assert not taken
        return

    assert taken
    assert (found.claimed_by, found.claimed_at) == ("alive", NOON + age)
    assert [repo.commit_sha for repo in found.repos] == [COMMIT, None]


@pytest.mark.parametrize("stale_after", [timedelta(seconds=-1), 60])
def test_a_stale_after_that_is_no_age_is_refused(database: Database, stale_after: timedelta) -> None:
    """Seconds are easily passed as a number, and a negative age would rob the living."""
    with database.write() as work:
        a_start(work)

    with pytest.raises(InvalidValue) as caught, database.write() as work:
        workflows.claim_start(work, "job-1", "alice", stale_after)

    assert caught.value.field == "stale_after"


def test_nobody_is_not_a_claimant(database: Database) -> None:
    """A claim without a name tells the next person nothing."""
    with database.write() as work:
        a_start(work)

    with pytest.raises(InvalidIdentifier) as caught, database.write() as work:
        workflows.claim_start(work, "job-1", " ")

    assert caught.value.field == "by"


def test_somebody_elses_job_is_not_theirs_to_decide(database: Database) -> None:
    """AP-05: with a shared or guessed id, another sender's record was resolved."""
    with database.write() as work:
        a_start(work, "job-1")
        an_approval(work, "job-2")

    with pytest.raises(Forbidden) as start, database.write() as work:
        workflows.claim_start(work, "job-1", "accept", sender="Mallory@Bot.Example/phone")
    with pytest.raises(Forbidden) as release, database.write() as work:
        workflows.claim_approval(work, "job-2", "release", sender="mallory@bot.example")

    assert start.value.who == release.value.who == "mallory@bot.example"
    with database.write() as work:
        assert workflows.unfinished(work) == []
        assert workflows.claim_start(work, "job-1", "accept", sender=" ALICE@bot.example/x").claimed_by == "accept"
        assert workflows.claim_approval(work, "job-2", "release", sender="alice@bot.example").claimed_by == "release"


def test_what_is_not_there_cannot_be_claimed(database: Database) -> None:
    """Decided and gone, or never there: the same answer, and no row is made."""
    with pytest.raises(StartNotFound), database.write() as work:
        workflows.claim_start(work, "job-1", "alice")
    with pytest.raises(ApprovalNotFound) as caught, database.write() as work:
        workflows.claim_approval(work, "job-1", "alice")

    assert isinstance(caught.value, NotFound)
    with database.read() as work:
        assert workflows.unfinished(work) == []


@pytest.mark.parametrize("claim", ["claim_start", "claim_approval"])
def test_of_twenty_threads_and_two_processes_one_decides(file_database: Database, path: Path, claim: str) -> None:
    """AP-01: a double click or two operators: the side effect ran twice, or an approval became a denial."""
    with file_database.write() as work:
        a_start(work) if claim == "claim_start" else an_approval(work)
    processes = [python(CLAIM, path, f"process-{number}", claim) for number in range(2)]

    def decide(number: int) -> str:
        by = f"thread-{number}"
        try:
            getattr(adapter, claim)("job-1", by, database=path)
            return by
        except AlreadyClaimed as error:
            return f"lost to {error.by}"

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(decide, range(20)))
    for process in processes:
        answers += finished(process).splitlines()

    winners = [answer for answer in answers if not answer.startswith("lost to ")]
    assert len(answers) == 40
    assert len(winners) == 1
    assert Counter(answers) == {winners[0]: 1, f"lost to {winners[0]}": 39}


def test_twenty_threads_release_one_approval_once(database: Database) -> None:
    """AP-02: one winner, nineteen told who it is."""
    with database.write() as work:
        an_approval(work)

    def release(number: int) -> str:
        try:
            with database.write() as work:
                return str(workflows.claim_approval(work, "job-1", f"thread-{number}").claimed_by)
        except AlreadyClaimed as error:
            return f"lost to {error.by}"

    with ThreadPoolExecutor(20) as pool:
        answers = Counter(pool.map(release, range(20)))

    (winner,) = (answer for answer in answers if not answer.startswith("lost to "))
    assert answers == {winner: 1, f"lost to {winner}": 19}


def test_the_recovery_listing_shows_each_state_once_and_changes_nothing(database: Database) -> None:
    """AP-11: a service switch left a job orphaned, to be found by hand."""
    with database.write(now=NOON) as work:
        a_start(work, "waiting")
        a_start(work, "claimed-start")
        an_approval(work, "open")
        an_approval(work, "claimed-release")
        an_approval(work, "half-released")
        workflows.claim_start(work, "claimed-start", "alice")
        workflows.claim_approval(work, "claimed-release", "bob")
        workflows.claim_approval(work, "half-released", "bob")
        workflows.mark_repo_done(work, "half-released", "/srv/one", COMMIT)

    with database.read() as work:
        first, second = (workflows.unfinished(work) for _ in range(2))

    assert first == second
    assert first == [
        UnfinishedRecord("start", "claimed-start", "alice", NOON, 0, 0),
        UnfinishedRecord("approval", "claimed-release", "bob", NOON, 0, 2),
        UnfinishedRecord("approval", "half-released", "bob", NOON, 1, 2),
    ]


def test_a_release_without_a_claim_is_still_listed(database: Database) -> None:
    """AP-11: partly released is unfinished, whoever did it."""
    with database.write(now=NOON) as work:
        an_approval(work)
        workflows.mark_repo_done(work, "job-1", "/srv/two", COMMIT)

    with database.read() as work:
        assert workflows.unfinished(work) == [UnfinishedRecord("approval", "job-1", None, None, 1, 2)]
