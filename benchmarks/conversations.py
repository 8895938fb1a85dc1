"""Conversations: appending, reading, forking, listing and importing, and what a turn costs on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentstate import adapter
from agentstate.conversations import history
from agentstate.conversations.importer import import_sessions
from agentstate.conversations.models import new_turn_id
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Floor, Operation

ROUNDS = 300
LONG, LOADED = 10_000, 40
SMALL = [{"role": "user", "content": "Is it raining in Osaka? " * 3}, {"role": "assistant", "content": "No. " * 20}]
WORDS = [{"role": "user", "content": "x" * 200}, *({"role": "assistant", "content": "y" * 300} for _ in range(3))]

TAKE = (
    "UPDATE conversations SET next_seq = next_seq + 1, updated_at = max(updated_at, ?) WHERE key = ? "
    "AND status NOT IN ('archived', 'canceled', 'completed', 'failed') RETURNING next_seq - 1"
)
ADD = (
    "INSERT INTO turns (id, conversation_key, seq, kind, message_count, author, created_at, meta, messages) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
CREATE = "INSERT INTO conversations (key, created_at, updated_at) VALUES (?, ?, ?)"
FORK = (
    "INSERT INTO conversations (key, parent_key, fork_turn_id, created_at, updated_at, next_seq, inherited_seq) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
PARENT = "SELECT next_seq, compacted_seq, summary, inherited_summary FROM conversations WHERE key = ?"
LIST = (
    "SELECT key, label, status, summary, created_at, updated_at, "
    "(SELECT count(*) FROM turns WHERE conversation_key = key AND seq > compacted_seq) "
    "FROM conversations WHERE key LIKE 'list-%' ORDER BY created_at, key LIMIT 1000"
)


def compact_json(value: object) -> str:
    """Return JSON as it is stored."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def operations(bench: Bench) -> list[Operation]:
    """Return the operations, on two databases that hold the same rows."""
    path = bench.database()
    floor = bench.floor()
    database = Database.open(path)
    bench.at_the_end(database.close)
    _fill(path)
    _fill(bench.directory / "floor.db")
    return [
        ("append one turn", lambda: _append(database), lambda: _floor_append(floor)),
        _reading("last 20 of 10,000 turns", database, floor, _last_20, _floor_last_20),
        _reading("150 messages in 40 turns", database, floor, _messages, _floor_messages),
        _reading("the same as a model may be sent it", database, floor, _provider, _floor_messages),
        *(_fork(database, floor, key, inherit) for key in ("short", "long") for inherit in (False, True)),
        ("list 1,000 conversations", lambda: _list(database), lambda: _floor_list(floor)),
        _import(bench, floor),
    ]


def facts(bench: Bench) -> list[tuple[str, str]]:
    """Return what 200 turns cost on disk, beside rewriting the whole JSON file each time as the original did."""
    turns = 200
    path = bench.database("bytes.db")
    with Database.open(path) as database:
        adapter.create_conversation("k", database=database)
        before = _written()
        for _ in range(turns):
            adapter.append_turn("k", SMALL, database=database)
        ours = _written() - before
    file, messages = bench.directory / "k.json", []
    before = _written()
    for _ in range(turns):
        messages += SMALL
        _rewrite(file, {"key": "k", "messages": messages})
    theirs = _written() - before
    return [
        ("bytes handed to the disk per turn", f"{ours // turns:,} with -wal and checkpoints, over {turns} turns"),
        ("rewriting a JSON file each time", f"{theirs // turns:,} over the same turns, and more with every turn"),
    ]


