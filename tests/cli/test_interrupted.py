"""A person who presses Ctrl-C, or types nothing at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from agentstate.cli.main import run
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import InvalidSetting, InvalidValue
from agentstate.settings import configured_target
from builders import NOON, a_session, agentstate, sql


def writing(target: str) -> bool:
    """Return whether somebody has written to the target and not committed yet."""
    if "://" not in target:
        return Path(f"{target}-wal").exists() and Path(f"{target}-wal").stat().st_size > 200_000
    with psycopg.connect(target, autocommit=True) as connection:
        busy = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
        row = connection.execute(busy).fetchone()
        return row is not None and row[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "server"])
def test_an_interrupted_copy_stops_in_one_word_and_leaves_the_target_empty(
    kind: str, file_database: Database, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The transaction was rolled back, and a traceback of ninety lines said something else."""
    with file_database.write(now=NOON) as work:
        for number in range(40_000):
            a_session(work, sender=f"sender-{number}")
    target = str(tmp_path / "target.db")
    if kind == "server":
        target = request.getfixturevalue("server_url")
    else:
        with Database.open(target, "rwc") as database:
            upgrade(database)

    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", "copy", str(path), target],
        env={name: value for name, value in os.environ.items() if not name.startswith("AGENT")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not writing(target):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors.split() == ["agentstate:", "stopped"]
    with Database.open(target) as database, database.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 0


@pytest.mark.parametrize("arguments", [[], ["approvals", "bogus"], ["copy"]])
def test_a_command_line_that_says_too_little_is_answered_readably(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing that a new user types is `agentstate` alone."""
    code = run(arguments)

    output, error = capsys.readouterr()
    assert (code, output) == (2, "")
    assert "\\n" not in error
    assert ".;" not in error
    assert error.startswith("Usage:" if not arguments else "agentstate: ")


@pytest.mark.parametrize(
    "target",
    [
        "postgresql:/u:hush@h/x",
        "postgresql//u:hush@h/x",
        " postgres:/u:hush@h/x",
        "host=h password=hush",
        "POSTGRES:/u:hush@h/x",
    ],
)
def test_a_mistyped_address_of_a_server_becomes_no_file_and_shows_no_password(target: str, tmp_path: Path) -> None:
    """MG-06: taken for a path, it was named in the error, or became an empty database of that name."""
    with pytest.raises(InvalidValue) as caught:
        Database.open(target, "rwc")
    done = agentstate("upgrade", "--database", target)

    assert "hush" not in str(caught.value)
    assert done.returncode == 2
    assert "hush" not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_url_in_the_variable_of_a_path_is_named_as_such() -> None:
    """The likeliest mistake of all, and the URL may hold a password."""
    with pytest.raises(InvalidSetting, match="AGENT_DB_URL instead") as caught:
        configured_target({"AGENT_DB_PATH": "postgresql://u:hush@h/x"})

    assert "hush" not in str(caught.value)


def test_a_file_name_that_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    """CN-06: a name of bytes is a name."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xfe.db")
    with Database.open(path, "rwc") as database:
        upgrade(database)

    done = agentstate("status", "--json", "--database", path)

    assert done.returncode == 0, done.stderr
    assert "%FE.db" in done.stdout
    assert sql(path, "SELECT count(*) FROM sessions") == [(0,)]


def test_a_wrong_setting_is_json_too(tmp_path: Path) -> None:
    """A script that asked for JSON gets it also when the answer is no."""
    done = agentstate("status", "--json", "--database", tmp_path / "x.db", AGENT_DB_BUSY_TIMEOUT="soon")

    assert done.returncode == 2
    assert '"state": "InvalidSetting"' in done.stdout
