"""What the tests of the roles start from: made once for the whole session, and copied for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_helpers import ALICE, Codex, upgraded_database


@pytest.fixture(scope="session")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded, empty database file."""
    return upgraded_database(tmp_path_factory.mktemp("upgraded") / "agent.db")


@pytest.fixture
def codex(tmp_path: Path, upgraded: Path) -> Codex:
    """Two repositories and two roles that have not done anything yet."""
    return Codex.make(tmp_path / "codex", upgraded)


@pytest.fixture(scope="session")
def finished_job(tmp_path_factory: pytest.TempPathFactory, upgraded: Path) -> Codex:
    """A job of Alice's, job-1, with a change in both repositories that waits for its release."""
    codex = Codex.make(tmp_path_factory.mktemp("finished"), upgraded)
    codex.say("builder", "job-1", ALICE, "notes: a line")
    codex.say("builder", "accept-job-1", ALICE, "/annehmen")
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]
    return codex


@pytest.fixture
def waiting(tmp_path: Path, finished_job: Codex) -> Codex:
    """The same as `finished_job`, for one test to release, discard or spoil."""
    return finished_job.copy(tmp_path / "codex")
