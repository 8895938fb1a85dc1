"""Sessions and introductions: each operation is one or two statements in one transaction."""

from __future__ import annotations

from itertools import count, cycle
from typing import TYPE_CHECKING

from agentstate import adapter

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Operation

ROUNDS = 2_000
SENDERS = [f"{number}@bot.example" for number in range(100)]

LOAD = "SELECT session_id FROM sessions WHERE role = ? AND sender = ?"
SAVE = (
    "INSERT INTO sessions (role, sender, session_id, updated_at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (role, sender) DO UPDATE SET session_id = excluded.session_id, updated_at = excluded.updated_at"
)
MARK = (
    "INSERT INTO introductions (role, sender, introduced_at, updated_at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING RETURNING role"
)
TOUCH = "UPDATE introductions SET updated_at = ? WHERE role = ? AND sender = ?"


def operations(bench: Bench) -> list[Operation]:
    """Return the operations, on two databases that hold the same rows.

    The senders take turns: a row written twice in one millisecond stays as it is, and SQLite then writes nothing.
    """
    bench.database()
    floor = bench.floor()

    def load(sender: str) -> object:
        return adapter.load_session("worker", sender)

    def floor_load(sender: str) -> object:
        with floor.reading():
            return floor.execute(LOAD, ("worker", sender)).fetchone()[0]

    def save(sender: str) -> None:
        adapter.save_session("worker", sender, "s-1")

    def floor_save(sender: str) -> None:
        with floor.writing():
            floor.execute(SAVE, ("worker", sender, "s-1", floor.now()))

    def mark(sender: str) -> bool:
        return adapter.mark_introduced("worker", sender)

    def floor_mark(sender: str) -> bool:
        with floor.writing():
            now = floor.now()
            if floor.execute(MARK, ("worker", sender, now, now)).fetchone() is not None:
                return True
            floor.execute(TOUCH, (now, "worker", sender))
            return False

    for sender in SENDERS:
        save(sender)
        mark(sender)
        floor_save(sender)
        floor_mark(sender)
    ours_known, floor_known = cycle(SENDERS), cycle(SENDERS)
    ours_new, floor_new = count(), count()
    return [
        ("load_session", lambda: load(next(ours_known)), lambda: floor_load(next(floor_known))),
        ("save_session", lambda: save(next(ours_known)), lambda: floor_save(next(floor_known))),
        (
            "mark_introduced, a new sender",
            lambda: mark(f"new-{next(ours_new)}@bot.example"),
            lambda: floor_mark(f"new-{next(floor_new)}@bot.example"),
        ),
        ("mark_introduced, again", lambda: mark(next(ours_known)), lambda: floor_mark(next(floor_known))),
    ]
