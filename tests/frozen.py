"""Small filled databases, one per revision, as the code of their time wrote them: `tests/migrations/frozen/NNNN.sql`.

`make frozen` writes the one of the newest revision. Once that revision is released its file is history: a database
like it exists somewhere, and every later version must bring it to head with each row intact.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import agentstate.metadata  # noqa: F401  (every area's tables)
from agentstate.approvals import workflows as approvals
from agentstate.approvals.records import RepoChange
from agentstate.conversations import history
from agentstate.conversations import workflows as conversations
from agentstate.conversations.models import TurnKind
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.db.state import HEAD, VERSION_TABLE
from agentstate.db.uow import UnitOfWork
from agentstate.roles.repositories import Introductions, RoleSessions

DIRECTORY = Path(__file__).parent / "migrations" / "frozen"

MORNING = datetime(2026, 11, 29, 8, 30, tzinfo=UTC)
STASH = "5f0c1d9a7be24c36a1d2e8f90b7c6d5e4f3a2b1c"
COMMIT = "c0ffee0123456789abcdef0123456789abcdef01"


def load(revision: str, path: str | Path, *, journal_mode: str = "delete") -> None:
    """Make the frozen database of a revision at `path`, which must be new."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}")
        connection.executescript((DIRECTORY / f"{revision}.sql").read_text(encoding="utf-8"))


def dump(path: str | Path) -> str:
    """Return a whole database as SQL: the same database gives the same text."""
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def write(directory: Path = DIRECTORY) -> Path:
    """Write the filled database of the newest revision into the directory and return the file's path."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "agent.db"
        with Database.open(path, "rwc") as database:
            upgrade(database)
            fill(database)
        _refuse_empty_tables(path)
        target = directory / f"{HEAD}.sql"
        target.write_text(dump(path), encoding="utf-8", newline="\n")
    return target


def fill(database: Database) -> None:
    """Put rows into every table of the newest revision: each column with and without a value, awkward text."""
    with database.write(now=MORNING) as work:
        RoleSessions(work).save("worker", "alice@bot.example", "0198f2c4-7b1e-7c3a-9d55-0a1b2c3d4e5f")
        RoleSessions(work).save("builder", "alice@bot.example", "thread_ключ/2026-11-29")
        RoleSessions(work).save("worker", "Telegram:42", "s'; DROP TABLE sessions; --")
        Introductions(work).mark("worker", "alice@bot.example")
        Introductions(work).mark("worker", "bücher@bot.example")
        approvals.save_start_pending(
            work, "job-1", "alice@bot.example", "worker", 'Füge eine "Lizenz" hinzu:\n\n\tMIT, bitte 🐟\n'
        )
        approvals.save_start_pending(work, "job-1 (2)", "Telegram:42", "Telegram:42", "it's 100% done; isn't it? 日本")
        approvals.save_pending_approval(
            work,
            "job-7",
            "alice@bot.example",
            "Add a licence\n\nO'Brien's words: \"MIT\" (naïve, ja?)",
            [RepoChange("/srv/git/eins", STASH), RepoChange("/srv/git/two and a half", None)],
        )
        approvals.save_pending_approval(work, "job-8", "bob@bot.example", "Räume auf", ["/srv/git/дом"])
    with database.write(now=MORNING + timedelta(hours=3, milliseconds=125)) as work:
        Introductions(work).mark("worker", "alice@bot.example")
        approvals.claim_start(work, "job-1", "builder@host:4711")
        approvals.claim_approval(work, "job-7", "O'Brien")
        approvals.mark_repo_done(work, "job-7", "/srv/git/eins", COMMIT)
    with database.write(now=MORNING) as work:
        _begin_conversations(work)
    with database.write(now=MORNING + timedelta(hours=3, milliseconds=125)) as work:
        _continue_conversations(work)


def _begin_conversations(work: UnitOfWork) -> None:
    """Let a conductor talk, start a sub-agent, and try something else in a branch."""
    main = "agent:ada:main"
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ōsaka"}'}}
    conversations.create(work, main, label='Ada`s "main" line\nand more 🐟')
    asked = [{"role": "user", "content": "Regnet es in Ōsaka? It's 100% urgent; isn't it?"}]
    conversations.append(work, main, asked, turn_id="0198f2c4-7b1e-7c3a-9d55-0a1b2c3d0001")
    conversations.append(
        work,
        main,
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "14 °C\0\ud83d\x1b[0m", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "No.", "x_vendor": {"n": 2**70, "list": [1.5, None, True]}},
        ],
        turn_id="0198f2c4-7b1e-7c3a-9d55-0a1b2c3d0002",
        author="O'Brien",
        summary='Says "no"',
        meta={"model": "日本", "nul": "\0"},
    )
    conversations.spawn(work, main, "scout-1")
    conversations.record_turn(work, "subagent:scout-1", [{"role": "assistant", "content": "JWT"}], turn_id="turn ' 1")
    conversations.fork(work, main, "agent:ada:try", label="try redis", inherit=True, at_seq=2, meta={"why": "free"})
    conversations.create(work, "telegram:-100_12345/дом", status="paused-by-v9")
    _name_fork_points(work)


def _continue_conversations(work: UnitOfWork) -> None:
    """Let the sub-agent report, compact the conductor beside its branch, fork once more, and bring one in."""
    main = "agent:ada:main"
    conversations.append(work, "agent:ada:try", [{"role": "user", "content": "Try it."}], turn_id="turn-in-branch")
    conversations.finish(work, "subagent:scout-1", "completed", main, "JWT is\nenough.", turn_id="report-1")
    conversations.append(
        work,
        main,
        [{"role": "user", "content": "Shall I?"}],
        turn_id="question-1",
        kind=TurnKind.QUESTION,
        origin_key="subagent:gone",
    )
    history.compact(work, main, 4, "It doesn't rain in Ōsaka.\n\nA scout was sent.")
    conversations.fork(work, main, "agent:ada:main:fork:20261129T113000", inherit=True)
    _name_fork_points(work)
    # As the importer does it, whose files are none of a dump's business.
    work.connection.exec_driver_sql(
        "UPDATE conversations SET imported_at = created_at, imported_from = ? WHERE key LIKE 'telegram:%'",
        ("telegram_-100_12345_дом.json#9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",),
    )


def _name_fork_points(work: UnitOfWork) -> None:
    """Give fork points the same ids each time: their own are made of chance."""
    for statement in (
        "UPDATE turns SET id = 'fork-point-of-' || json_extract(meta, '$.child') WHERE kind = 2",
        "UPDATE conversations SET fork_turn_id = 'fork-point-of-' || key WHERE parent_key IS NOT NULL",
    ):
        work.connection.exec_driver_sql(statement)


def _refuse_empty_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        empty = [
            name
            for name in names
            if not name.startswith("sqlite_")
            and not connection.execute(f'SELECT EXISTS (SELECT 1 FROM "{name}")').fetchone()[0]
        ]
    if empty:
        raise SystemExit(f"no rows in {', '.join(empty)}: give `fill` some for every table but {VERSION_TABLE}")


if __name__ == "__main__":
    print(f"wrote {write()}")
