"""What an operator types, and what comes back: text, JSON and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentstate.approvals import workflows
from agentstate.approvals.records import RepoChange
from agentstate.cli.main import COMMANDS, run
from agentstate.cli.output import ago
from agentstate.db.database import Database
from builders import NOON, a_session, a_start, agentstate, an_approval, an_introduction, filled, sql


@pytest.fixture
def configured(file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database at head, named by AGENT_DB_PATH."""
    monkeypatch.setenv("AGENT_DB_PATH", str(path))
    return file_database


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command in this process and return what it printed."""
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its one line."""
    code = run(list(arguments))
    output, error = capsys.readouterr()
    assert output == ""
    assert error.count("\n") == 1
    assert error.startswith("agentstate: ")
    return code, error


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Run a command with --json and return what it means."""
    return json.loads(shown(capsys, *arguments, "--json", code=code))


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Run a command on a real terminal of 100 columns and return what a person sees."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", *arguments],
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    assert process.wait() == 0, text.decode()
    return text.decode()


# --- lists ---


def test_sessions_are_tab_separated_in_a_pipe(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """A script cuts columns; ages would change under it."""
    with configured.write(now=NOON) as work:
        a_session(work)

    text = shown(capsys, "sessions")

    assert text == "worker\talice@bot.example\ts-1\t2026-11-29T12:00:00.000Z\n"
    assert shown(capsys, "sessions", "list") == text


def test_lists_are_json_on_request(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that a script could want."""
    with configured.write(now=NOON) as work:
        a_session(work)
        an_introduction(work)
        a_start(work, "job-1")
        an_approval(work, "job-2")

    sessions = as_json(capsys, "sessions")
    introductions = as_json(capsys, "introductions", "list")
    cases = as_json(capsys, "approvals")

    noon = "2026-11-29T12:00:00.000Z"
    assert sessions == [{"role": "worker", "sender": "alice@bot.example", "session_id": "s-1", "updated_at": noon}]
    assert introductions == [
        {"role": "worker", "sender": "alice@bot.example", "introduced_at": noon, "updated_at": noon}
    ]
    assert [(case["job_id"], case["waits_for"], case["repos_total"]) for case in cases] == [
        ("job-1", "start", 0),
        ("job-2", "release", 2),
    ]


