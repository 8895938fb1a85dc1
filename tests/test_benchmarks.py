"""The benchmarks run, and report every operation; how long anything takes is never asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import ROOT
from postgres_server import binaries

OPERATIONS = {
    "roles": ["load_session", "save_session", "mark_introduced, a new sender", "mark_introduced, again"],
    "approvals": ["save, load and delete", "load_pending_approval"],
    "postgresql": [
        "load_session",
        "save_session",
        "mark_introduced, a new sender",
        "save, load and delete an approval",
    ],
    "conversations": [
        "append one turn",
        "last 20 of 10,000 turns",
        "150 messages in 40 turns",
        "the same as a model may be sent it",
        "fork at turn 10, empty",
        "fork at turn 10, branch",
        "fork at turn 10,000, empty",
        "fork at turn 10,000, branch",
        "list 1,000 conversations",
        "import a session of 4 MB, file written first",
    ],
    "coldstart": ["load one session, beside importing sqlalchemy.orm", "load one session, beside sqlite3"],
}


def bench(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks as `make bench` does."""
    return subprocess.run(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "benchmarks:tests", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_area_has_its_operations_listed_here() -> None:
    """A new file of benchmarks is run by the next test, or this one fails."""
    areas = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"bench"}

    assert areas == set(OPERATIONS)


@pytest.mark.parametrize("area", OPERATIONS)
def test_an_area_reports_every_operation_beside_its_floor(area: str, tmp_path: Path) -> None:
    """Both sides answer the same, or the run ends with an error: a floor that does less would make any ratio."""
    if area == "postgresql" and binaries() is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    run = bench(area, "--rounds", "2", "--json", "--directory", tmp_path)

    assert (run.returncode, run.stderr) == (0, "")
    report = json.loads(run.stdout)
    assert [(found["area"], found["operation"], found["rounds"]) for found in report["operations"]] == [
        (area, operation, 2) for operation in OPERATIONS[area]
    ]
    for found in report["operations"]:
        assert found["ours_ms"] > 0
        assert found["floor_ms"] > 0
        assert found["ratio"] > 0


def test_a_pipe_gets_plain_lines_and_where_they_were_measured(tmp_path: Path) -> None:
    """Times on a memory file system would say nothing about a disk: the report names directory and file system."""
    run = bench("roles", "--rounds", "1", "--directory", tmp_path)

    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0].split("\t") == ["area", "operation", "ours ms", "floor ms", "ratio", "rounds"]
    assert [line.split("\t")[1] for line in lines[1:5]] == OPERATIONS["roles"]
    assert lines[5].startswith(f"databases in: {tmp_path}")


def test_nothing_is_left_on_the_disk_and_settings_of_the_machine_do_not_count(tmp_path: Path) -> None:
    """Another durability on one side only would compare two different things; the caller's database stays alone."""
    mine = tmp_path / "mine.db"

    run = bench(
        "roles", "--rounds", "1", "--directory", tmp_path, AGENT_DB_PATH=str(mine), AGENT_DB_JOURNAL_MODE="delete"
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "no area is called nothing"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--directory", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], reason: str) -> None:
    """Exit code 2, as everywhere."""
    run = bench(*arguments)

    assert run.returncode == 2
    assert reason in run.stderr
