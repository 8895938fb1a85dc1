"""Finished jobs that wait for a person's yes before their release."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from sqlalchemy import delete

from agentstate.approvals import views, workflows
from agentstate.approvals.models import PendingApprovalRepo
from agentstate.approvals.records import PendingApprovalRecord, PendingRepoRecord, RepoChange
from agentstate.approvals.repositories import PendingApprovals
from agentstate.db.database import Database
from agentstate.errors import (
    AlreadyPending,
    AlreadyReleased,
    ApprovalNotFound,
    ConstraintViolated,
    DuplicateRepo,
    InvalidIdentifier,
    InvalidValue,
    NothingToApprove,
    RepoNotFound,
    StartStillPending,
)
from builders import LATER, NOON, a_start, an_approval

STASH = "a" * 40
COMMIT = "b" * 40


def load(database: Database, job_id: str = "job-1") -> PendingApprovalRecord | None:
    """Load an approval in a unit of work of its own."""
    with database.read() as work:
        return workflows.load_pending_approval(work, job_id)


def test_an_approval_comes_back_with_its_repositories_ordered_by_path(database: Database) -> None:
    """AP-09: header and repositories are one record."""
    with database.write(now=NOON) as work:
        an_approval(work, repos=["/srv/two", RepoChange("/srv/one", STASH)])

    assert load(database) == PendingApprovalRecord(
        "job-1",
        "alice@bot.example",
        "Add a licence",
        NOON,
        None,
        None,
        (PendingRepoRecord("/srv/one", STASH, None, None), PendingRepoRecord("/srv/two", None, None, None)),
    )
    assert load(database, "job-2") is None


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("/srv/a b/", "/srv/a b"),
        ("/srv/x/../one", "/srv/one"),
        ("//srv///one/.", "/srv/one"),
        (PurePosixPath("/srv/one"), "/srv/one"),
        ("/", "/"),
    ],
)
def test_a_path_is_normalised_once_when_it_is_stored(
    database: Database, written: str | PurePosixPath, stored: str
) -> None:
    """AP-09: a trailing slash made a second repository of one."""
    with database.write() as work:
        workflows.save_pending_approval(work, "job-1", "alice", "m", [written])
        workflows.mark_repo_done(work, "job-1", written, COMMIT)

    found = load(database)
    assert found is not None
    assert [(repo.repo_dir, repo.commit_sha) for repo in found.repos] == [(stored, COMMIT)]


def test_a_relative_path_is_refused(database: Database) -> None:
    """It would mean another directory in another process."""
    with pytest.raises(InvalidIdentifier, match="repo_dir: 'one' is not an absolute path"), database.write() as work:
        an_approval(work, repos=["one"])


def test_an_approval_of_nothing_is_refused(database: Database) -> None:
    """AP-08: with nothing stashed there is nothing to say yes to."""
    with pytest.raises(NothingToApprove), database.write() as work:
        an_approval(work, repos=[])

    assert load(database) is None


def test_one_path_instead_of_a_list_is_refused(database: Database) -> None:
    """A text is a list of letters to Python, and 14 repositories named / to us."""
    with pytest.raises(InvalidValue, match="repos: must be a list"), database.write() as work:
        workflows.save_pending_approval(work, "job-1", "alice", "m", "/srv/one")


def test_the_same_repository_twice_is_refused_with_nothing_stored(database: Database) -> None:
    """AP-09: after normalising, so that a slash does not hide it."""
    with pytest.raises(DuplicateRepo) as caught, database.write() as work:
        an_approval(work, repos=["/srv/one", "/srv/one/"])

    assert caught.value.repo_dir == "/srv/one"
    assert load(database) is None


def test_a_second_repository_that_fails_leaves_no_header(database: Database) -> None:
    """AP-09: half a record decided which repositories were restored."""
    with database.change_schema() as connection:
        if database.backend == "sqlite":
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON pending_approval_repo WHEN new.repo_dir = '/srv/two' "
                "BEGIN SELECT RAISE(ABORT, 'refuse'); END"
            )
        else:
            connection.exec_driver_sql(
                "ALTER TABLE pending_approval_repo ADD CONSTRAINT refuse CHECK (repo_dir <> '/srv/two')"
            )

    with pytest.raises(ConstraintViolated, match="refuse"), database.write() as work:
        an_approval(work, repos=["/srv/one", "/srv/two", "/srv/three"])

    with database.read() as work:
        assert workflows.list_pending_approvals(work) == []
        assert PendingApprovals(work).all_repos() == []


def test_a_job_that_still_waits_for_its_start_is_refused(database: Database) -> None:
    """A job is in one place at a time."""
    with database.write() as work:
        a_start(work)

    with pytest.raises(StartStillPending), database.write() as work:
        an_approval(work)

    assert load(database) is None


def test_the_same_approval_again_changes_nothing(database: Database) -> None:
    """A builder that was killed after saving saves once more."""
    with database.write(now=NOON) as work:
        an_approval(work, repos=["/srv/one", RepoChange("/srv/two", STASH)])

    with database.write(now=LATER) as work:
        an_approval(work, repos=[RepoChange("/srv/two/", STASH), "/srv/one"])

    found = load(database)
    assert found is not None
    assert found.created_at == NOON


@pytest.mark.parametrize("other", [{"commit_message": "else"}, {"requested_by": "bob"}, {"repos": ["/srv/one"]}])
def test_another_approval_under_the_same_id_is_refused(database: Database, other: dict[str, object]) -> None:
    """The person's yes belongs to what they were shown."""
    with database.write() as work:
        an_approval(work)
    before = load(database)

    with pytest.raises(AlreadyPending), database.write() as work:
        an_approval(work, **other)  # type: ignore[arg-type]

    assert load(database) == before


