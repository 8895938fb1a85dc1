"""The memory file of a write-ahead log, read beside SQLite; what comes of it is in tests/test_doctor.py (FS-13)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agentstate.db.health import shm
from agentstate.db.health.log import LARGE, log_size, log_state
from db_helpers import holding, made


def index(file: Path) -> dict[str, Any]:
    """Read a memory file that this process does not use."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return shm.index(descriptor)
    finally:
        os.close(descriptor)


def test_readers_are_told_with_their_processes(path: Path) -> None:
    """FS-13: the kernel knows who holds the lock, and the file what each of them has seen."""
    made(path)

    with holding(path, "CREATE TABLE filler (content)", "BEGIN", "SELECT * FROM filler") as reader:
        found = index(Path(f"{path}-shm"))
        state = log_state(str(path))

    assert found["readers"] == [[reader.pid, found["frames"]]]
    assert found["backfilled"] < found["frames"]
    assert state is not None
    assert (state.pages, state.put_back) == (found["frames"], found["backfilled"])
    assert state.readers == ((reader.pid, found["frames"]),)


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "headers differ"), (b"x" * 136, "another version"), (bytes(136), "another version")]
)
def test_what_is_no_such_file_is_not_guessed_at(tmp_path: Path, content: bytes, says: str) -> None:
    """A later SQLite may lay it out in another way, and a killed one may have left it half written."""
    (tmp_path / "agent.db-shm").write_bytes(content)

    with pytest.raises(ValueError, match=says):
        index(tmp_path / "agent.db-shm")


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_where_nobody_can_be_told_the_size_alone_is(path: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are asked for in the words of one kernel; another one, or another file, is no reason to fail."""
    Path(f"{path}-shm").write_bytes(b"x" * 136)
    Path(f"{path}-wal").touch()
    os.truncate(f"{path}-wal", LARGE + 1)
    monkeypatch.setattr(sys, "platform", platform)

    (found,) = log_size(str(path), 4096)

    assert found.what == f"{path}-wal has 64.0 MiB"