def _written() -> int:
    """Return how many bytes this process has written so far, as the kernel counts them."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise SystemExit("the kernel does not say what was written")


def _rewrite(file: Path, document: object) -> None:
    scratch = file.with_suffix(".tmp")
    with scratch.open("w", encoding="utf-8") as opened:
        json.dump(document, opened, indent=2)
        opened.flush()
        os.fsync(opened.fileno())
    scratch.replace(file)


def _fill(path: Path) -> None:
    """Put in what the operations read; both databases get the same rows, in the quickest way."""
    import sqlite3

    now = "2026-11-29T12:00:00.000Z"
    with sqlite3.connect(path) as connection:
        for key, turns in (("busy", 0), ("short", 10), ("long", LONG), ("loaded", LOADED)):
            connection.execute(CREATE, (key, now, now))
            bodies = [compact_json(WORDS if key != "loaded" or seq % 4 else WORDS[:3]) for seq in range(1, turns + 1)]
            connection.executemany(ADD, [_row(key, seq, body, now) for seq, body in enumerate(bodies, 1)])
            connection.execute("UPDATE conversations SET next_seq = ? WHERE key = ?", (turns + 1, key))
        for number in range(1_000):
            key = f"list-{number:04}"
            connection.execute(CREATE, (key, now, now))
            connection.executemany(ADD, [_row(key, seq, "[]", now) for seq in range(1, 51)])
    connection.close()


def _row(key: str, seq: int, body: str, now: str) -> tuple[object, ...]:
    return (new_turn_id(datetime.now(UTC)), key, seq, 0, 4, "", now, None, body)


def _append(database: Database) -> bool:
    return adapter.append_turn("busy", SMALL, database=database) > 0


def _floor_append(floor: Floor) -> bool:
    body = compact_json(SMALL)
    with floor.writing():
        now = floor.now()
        seq = floor.execute(TAKE, (now, "busy")).fetchone()[0]
        floor.execute(ADD, _row("busy", seq, body, now))
    return bool(seq)


def _reading(
    name: str, database: Database, floor: Floor, ours: Callable[[Any], object], theirs: Callable[[Floor], object]
) -> Operation:
    def read() -> object:
        with database.read() as work:
            return ours(work)

    def floor_read() -> object:
        with floor.reading():
            return theirs(floor)

    return (name, read, floor_read)


def _last_20(work: Any) -> object:
    return [message for turn in Turns(work).list_history("long", last=20) for message in turn.messages]


def _floor_last_20(floor: Floor) -> object:
    sql = "SELECT messages FROM turns WHERE conversation_key = 'long' AND kind = 0 ORDER BY seq DESC LIMIT 20"
    rows = floor.execute(sql).fetchall()
    return [message for (body,) in reversed(rows) for message in json.loads(body)]


def _messages(work: Any) -> object:
    return history.messages(work, "loaded")


def _provider(work: Any) -> object:
    return history.provider_messages(work, "loaded").messages


def _floor_messages(floor: Floor) -> object:
    sql = "SELECT messages FROM turns WHERE conversation_key = 'loaded' ORDER BY seq"
    return [message for (body,) in floor.execute(sql) for message in json.loads(body)]


def _fork(database: Database, floor: Floor, parent: str, inherit: bool) -> Operation:
    numbers, floor_numbers = count(), count()
    prefix = f"{parent}-{inherit}"

    def ours() -> bool:
        return bool(adapter.fork_conversation(parent, f"{prefix}-{next(numbers)}", inherit=inherit, database=database))

    def theirs() -> bool:
        child = f"{prefix}-{next(floor_numbers)}"
        with floor.writing():
            now, point = floor.now(), new_turn_id(datetime.now(UTC))
            next_seq = floor.execute(PARENT, (parent,)).fetchone()[0]
            values = (child, parent, point, now, now, next_seq + 1 if inherit else 1, next_seq if inherit else None)
            floor.execute(FORK, values)
            seq = floor.execute(TAKE, (now, parent)).fetchone()[0]
            meta = compact_json({"child": child, "inherit": inherit})
            floor.execute(ADD, (point, parent, seq, 2, 0, "", now, meta, "[]"))
        return True

    return (f"fork at turn {10 if parent == 'short' else 10_000:,}, {'branch' if inherit else 'empty'}", ours, theirs)


def _list(database: Database) -> int:
    return len(adapter.list_conversations(prefix="list-", limit=1_000, database=database)["conversations"])


def _floor_list(floor: Floor) -> int:
    with floor.reading():
        return len(floor.execute(LIST).fetchall())


def _import(bench: Bench, floor: Floor) -> Operation:
    """A session of 4 MB comes in as one transaction; the file is read, parsed and split by both."""
    folder = bench.directory / "sessions"
    folder.mkdir()
    messages = [{"role": ("user", "assistant")[number % 2], "content": "z" * 1_150} for number in range(3_417)]
    document = {"messages": messages, "created": "2026-02-11T09:12:33Z", "updated": "2026-02-11T09:12:33Z"}
    keys, floor_keys = cycle(map(str, range(10**6))), cycle(map(str, range(10**6)))
    database = Database.open(bench.database("imported.db"))
    bench.at_the_end(database.close)
    file = folder / "s.json"

    def prepare(key: str) -> None:
        file.write_text(json.dumps({"key": f"import-{key}", **document}), encoding="utf-8")

    def ours() -> int:
        prepare(next(keys))
        return import_sessions(database, folder, rename=False).imported

    def theirs() -> int:
        prepare(next(floor_keys))
        found = json.loads(file.read_bytes())
        now = floor.now()
        turns = [compact_json(found["messages"][at : at + 2]) for at in range(0, len(messages), 2)]
        with floor.writing():
            floor.execute(CREATE, (found["key"], now, now))
            floor.executemany(ADD, [_row(found["key"], seq, body, now) for seq, body in enumerate(turns, 1)])
        return 1

    return ("import a session of 4 MB, file written first", ours, theirs)
