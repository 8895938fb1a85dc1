"""What scripts call: the table of functions, through the environment, with plain values."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import is_dataclass
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.approvals.stash import marker_for
from agentstate.db.database import Database
from agentstate.errors import (
    AlreadyClaimed,
    AlreadyPending,
    Conflict,
    DatabaseMissing,
    DatabaseNotConfigured,
    InvalidSetting,
    InvalidValue,
    NotFound,
    NothingToApprove,
)
from builders import finished, python, sql

COMMIT = "b" * 40


@pytest.fixture
def configured(file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database at head, named by AGENT_DB_PATH as a service's environment does."""
    monkeypatch.setenv("AGENT_DB_PATH", str(path))
    return path


def test_sessions_are_loaded_saved_and_reset(configured: Path) -> None:
    """load_session, save_session, reset_session."""
    before = adapter.load_session("worker", "alice@bot.example")
    saved = adapter.save_session("worker", "Alice@bot.example/phone", "s-1")  # type: ignore[func-returns-value]
    adapter.save_session("worker", "alice@bot.example", "s-2")
    loaded = adapter.load_session("worker", "alice@bot.example")
    resets = [adapter.reset_session("worker", "alice@bot.example") for _ in range(2)]

    assert (before, saved, loaded, resets) == (None, None, "s-2", [True, False])
    assert sql(configured, "SELECT count(*) FROM sessions") == [(0,)]


def test_introductions_are_marked_once_and_the_notice_marks_nothing(configured: Path) -> None:
    """is_introduced, mark_introduced, add_first_reply_notice."""
    first = adapter.add_first_reply_notice("worker", "a@b", "Hello", "I am a machine.")
    unmarked = adapter.is_introduced("worker", "a@b")
    marks = [adapter.mark_introduced("worker", "a@b") for _ in range(2)]
    later = adapter.add_first_reply_notice("worker", "a@b", "Hello", "I am a machine.")

    assert (first, unmarked) == ("I am a machine.\n\nHello", False)
    assert marks == [True, False]
    assert (adapter.is_introduced("worker", "a@b"), later) == (True, "Hello")
    assert adapter.is_introduced("builder", "a@b") is False


def test_a_reset_keeps_the_introduction(configured: Path) -> None:
    """reset_session deletes the session and nothing else."""
    adapter.save_session("worker", "a@b", "s-1")
    adapter.mark_introduced("worker", "a@b")

    adapter.reset_session("worker", "a@b")

    assert adapter.is_introduced("worker", "a@b")


def test_requests_wait_and_are_claimed_and_deleted(configured: Path) -> None:
    """save_start_pending, load_start_pending, list_start_pending, claim_start, delete_start_pending."""
    adapter.save_start_pending("job-1", "a@b", "worker", "do it")
    adapter.save_start_pending("job-1", "a@b", "worker", "do it")
    with pytest.raises(AlreadyPending):
        adapter.save_start_pending("job-1", "a@b", "worker", "do something else")
    loaded = adapter.load_start_pending("job-1")
    claimed = adapter.claim_start("job-1", "builder")

    assert loaded is not None
    assert (loaded.sender, loaded.requested_by, loaded.body, loaded.claimed_by) == ("a@b", "worker", "do it", None)
    assert loaded.created_at.tzinfo is UTC
    assert claimed.claimed_by == "builder"
    with pytest.raises(AlreadyClaimed):
        adapter.claim_start("job-1", "somebody", timedelta(hours=1))
    assert [record.job_id for record in adapter.list_start_pending()] == ["job-1"]
    assert adapter.list_start_pending("c@d") == []
    assert [adapter.delete_start_pending("job-1") for _ in range(2)] == [True, False]
    with pytest.raises(NotFound):
        adapter.claim_start("job-1", "builder")


def test_releases_wait_and_are_claimed_done_and_deleted(configured: Path) -> None:
    """save_pending_approval, load, list, claim_approval, mark_repo_done, unfinished, delete_pending_approval."""
    repos: list[str | adapter.RepoChange] = ["/srv/two/", adapter.RepoChange("/srv/one", "a" * 40)]
    adapter.save_pending_approval("job-1", "a@b", "message", repos)
    shown = sql(configured, "SELECT * FROM pending_approval")
    loaded = adapter.load_pending_approval("job-1")
    adapter.claim_approval("job-1", "releasing")
    adapter.mark_repo_done("job-1", "/srv/one", COMMIT)
    left = adapter.unfinished()

    assert [row[:3] for row in shown] == [("job-1", "a@b", "message")]
    assert loaded is not None
    assert [(repo.repo_dir, repo.stash_commit) for repo in loaded.repos] == [("/srv/one", "a" * 40), ("/srv/two", None)]
    assert [(row.kind, row.job_id, row.claimed_by, row.repos_done, row.repos_total) for row in left] == [
        ("approval", "job-1", "releasing", 1, 2)
    ]
    with pytest.raises(AlreadyClaimed):
        adapter.claim_approval("job-1", "discarding")
    assert [record.job_id for record in adapter.list_pending_approvals()] == ["job-1"]
    assert [adapter.delete_pending_approval("job-1") for _ in range(2)] == [True, False]
    assert sql(configured, "SELECT (SELECT count(*) FROM pending_approval) + count(*) FROM pending_approval_repo") == [
        (0,)
    ]