def test_deleting_takes_the_repositories_along(database: Database) -> None:
    """RT-05: children left behind by a deleted parent."""
    with database.write() as work:
        an_approval(work, "job-1")
        an_approval(work, "job-2")

    with database.write() as work:
        answers = [PendingApprovals(work).delete("job-1") for _ in range(2)]

    with database.read() as work:
        assert answers == [True, False]
        assert {repo.job_id for repo in PendingApprovals(work).all_repos()} == {"job-2"}


def test_noting_a_released_repository_twice_changes_nothing(database: Database) -> None:
    """AP-02: a builder killed after the note notes once more."""
    with database.write() as work:
        an_approval(work)
    with database.write(now=NOON) as work:
        workflows.mark_repo_done(work, "job-1", "/srv/one", COMMIT)

    with database.write(now=LATER) as work:
        workflows.mark_repo_done(work, "job-1", "/srv/one", COMMIT)

    found = load(database)
    assert found is not None
    assert found.repos[0] == PendingRepoRecord("/srv/one", None, NOON, COMMIT)
    assert found.repos[1].done_at is None


def test_a_repository_is_released_as_one_commit_only(database: Database) -> None:
    """AP-02: another commit for a finished repository means that something ran twice."""
    with database.write() as work:
        an_approval(work)
        workflows.mark_repo_done(work, "job-1", "/srv/one", COMMIT)

    with pytest.raises(AlreadyReleased) as caught, database.write() as work:
        workflows.mark_repo_done(work, "job-1", "/srv/one", "c" * 40)

    assert caught.value.commit_sha == COMMIT


def test_noting_what_is_not_there_says_which_is_missing(database: Database) -> None:
    """An unknown job and an unknown repository are different mistakes."""
    with database.write() as work:
        an_approval(work)

    with pytest.raises(ApprovalNotFound), database.write() as work:
        workflows.mark_repo_done(work, "job-9", "/srv/one", COMMIT)
    with pytest.raises(RepoNotFound), database.write() as work:
        workflows.mark_repo_done(work, "job-1", "/srv/nine", COMMIT)


def test_a_record_without_repositories_reads_so(database: Database) -> None:
    """AP-08: other hands left a header alone; the record says so and invents no stash."""
    with database.write() as work:
        an_approval(work)
        work.session.execute(delete(PendingApprovalRepo))

    found = load(database)

    assert found is not None
    assert found.repos == ()


def test_open_cases_show_both_kinds_oldest_first(database: Database) -> None:
    """A person sees at a glance what waits for a yes, and what is being decided."""
    with database.write(now=LATER) as work:
        a_start(work, "job-1", body="\n  first line\nsecond line")
    with database.write(now=NOON) as work:
        an_approval(work, "job-2")
        workflows.claim_approval(work, "job-2", "alice")
        workflows.mark_repo_done(work, "job-2", "/srv/one", COMMIT)

    with database.read() as work:
        cases = views.open_cases(work)

    assert [(case.job_id, case.waits_for, case.summary) for case in cases] == [
        ("job-2", "release", "Add a licence"),
        ("job-1", "start", "first line"),
    ]
    assert (cases[0].claimed_by, cases[0].repos_done, cases[0].repos_total) == ("alice", 1, 2)
