"""Every argument of every adapter function, given what it is not: refused by name, and the next call works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import InvalidValue
from builders import can_lock

VALID: dict[str, Any] = {
    "role": "worker",
    "sender": "alice@bot.example",
    "session_id": "s-1",
    "reply": "Hello",
    "notice": "I am a machine.",
    "job_id": "job-1",
    "requested_by": "alice@bot.example",
    "body": "do it",
    "by": "annehmen alice",
    "commit_message": "message",
    "repos": ["/srv/one"],
    "repo_dir": "/srv/one",
    "commit_sha": "b" * 40,
}

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "load_session": ("role", "sender"),
    "save_session": ("role", "sender", "session_id"),
    "reset_session": ("role", "sender"),
    "is_introduced": ("role", "sender"),
    "mark_introduced": ("role", "sender"),
    "add_first_reply_notice": ("role", "sender", "reply", "notice"),
    "save_start_pending": ("job_id", "sender", "requested_by", "body"),
    "load_start_pending": ("job_id",),
    "delete_start_pending": ("job_id",),
    "claim_start": ("job_id", "by"),
    "save_pending_approval": ("job_id", "requested_by", "commit_message", "repos"),
    "load_pending_approval": ("job_id",),
    "claim_approval": ("job_id", "by"),
    "mark_repo_done": ("job_id", "repo_dir", "commit_sha"),
    "delete_pending_approval": ("job_id",),
}

CASES = [(name, field) for name, fields in FUNCTIONS.items() for field in fields]
BAD = (None, 7, b"bytes", "\0", "\ud800")
JOBS = {"claim_approval": "job-2", "mark_repo_done": "job-2", "save_pending_approval": "job-3"}


@pytest.fixture
def prepared(database: Database) -> Database:
    """A start `job-1` and an approval `job-2` wait."""
    adapter.save_start_pending("job-1", "alice@bot.example", "alice@bot.example", "do it", database=database)
    adapter.save_pending_approval("job-2", "alice@bot.example", "message", ["/srv/one"], database=database)
    return database


@pytest.mark.parametrize(("name", "field"), CASES)
def test_an_argument_that_is_not_one_is_refused_by_its_name(prepared: Database, name: str, field: str) -> None:
    """VA-01, VA-02, CN-04: None was looked up as NULL, and a NULL was the driver's error and not the caller's."""
    function: Callable[..., object] = getattr(adapter, name)
    arguments = {needed: VALID[needed] for needed in FUNCTIONS[name]}
    if name in JOBS:
        arguments["job_id"] = JOBS[name]

    named = []
    for value in BAD:
        with pytest.raises(InvalidValue) as caught:
            function(**arguments | {field: value}, database=prepared)
        named.append(caught.value.field)

    assert named == [field] * len(BAD)
    assert adapter.unfinished(database=prepared) == []
    adapter.save_session("worker", "alice@bot.example", "the next call works", database=prepared)


@pytest.mark.parametrize("stash", ["stash@{0}", "HEAD", "a" * 39, "A" * 40, "", "a" * 41])
def test_only_a_whole_commit_id_names_a_stash(database: Database, stash: str) -> None:
    """AP-06: stash@{0} was remembered, another stash was pushed, and the wrong work was restored."""
    with pytest.raises(InvalidValue) as caught:
        adapter.save_pending_approval(
            "job-1", "alice", "message", [adapter.RepoChange("/srv/one", stash)], database=database
        )

    assert caught.value.field == "stash_commit"
    assert adapter.list_pending_approvals(database=database) == []


@pytest.mark.parametrize("repos", [None, 5, "/srv/one", Path("/srv/one"), b"/srv/one", [None], [5]])
def test_repositories_that_are_none_are_refused(database: Database, repos: Any) -> None:
    """A text is a list of letters to Python; None is no list."""
    with pytest.raises(InvalidValue) as caught:
        adapter.save_pending_approval("job-1", "alice", "message", repos, database=database)

    assert caught.value.field in ("repos", "repo_dir")


@pytest.mark.parametrize("target", [5, b"/srv/agent.db", object(), ""])
def test_a_database_that_is_none_is_refused(target: Any) -> None:
    """The first mistake of a new script."""
    with pytest.raises(InvalidValue) as caught:
        adapter.load_session("worker", "alice@bot.example", database=target)

    assert caught.value.field == "database"


@pytest.mark.parametrize(("repo_dir", "marker", "field"), [(None, "m", "repo_dir"), ("/srv", b"m", "marker")])
def test_a_stash_is_asked_for_with_a_path_and_a_text(repo_dir: Any, marker: Any, field: str) -> None:
    """Refused before git is run."""
    with pytest.raises(InvalidValue) as caught:
        adapter.find_stash_ref(repo_dir, marker)

    assert caught.value.field == field


def test_the_callers_generator_does_not_hold_the_lock(file_database: Database, path: Path) -> None:
    """A generator that asks git for each repository blocked every other writer, or waited for its own lock."""
    locked: list[bool] = []

    def repositories() -> Iterator[str]:
        locked.append(not can_lock(path))
        adapter.save_session("worker", "alice@bot.example", "written meanwhile", database=path)
        yield "/srv/one"

    adapter.save_pending_approval("job-1", "alice", "message", repositories(), database=path)

    assert locked == [False]
    assert [record.job_id for record in adapter.list_pending_approvals(database=path)] == ["job-1"]


@pytest.mark.parametrize("claim", ["claim_start", "claim_approval"])
def test_no_claim_is_as_old_as_the_oldest_age(prepared: Database, claim: str) -> None:
    """A very large age left the range of dates, as an OverflowError."""
    job = "job-1" if claim == "claim_start" else "job-2"

    record = getattr(adapter, claim)(job, "alice", timedelta.max, database=prepared)

    assert record.claimed_by == "alice"
