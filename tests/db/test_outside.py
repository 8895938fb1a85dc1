"""Asking another process about a file, the kernel about its users, and a file's name about its maker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentstate.db import outside, seal
from agentstate.db.database import Database
from agentstate.db.openers import openers
from agentstate.db.unfinished import abandoned, unfinished, waiting_to_replace
from agentstate.errors import DatabaseUnavailable
from builders import finished, python
from db_helpers import holding, made


def test_where_no_process_can_be_started_the_answer_is_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid it, and a backup is to be verified there too."""
    made(path)
    with holding(path, "SELECT count(*) FROM sessions"):
        expected = openers(str(path))

        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        found = openers(str(path))

    assert found == expected != []
    assert outside.ask(seal.__file__, str(path), seal.state) == "none"


def test_a_file_that_is_open_here_is_not_read_here(file_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-11: rather no answer than this process's locks."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with pytest.raises(DatabaseUnavailable, match="no process can be started"):
        outside.ask(seal.__file__, str(file_database.path), seal.state)


def test_what_the_other_process_says_at_its_end_is_told(tmp_path: Path) -> None:
    """'exit code 1' helps nobody."""
    with pytest.raises(DatabaseUnavailable, match="cannot be told: No such file or directory"):
        openers(str(tmp_path / "absent"))


def test_only_what_a_dead_process_of_this_machine_was_making_is_abandoned(tmp_path: Path) -> None:
    """FS-08: what looks left behind may be in the making, here or on another machine of the same directory."""
    dead = finished(python("import os; print(os.getpid())")).strip()
    here = os.uname().nodename
    names = {
        f"x.partial-{here}-{dead}": True,
        f"x.partial-{here}-{dead}-journal": True,
        f"x.restoring-{here}-{dead}": False,  # asked for the other kind
        f"x.partial-elsewhere-{dead}": False,
        f"x.partial-{here}-1": False,
        f"x.partial-{here}-{'9' * 30}": False,  # no number of a process, so nobody's to delete
        f"x.partial-{dead}": False,
        "x.partial": False,
        os.path.basename(unfinished(str(tmp_path / "x"), "partial")): False,
    }

    assert {name: abandoned(name, "partial") for name in names} == names


def test_a_directory_that_cannot_be_listed_has_nothing_waiting(tmp_path: Path) -> None:
    """The error that matters is the one about the directory."""
    assert waiting_to_replace(str(tmp_path / "absent" / "agent.db")) == []