def test_what_contradicts_itself_is_refused_whole(configured: Path) -> None:
    """save_pending_approval: nothing, the same repository twice, a job that still waits for its start."""
    adapter.save_start_pending("job-1", "a@b", "worker", "do it")

    with pytest.raises(NothingToApprove):
        adapter.save_pending_approval("job-2", "a@b", "message", [])
    with pytest.raises(Conflict):
        adapter.save_pending_approval("job-2", "a@b", "message", ["/srv/one", "/srv/one"])
    with pytest.raises(Conflict):
        adapter.save_pending_approval("job-1", "a@b", "message", ["/srv/one"])

    assert adapter.list_pending_approvals() == []


def test_values_are_plain(configured: Path) -> None:
    """No ORM object crosses the adapter: what comes back outlives the database and pickles."""
    import pickle

    adapter.save_start_pending("job-1", "a@b", "worker", "do it")
    adapter.save_pending_approval("job-2", "a@b", "message", ["/srv/one"])
    found = [*adapter.list_start_pending(), *adapter.list_pending_approvals()]

    assert pickle.loads(pickle.dumps(found)) == found
    for record in found:
        assert is_dataclass(record)
        assert not hasattr(record, "__dict__")
        with pytest.raises(AttributeError):
            setattr(record, "job_id", "other")  # noqa: B010  (a frozen record refuses any assignment)


def test_the_database_can_be_named_by_path_url_or_handle(file_database: Database, path: Path) -> None:
    """`database=` in each of its forms means the same file."""
    adapter.save_session("worker", "a@b", "s-1", database=path)

    found = [
        adapter.load_session("worker", "a@b", database=target)
        for target in (path, str(path), f"sqlite:///{path}", file_database)
    ]

    assert found == ["s-1"] * 4


def test_without_a_database_one_sentence_names_the_variable() -> None:
    """Not configured is the first thing that a new user meets."""
    with pytest.raises(DatabaseNotConfigured, match="set AGENT_DB_PATH"):
        adapter.load_session("worker", "a@b")


def test_two_variables_that_differ_are_refused(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing would split one memory into two."""
    monkeypatch.setenv("AGENT_DB_URL", f"sqlite:///{configured}")
    adapter.save_session("worker", "a@b", "s-1")

    monkeypatch.setenv("AGENT_DB_URL", "sqlite:////elsewhere/agent.db")

    with pytest.raises(InvalidSetting, match="AGENT_DB_PATH and AGENT_DB_URL"):
        adapter.load_session("worker", "a@b")


def test_a_missing_database_says_how_to_make_it_and_is_not_made(tmp_path: Path) -> None:
    """A script never creates a store: a wrong path would look like an empty memory."""
    missing = tmp_path / "nowhere.db"

    with pytest.raises(DatabaseMissing, match="agentstate upgrade"):
        adapter.load_session("worker", "a@b", database=missing)

    assert not missing.exists()


def test_a_relative_path_means_the_file_of_the_moment(
    file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After chdir() the same text is another file, and must not reach the one opened before."""
    monkeypatch.chdir(path.parent)
    adapter.save_session("worker", "a@b", "s-1", database=path.name)

    monkeypatch.chdir("/")

    with pytest.raises(DatabaseMissing):
        adapter.load_session("worker", "a@b", database=path.name)


def test_bad_input_is_named_before_anything_is_written(configured: Path) -> None:
    """CN-04: the next call works."""
    with pytest.raises(InvalidValue) as caught:
        adapter.save_pending_approval("job-1", "a@b", "message\0", ["/srv/one"])
    adapter.save_pending_approval("job-1", "a@b", "message", ["/srv/one"])

    assert caught.value.field == "commit_message"
    assert len(adapter.list_pending_approvals()) == 1


def test_a_stash_is_found_by_its_marker(tmp_path: Path) -> None:
    """find_stash_ref, on a real repository."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "file").write_text("two\n")
    git("stash", "push", "-m", marker_for("job-10"))

    assert adapter.find_stash_ref(tmp_path, marker_for("job-10")) == "stash@{0}"
    assert adapter.find_stash_ref(str(tmp_path), marker_for("job-1")) is None


def test_importing_the_adapter_loads_no_sqlalchemy() -> None:
    """A cold start is the product's cost: a script that asks nothing pays nothing."""
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import agentstate.adapter"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "agentstate.adapter" in found.stderr
    assert "sqlalchemy" not in found.stderr
    assert "alembic" not in found.stderr


@pytest.mark.parametrize(
    ("call", "tables"),
    [
        ("adapter.load_session('worker', 'a@b')", {"sessions", "introductions"}),
        ("adapter.list_start_pending()", {"start_pending", "pending_approval", "pending_approval_repo"}),
    ],
)
def test_one_call_maps_one_area_and_never_loads_alembic(configured: Path, call: str, tables: set[str]) -> None:
    """Mapping everything costs every script what only one needs."""
    code = (
        "import sys\nfrom agentstate import adapter\n"
        f"{call}\n"
        "from agentstate.db.base import Base\n"
        "print(sorted(Base.metadata.tables), 'alembic' in sys.modules, 'click' in sys.modules, 'rich' in sys.modules)"
    )

    output = finished(python(code, AGENT_DB_PATH=str(configured)))

    assert output == f"{sorted(tables)} False False False\n"