@pytest.mark.parametrize("command", ["sessions", "introductions", "approvals"])
def test_an_empty_list_prints_nothing_in_a_pipe(
    configured: Database, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A script that counts lines must count none."""
    assert shown(capsys, command) == ""
    assert as_json(capsys, command) == []


def test_a_person_sees_a_table_with_ages(configured: Database, path: Path) -> None:
    """FS: a list on a terminal is read by a person."""
    with configured.write(now=datetime.now(UTC) - timedelta(minutes=3, seconds=5)) as work:
        a_session(work)
        a_start(work, body="[bold]not markup[/bold]")

    sessions = on_a_terminal("sessions", AGENT_DB_PATH=str(path))
    cases = on_a_terminal("approvals", AGENT_DB_PATH=str(path))
    nothing = on_a_terminal("introductions", AGENT_DB_PATH=str(path))

    assert "Sender" in sessions
    assert "3 min ago" in sessions
    assert "[bold]not markup[/bold]" in cases
    assert nothing.strip() == "no introductions"


def test_what_people_wrote_cannot_command_the_terminal(configured: Database, path: Path) -> None:
    """A request may hold escape sequences; shown raw they would rewrite what the operator sees."""
    with configured.write() as work:
        a_start(work, body="\x1b[2Jgone\u202e\nsecond line\ttab")

    texts = [
        on_a_terminal("approvals", "show", "job-1", AGENT_DB_PATH=str(path)),
        on_a_terminal("approvals", AGENT_DB_PATH=str(path)),
        agentstate("approvals", "show", "job-1", AGENT_DB_PATH=str(path)).stdout,
    ]

    for text in texts:
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
        assert "\\x1b[2Jgone" in text
    assert "\n" + " " * 14 + "second line\\ttab" in texts[0].replace("\r", "")


def test_a_row_that_cannot_be_read_is_named_and_the_others_are_listed(
    configured: Database, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VA-08: another tool had written Latin-1, and the whole list was unreadable."""
    with configured.write() as work:
        for number in range(100):
            a_session(work, sender=f"sender-{number:02}")
    sql(path, "UPDATE sessions SET session_id = CAST(x'ff41' AS TEXT) WHERE sender = 'sender-50'")

    code = run(["sessions"])

    output, error = capsys.readouterr()
    assert code == 8
    assert len(output.splitlines()) == 99
    assert "sender-50" not in output
    assert "role='worker', sender='sender-50'" in error
    assert error.count("\n") == 1


def test_a_row_of_controls_is_safe_in_every_message(
    configured: Database, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Paths and names come from elsewhere too, and an error is read on the same terminal."""
    with configured.write() as work:
        an_approval(work, repos=["/srv/\x1b[2Jone"])

    dropped = shown(capsys, "approvals", "drop", "job-1")
    run(["status", "--database", str(tmp_path / "\x1b[2J\u200fmissing.db")])
    missing = capsys.readouterr().err
    run(["sessions", "reset", "worker", "\x1b[2Jnobody"])
    nobody = capsys.readouterr().err

    for text in (dropped, missing, nobody):
        assert "\x1b" not in text
        assert "\\x1b[2J" in text


# --- changes ---


def test_a_session_is_reset_and_an_introduction_forgotten(
    configured: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 when there was nothing, so that a script can tell."""
    with configured.write() as work:
        a_session(work)
        an_introduction(work)

    assert "starts a new session" in shown(capsys, "sessions", "reset", "worker", "Alice@Bot.Example/phone")
    assert "counts as the first" in shown(capsys, "introductions", "forget", "worker", "alice@bot.example")
    assert refused(capsys, "sessions", "reset", "worker", "alice@bot.example")[0] == 1
    assert refused(capsys, "introductions", "forget", "worker", "alice@bot.example")[0] == 1


def test_one_job_is_shown_with_everything(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Who, what, since when, and what is finished of it."""
    with configured.write(now=NOON) as work:
        a_start(work, "job-1")
        an_approval(work, "job-2", repos=[RepoChange("/srv/one", "a" * 40), "/srv/two"])
        workflows.claim_approval(work, "job-2", "freigeben alice")
        workflows.mark_repo_done(work, "job-2", "/srv/one", "b" * 40)

    start = as_json(capsys, "approvals", "show", "job-1")
    release = as_json(capsys, "approvals", "show", "job-2")
    text = shown(capsys, "approvals", "show", "job-2")

    assert (start["waits_for"], start["record"]["body"]) == ("start", "please add a licence")
    assert release["record"]["repos"][0]["commit_sha"] == "b" * 40
    assert "claimed by\tfreigeben alice\n" in text
    assert f"repository\t/srv/one  released as {'b' * 40}\n" in text
    assert "repository\t/srv/two  stash found by its marker\n" in text


def test_what_a_killed_process_left_is_listed(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """AP-11: it was found by hand."""
    with configured.write(now=NOON) as work:
        a_start(work, "job-1")
        workflows.claim_start(work, "job-1", "annehmen alice")

    text = shown(capsys, "approvals", "unfinished")

    assert text == "job-1\tstart\tannehmen alice\t2026-11-29T12:00:00.000Z\t-\n"
    assert as_json(capsys, "approvals", "unfinished")[0]["claimed_by"] == "annehmen alice"


def test_dropping_a_record_says_which_stashes_stay(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """The change itself is still in git's stash, and the person must know where."""
    with configured.write() as work:
        a_start(work, "job-1")
        an_approval(work, "job-2", repos=[RepoChange("/srv/one", "a" * 40), "/srv/two"])
        workflows.mark_repo_done(work, "job-2", "/srv/two", "b" * 40)

    start = shown(capsys, "approvals", "drop", "job-1")
    release = shown(capsys, "approvals", "drop", "job-2")

    assert start == "dropped the record of job-1\n"
    assert release == f"dropped the record of job-2\nits stash in /srv/one is still there: {'a' * 40}\n"
    assert shown(capsys, "approvals") == ""


@pytest.mark.parametrize("command", ["show", "drop"])
def test_an_unknown_job_is_one_line_and_exit_1(
    configured: Database, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Spec section 7."""
    code, line = refused(capsys, "approvals", command, "job-9")

    assert code == 1
    assert "'job-9'" in line


# --- the schema ---


def test_an_upgrade_says_from_where_to_where_and_then_that_there_is_nothing_to_do(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs before every start, and its words are read in the journal."""
    first = shown(capsys, "upgrade", "--database", str(path))
    second = shown(capsys, "upgrade", "--database", str(path))

    assert first.splitlines()[-1] == f"{path}: from no schema to 0004 (conversations)"
    assert second == f"{path}: schema is at 0004 (conversations), nothing to do\n"
    assert as_json(capsys, "upgrade", "--database", str(path))["change"]["ran"] == []


def test_an_upgrade_on_a_terminal_shows_progress_and_ends_with_the_same_words(path: Path) -> None:
    """A person sees that something happens; a pipe gets none of it."""
    text = on_a_terminal("upgrade", AGENT_DB_PATH=str(path))

    assert "from no schema to 0004 (conversations)" in text.replace("\r\n", "")


def test_a_downgrade_counts_what_it_would_lose_and_then_obeys(
    configured: Database, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MG-14: one revision down dropped a column with live data."""
    filled(configured)

    code, line = refused(capsys, "downgrade", "0001")
    forced = shown(capsys, "downgrade", "0001", "--force")

    assert code == 1
    assert "start_pending: 1 row" in line
    assert "pending_approval_repo: 2 rows" in line
    assert forced.startswith("backup: ")
    assert f"{path}: from 0004 (conversations) to 0001 (role_state)" in forced
    assert sql(path, "SELECT count(*) FROM sessions") == [(2,)]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("upgrade", "--to", "9999"), "known are 0001, 0002, 0003, 0004"),
        (("upgrade", "--to", "0001"), "agentstate downgrade 0001"),
        (("downgrade", "next"), "known are"),
    ],
)
def test_a_revision_that_makes_no_sense_is_wrong_usage(
    configured: Database, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], word: str
) -> None:
    """A typed error that says what to do instead."""
    code, line = refused(capsys, *arguments)

    assert code == 2
    assert word in line


def test_the_sql_of_an_upgrade_is_printed_for_the_revision_that_is_there(
    configured: Database, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MG-07: for review before it runs; nothing is changed and nothing created."""
    shown(capsys, "downgrade", "0002")

    rest = shown(capsys, "upgrade", "--sql")
    whole = shown(capsys, "upgrade", "--sql", "--database", str(tmp_path / "none.db"))

    assert "CREATE TABLE sessions" not in rest
    assert "ADD COLUMN stash_commit" in rest
    assert "CREATE TABLE sessions" in whole
    assert not (tmp_path / "none.db").exists()


# --- status and exit codes ---


def test_the_status_of_a_database_at_head(configured: Database, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which database, which schema, what is in it."""
    filled(configured)

    facts = as_json(capsys, "status")
    text = shown(capsys, "status")

    assert facts["database"] == str(path)
    assert facts["url"] == f"sqlite:///{path}"
    assert (facts["state"], facts["revision"], facts["head"], facts["at_head"]) == ("at head", "0004", "0004", True)
    assert facts["rows"]["sessions"] == 2
    assert facts["journal_mode"] == "wal"
    assert (facts["open_starts"], facts["open_approvals"]) == (1, 1)
    assert facts["file_bytes"] > 0
    assert "waiting\t1 for a start, 1 for a release\n" in text


def test_the_status_tells_every_state_apart_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that restarts roles must know whether trying again can help."""
    paths = {
        name: str(tmp_path / f"{name}.db") for name in ("behind", "none", "ahead", "hand", "foreign", "zeros", "empty")
    }
    for name in ("behind", "none", "ahead"):
        shown(capsys, "upgrade", "--database", paths[name])
    shown(capsys, "downgrade", "0002", "--database", paths["behind"])
    shown(capsys, "downgrade", "base", "--database", paths["none"])
    sql(paths["ahead"], "UPDATE alembic_version SET version_num = 'r999'")
    sql(paths["hand"], "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT)")
    sql(paths["foreign"], "CREATE TABLE songs (title TEXT)")
    Path(paths["zeros"]).write_bytes(bytes(8_192))
    Path(paths["empty"]).touch()
    paths["missing"] = str(tmp_path / "missing.db")

    codes = {name: run(["status", "--database", path]) for name, path in paths.items()}
    capsys.readouterr()
    reported = {name: as_json(capsys, "status", "--database", path, code=codes[name]) for name, path in paths.items()}

    assert codes == {
        "behind": 3,
        "none": 3,
        "ahead": 4,
        "hand": 5,
        "foreign": 5,
        "zeros": 6,
        "empty": 7,
        "missing": 7,
    }
    assert {name: found["state"] for name, found in reported.items()} == {
        "behind": "behind",
        "none": "no schema yet",
        "ahead": "ahead",
        "hand": "unversioned",
        "foreign": "foreign",
        "zeros": "NotADatabase",
        "empty": "DatabaseEmpty",
        "missing": "DatabaseMissing",
    }


def test_a_named_database_is_never_another_one(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """`--database "$UNSET"` fell back to the configured database; with downgrade --force it lost its rows."""
    code, line = refused(capsys, "downgrade", "base", "--force", "--database", "")

    assert code == 2
    assert "database: must be the path" in line
    assert configured.revision() == "0004"


@pytest.mark.parametrize(
    "arguments", [("bogus",), ("sessions", "reset", "worker"), ("status", "--nope"), ("approvals", "x")]
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """Spec section 4: an error is one line, which also says where help is."""
    code, line = refused(capsys, *arguments)

    assert code == 2
    assert "--help" in line


def test_an_output_that_cannot_be_written_is_one_line(configured: Database, path: Path) -> None:
    """A full disk behind a redirection ended in a traceback."""
    filled(configured)

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agentstate.cli.main", "sessions"],
            env={**os.environ, "AGENT_DB_PATH": str(path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 9
    assert done.stderr == "agentstate: the output could not be written: No space left on device\n"


def test_without_a_database_it_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that a new operator meets."""
    code, line = refused(capsys, "status")

    assert code == 2
    assert "AGENT_DB_PATH" in line


def test_a_locked_database_is_worth_trying_again(
    configured: Database, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-08: a bare 'database is locked' told nobody what to do."""
    with configured.write() as work:
        a_session(work)
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "0.05")

    with configured.write():
        code, line = refused(capsys, "sessions", "reset", "worker", "alice@bot.example")

    assert code == 9
    assert str(path) in line
    assert "0.05 s" in line
    shown(capsys, "sessions", "reset", "worker", "alice@bot.example")


def test_no_traceback_unless_it_is_asked_for(path: Path) -> None:
    """One line for a person; everything for whoever hunts a fault."""
    plain = agentstate("status", AGENT_DB_PATH=str(path))
    debugged = agentstate("status", AGENT_DB_PATH=str(path), AGENTSTATE_DEBUG="1")

    assert (plain.returncode, plain.stderr.count("\n")) == (7, 1)
    assert "Traceback" in debugged.stderr


def test_a_reader_that_has_seen_enough_is_no_error(configured: Database, path: Path) -> None:
    """`agentstate sessions | head -1` ended in a traceback."""
    with configured.write() as work:
        for number in range(3_000):
            a_session(work, sender=f"sender-{number}", session_id="s" * 100)

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m agentstate.cli.main sessions | head -n 1"],
        env={**os.environ, "AGENT_DB_PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), ("approvals", "show"), ("sessions", "reset")])
def test_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """A person understands a command before running it."""
    text = shown(capsys, *command, "--help")

    assert text.startswith("Usage: agentstate")
    assert len(text.splitlines()) > 5


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    """What is installed is what a bug report names."""
    import agentstate as package

    assert shown(capsys, "--version").strip() == f"agentstate, version {package.__version__}"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (59, "just now"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (7_200, "2 h ago"),
        (86_400, "1 day ago"),
        (400_000, "4 days ago"),
        (-7_200, "in 2 h"),
    ],
)
def test_an_age_is_shown_as_people_say_it(seconds: int, words: str) -> None:
    """Spec section 7."""
    assert ago(NOON - timedelta(seconds=seconds), NOON) == words
