"""Pruning: what nobody has used for a while goes, whole trees at a time, and everything else is kept and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from agentstate import clock
from agentstate.conversations.history import messages
from agentstate.conversations.models import Conversation
from agentstate.conversations.prune import prune
from agentstate.conversations.records import PruneReport
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.workflows import append, create, delete_conversation, fork, report, set_status, spawn
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import DatabaseReadOnly, InvalidValue
from builders import NOON, a_conversation, a_turn, said, sql
from postgres_server import Server

DAY = timedelta(days=1)
CUTOFF = NOON - 7 * DAY
LONG_AGO = NOON - 30 * DAY
MILLISECOND = timedelta(milliseconds=1)


def add(work: UnitOfWork, key: str, parent: str | None = None, *, used: datetime = LONG_AGO, **columns: Any) -> None:
    """Add a conversation's row: last used long ago, below `parent`, with a turn number to inherit if it is a branch."""
    Conversations(work).add(Conversation(key=key, parent_key=parent, created_at=LONG_AGO, updated_at=used, **columns))


def keys(database: Database) -> list[str]:
    """Return the keys of all conversations there are."""
    with database.read() as work:
        return list(work.connection.execute(text("SELECT key FROM conversations ORDER BY key")).scalars())


def orphans(database: Database) -> int:
    """Return how many rows refer to a conversation that is not there."""
    with database.read() as work:
        statement = (
            "SELECT (SELECT count(*) FROM turns WHERE conversation_key NOT IN (SELECT key FROM conversations))"
            " + (SELECT count(*) FROM conversations WHERE parent_key NOT IN (SELECT key FROM conversations))"
        )
        found = int(work.connection.execute(text(statement)).scalar_one())
        if database.backend == "sqlite":
            found += len(work.connection.execute(text("PRAGMA foreign_key_check")).all())
        return found


def run_sql(database: Database, statement: str) -> None:
    """Change rows behind the repositories' back."""
    with database.write() as work:
        work.connection.execute(text(statement))


@pytest.fixture
def memory() -> Iterator[Database]:
    """A database for what is decided in Python alone."""
    with Database.memory() as found:
        yield found


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, int]]]:
    """Collect every statement with the number of its parameters."""
    found: list[tuple[str, int]] = []

    def listen(_: object, __: object, statement: str, parameters: Any, ___: object, ____: bool) -> None:
        found.append((statement, len(parameters)))

    event.listen(database._engine, "before_cursor_execute", listen)
    try:
        yield found
    finally:
        event.remove(database._engine, "before_cursor_execute", listen)


def at_the_start(act: Callable[[UnitOfWork], object], database: Database) -> Callable[[int, int], None]:
    """Return a listener that acts between the look and the first deletion, in a unit of work of its own."""

    def listen(done: int, _: int) -> None:
        if done == 0:
            with database.write(now=NOON) as work:
                act(work)

    return listen


# --- by last use -----------------------------------------------------------------------------------------------------


def test_what_was_used_exactly_at_the_cutoff_stays(database: Database) -> None:
    """RT-01, acceptance 20: the boundary of seven days is on the side of keeping."""
    with database.write(now=NOON) as work:
        add(work, "a millisecond longer", used=CUTOFF - MILLISECOND)
        add(work, "exactly seven days", used=CUTOFF)
        add(work, "from a clock that is ahead", used=NOON + DAY)

    done = prune(database, now=NOON)

    assert (done.cutoff, done.candidates, done.deleted) == (CUTOFF, 1, 1)
    assert keys(database) == ["exactly seven days", "from a clock that is ahead"]


def test_the_present_is_now_unless_it_is_given(database: Database) -> None:
    """A caller who says nothing means the time at which the look is taken."""
    with database.write() as work:
        add(work, "today", used=work.now)
        add(work, "last week", used=work.now - 8 * DAY)

    prune(database)

    assert keys(database) == ["today"]


def test_age_counts_from_the_last_use_and_not_from_the_beginning(database: Database) -> None:
    """RT-01: retention compared the start, and a conversation used today was deleted."""
    with database.write(now=NOON - 100 * DAY) as work:
        a_conversation(work, "used today", turns=3)
        a_conversation(work, "left alone", turns=3)
    with database.write(now=NOON) as work:
        a_turn(work, "used today")

    done = prune(database, older_than=30 * DAY, now=NOON)

    assert keys(database) == ["used today"]
    assert (done.candidates, done.deleted, done.deleted_turns, done.kept) == (1, 1, 3, {})
    assert done.roots == {"deleted": ("left alone",)}


def test_the_cutoff_lies_between_fractions_of_a_second(database: Database) -> None:
    """TM-03: rows on a second boundary expired wrongly when times were compared as texts."""
    with database.write(now=NOON) as work:
        add(work, "at .000", used=CUTOFF)
        add(work, "at .500", used=CUTOFF + 500 * MILLISECOND)

    prune(database, now=NOON + 250 * MILLISECOND)

    assert keys(database) == ["at .500"]


@pytest.mark.parametrize(
    ("written", "stays"),
    [
        ("2026-11-22T12:00:00Z", False),
        ("2026-11-22 12:00:00", False),
        ("2026-11-22T20:00:00.2+08:00", False),
        ("2026-11-22T20:00:00.300+08:00", True),
        ("1795348800.2", False),
        ("1795348801", True),
    ],
)
def test_a_time_of_another_form_is_compared_as_an_instant(
    file_database: Database, path: Path, written: str, stays: bool
) -> None:
    """TM-03: as texts, "…00Z" sorts after "…00.5Z", and local time after UTC."""
    with file_database.write(now=NOON) as work:
        add(work, "k")
    sql(path, "UPDATE conversations SET updated_at = ?", [written])

    prune(file_database, now=NOON + 250 * MILLISECOND)

    assert keys(file_database) == ["k"] * stays


def test_an_age_of_nothing_takes_all_that_was_used_before_now(database: Database) -> None:
    """The smallest age that is one; what happens at this very moment is in use."""
    with database.write(now=NOON) as work:
        add(work, "before", used=NOON - MILLISECOND)
        add(work, "now", used=NOON)

    prune(database, older_than=timedelta(0), now=NOON)

    assert keys(database) == ["now"]


def test_nothing_is_older_than_time_itself(database: Database) -> None:
    """An age that reaches back before the year 1 is a way to say never, and no crash."""
    with database.write(now=NOON) as work:
        add(work, "k")

    done = prune(database, older_than=timedelta.max, now=NOON)

    assert (done.candidates, done.cutoff) == (0, datetime.min.replace(tzinfo=UTC))
    assert keys(database) == ["k"]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("older_than", {"older_than": -MILLISECOND}),
        ("older_than", {"older_than": 7}),
        ("older_than", {"older_than": None}),
        ("protect", {"protect": "agent:ada:main"}),
        ("protect", {"protect": 7}),
        ("protect", {"protect": ["k", None]}),
        ("now", {"now": NOON.replace(tzinfo=None)}),
    ],
)
def test_what_would_prune_by_mistake_is_refused(memory: Database, field: str, options: dict[str, Any]) -> None:
    """Days are easily passed as a number, a key as a list of its letters; a negative age would take what is in use."""
    with memory.write(now=NOON) as work:
        add(work, "k")

    with pytest.raises(InvalidValue) as caught:
        prune(memory, **{"now": NOON, **options})

    assert caught.value.field == field
    assert keys(memory) == ["k"]


# --- whole trees -----------------------------------------------------------------------------------------------------


def test_a_stale_tree_goes_as_a_whole(database: Database) -> None:
    """RT-03, RT-05: pruning by row age in a tree orphaned children, and a bulk delete left turns behind."""
    with database.write(now=LONG_AGO) as work:
        a_conversation(work, "main", turns=4)
        spawn(work, "main", "scout")
        set_status(work, "subagent:scout", "completed")
        fork(work, "main", "branch", inherit=True)
        fork(work, "branch", "branch of it", inherit=True)
        a_turn(work, "branch of it")
        a_conversation(work, "other", turns=2)
    with database.write(now=NOON) as work:
        a_turn(work, "other")

    done = prune(database, now=NOON)

    assert keys(database) == ["other"]
    assert (done.candidates, done.deleted, done.deleted_turns) == (4, 4, 8)
    assert done.roots == {"deleted": ("main",)}
    assert orphans(database) == 0


def test_a_fresh_grandchild_keeps_the_whole_tree(database: Database) -> None:
    """RT-03: what somebody uses hangs on everything above it."""
    with database.write(now=LONG_AGO) as work:
        add(work, "root")
        add(work, "child", "root", inherited_seq=1)
        add(work, "grandchild", "child", inherited_seq=1, used=CUTOFF)
        add(work, "sibling", "root", status="completed")

    done = prune(database, now=NOON)

    assert keys(database) == ["child", "grandchild", "root", "sibling"]
    assert (done.candidates, done.deleted, done.kept, done.roots) == (3, 0, {"in_use": 3}, {"in_use": ("root",)})


def test_a_tree_in_which_nothing_is_old_is_not_spoken_of(database: Database) -> None:
    """RT-09: the report is about candidates, not about everything there is."""
    with database.write(now=NOON) as work:
        add(work, "root", used=NOON, status="executing")
        add(work, "child", "root", used=CUTOFF)

    done = prune(database, now=NOON, protect=["root"])

    assert (done.candidates, done.kept, done.roots) == (0, {}, {})


@pytest.mark.parametrize("fresh", [True, False])
def test_a_circle_that_raw_sql_made_is_a_tree(database: Database, fresh: bool) -> None:
    """Nothing of ours makes one; a walk to its root would never end, and leaving it out would skip it silently."""
    with database.write(now=NOON) as work:
        add(work, "0, hanging on it", status="completed", used=CUTOFF if fresh else LONG_AGO)
        for key in ("c", "b", "a"):
            add(work, key)
        add(work, "its own parent")
    run_sql(database, "UPDATE conversations SET parent_key = 'b' WHERE key = '0, hanging on it'")
    run_sql(database, "UPDATE conversations SET parent_key = 'b', inherited_seq = 1 WHERE key = 'c'")
    run_sql(database, "UPDATE conversations SET parent_key = 'a', inherited_seq = 1 WHERE key = 'b'")
    run_sql(database, "UPDATE conversations SET parent_key = 'c', inherited_seq = 1 WHERE key = 'a'")
    run_sql(database, "UPDATE conversations SET parent_key = key WHERE key = 'its own parent'")

    done = prune(database, now=NOON)

    assert done.roots == (
        {"deleted": ("its own parent",), "in_use": ("a",)} if fresh else {"deleted": ("a", "its own parent")}
    )
    assert keys(database) == (["0, hanging on it", "a", "b", "c"] if fresh else [])


def test_a_conversation_whose_parent_is_missing_is_a_root(file_database: Database, path: Path) -> None:
    """A deletion with foreign keys off leaves such; they must neither stop the prune nor stay for ever."""
    with file_database.write(now=NOON) as work:
        add(work, "root")
        add(work, "child", "root", status="active")
        add(work, "grandchild", "child", inherited_seq=1)
    sql(path, "DELETE FROM conversations WHERE key = 'root'")

    done = prune(file_database, now=NOON)

    assert done.roots == {"deleted": ("child",)}
    assert keys(file_database) == []


def test_a_report_from_a_pruned_conversation_stays_readable(database: Database) -> None:
    """SE-10, RT-05: the origin is a name, and what it said belongs to the conductor."""
    with database.write(now=LONG_AGO) as work:
        a_conversation(work, "scout")
        set_status(work, "scout", "completed")
        a_conversation(work, "main")
    with database.write(now=NOON) as work:
        report(work, "main", "scout", "nothing there")

    prune(database, now=NOON)

    with database.read() as work:
        assert keys_and_gone(work) == [("scout", True)]
        assert messages(work, "main") == [said("nothing there")]


def keys_and_gone(work: UnitOfWork) -> list[tuple[str | None, bool]]:
    """Return the origins of the turns of "main", and whether each is gone."""
    return [(turn.origin_key, turn.origin_gone) for turn in Turns(work).list_history_info("main")]


# --- reasons to keep -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stays", "trees"),
    [
        (
            True,
            [
                ("active", "active", None),
                ("active", "executing", None),
                ("active", "paused-by-v9", None),
                ("completed", "active", None),
                ("completed", "executing", 1),
                ("executing", "completed", None),
                ("review", "completed", None),
                ("clarifying", "completed", None),
                ("paused-by-v9", "completed", None),
            ],
        ),
        (
            False,
            [
                ("active", "active", 1),
                ("active", "archived", None),
                ("completed", "failed", 1),
                ("failed", "canceled", None),
            ],
        ),
    ],
    ids=["at work", "at rest"],
)
def test_what_is_at_work_keeps_its_tree(
    database: Database, stays: bool, trees: list[tuple[str, str, int | None]]
) -> None:
    """RT-02, acceptance 20: a sub-agent at work, or a status that nobody here knows, is not for maintenance to end."""
    with database.write(now=NOON) as work:
        for number, (root, child, inherited_seq) in enumerate(trees):
            add(work, f"root {number}", status=root)
            add(work, f"child {number}", f"root {number}", status=child, inherited_seq=inherited_seq)

    done = prune(database, now=NOON)

    everywhere = tuple(f"root {number}" for number in range(len(trees)))
    assert done.roots == {"status" if stays else "deleted": everywhere}
    assert len(keys(database)) == 2 * len(trees) * stays


@pytest.mark.parametrize("kind", [list, set, iter, dict.fromkeys])
def test_a_protected_key_keeps_its_tree(memory: Database, kind: Callable[[list[str]], Iterable[str]]) -> None:
    """RT-02: a pending approval or a schedule elsewhere names one conversation, and needs what it hangs on."""
    with memory.write(now=NOON) as work:
        add(work, "root")
        add(work, "child", "root", status="completed")
        add(work, "other")

    done = prune(memory, now=NOON, protect=kind(["child", "unknown", ""]))

    assert (done.kept, done.deleted) == ({"protected": 2}, 1)
    assert keys(memory) == ["child", "root"]


def test_what_is_protected_may_be_read_while_it_is_asked_for(database: Database) -> None:
    """FS-13: no transaction is open while the caller's code runs, or the one connection in memory waits for itself."""
    with database.write(now=NOON) as work:
        add(work, "a")
        add(work, "b")

    done = prune(database, now=NOON, protect=(key for key in keys(database) if key == "b"))

    assert (done.deleted, done.kept) == (1, {"protected": 1})


def test_imported_history_goes_only_when_that_is_asked_for(database: Database) -> None:
    """IM-09, acceptance 22: the maintenance of the same start took everything that had just been brought in."""
    with database.write(now=NOON) as work:
        add(work, "brought in", imported_at=NOON - DAY)
        add(work, "never used since", used=LONG_AGO, imported_at=LONG_AGO)
        add(work, "used since", used=NOON - 20 * DAY, imported_at=NOON - 21 * DAY)
        add(work, "tree")
        add(work, "brought in below", "tree", inherited_seq=1, imported_at=NOON)

    first = prune(database, now=NOON)

    assert keys(database) == ["brought in", "brought in below", "never used since", "tree"]
    assert (first.deleted, first.kept) == (1, {"imported": 4})
    assert first.roots["imported"] == ("brought in", "never used since", "tree")
    assert prune(database, now=NOON, include_imported=True).deleted == 4


def test_imported_history_that_was_used_ages_like_any_other(database: Database) -> None:
    """IM-09, acceptance 22: appended to, and then eight days old."""
    with database.write(now=NOON) as work:
        add(work, "k", imported_at=NOON, next_seq=5)
    with database.write(now=NOON + DAY) as work:
        append(work, "k", [said()])

    assert prune(database, now=NOON + 8 * DAY).deleted == 0
    assert prune(database, now=NOON + 9 * DAY).deleted == 1


def test_the_first_reason_that_applies_is_given(database: Database) -> None:
    """RT-09: one reason per tree, so that the sum is the number of candidates."""
    with database.write(now=NOON) as work:
        add(work, "root", imported_at=NOON)
        add(work, "child", "root", status="executing", used=NOON)

    def kept(**options: Any) -> dict[str, int]:
        return prune(database, now=NOON, **options).kept

    assert kept(protect=["child"]) == {"protected": 1}
    assert kept() == {"status": 1}
    run_sql(database, "UPDATE conversations SET status = 'completed'")
    assert kept() == {"in_use": 1}
    run_sql(database, "UPDATE conversations SET updated_at = created_at")
    assert kept() == {"imported": 2}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("updated_at", "'yesterday'"),
        ("updated_at", "''"),
        ("updated_at", "'2026-13-01T00:00:00.000Z'"),
        ("updated_at", "CAST(X'FFFE' AS TEXT)"),
        ("updated_at", "X'00FF'"),
        ("status", "CAST(X'636F6D706CFF' AS TEXT)"),
        ("imported_at", "CAST(X'FF' AS TEXT)"),
        ("parent_key", "CAST(X'726F6F74FF' AS TEXT)"),
        ("key", "CAST(X'6368696C64FF' AS TEXT)"),
        ("key", "''"),
        ("key", "'child' || char(0)"),
        ("key", "printf('%.600c', 'k')"),
    ],
)
def test_a_row_that_cannot_be_read_keeps_its_tree_and_stops_nothing(
    file_database: Database, path: Path, column: str, value: str
) -> None:
    """Acceptance 20, VA-08: another program's garbage is no proof of age, and no reason to prune nothing at all."""
    with file_database.write(now=NOON) as work:
        add(work, "root")
        add(work, "child", "root", status="completed")
        add(work, "old")
        add(work, "older", "old", status="completed")
    sql(path, f"UPDATE conversations SET {column} = {value} WHERE key = 'child'")

    done = prune(file_database, now=NOON)

    assert sql(path, "SELECT count(*) FROM conversations") == [(2 if column != "parent_key" else 1,)]
    assert done.kept == {"unknown_time": 2 if column != "parent_key" else 1}
    assert (done.candidates, done.deleted) == (4, 2 if column != "parent_key" else 3)
    assert done.roots["unknown_time"] == ("root" if column != "parent_key" else "child",)


def test_of_unknown_time_comes_before_every_other_reason(file_database: Database, path: Path) -> None:
    """A tree of which something cannot be read is for a person to look at, whatever else holds it."""
    with file_database.write(now=NOON) as work:
        add(work, "root", status="executing", imported_at=NOON)
        add(work, "child", "root", used=NOON)
    sql(path, "UPDATE conversations SET updated_at = 'never' WHERE key = 'root'")

    done = prune(file_database, now=NOON, protect=["root"])

    assert (done.candidates, done.kept) == (1, {"unknown_time": 1})


def test_a_root_that_is_no_text_is_named_so_that_it_can_be_printed(file_database: Database, path: Path) -> None:
    """VA-08: a lone surrogate in a report fails in the terminal, or in JSON, far from here."""
    with file_database.write(now=NOON) as work:
        add(work, "root")
    sql(path, "UPDATE conversations SET key = CAST(X'726F6F74FF' AS TEXT)")

    assert prune(file_database, now=NOON).roots == {"unknown_time": (r"root\xff",)}


def test_an_import_time_that_cannot_be_read_counts_as_not_used_since(file_database: Database, path: Path) -> None:
    """IM-09: in doubt, history that was brought in stays."""
    with file_database.write(now=NOON) as work:
        add(work, "k")
    sql(path, "UPDATE conversations SET imported_at = 'last week'")

    assert prune(file_database, now=NOON).kept == {"imported": 1}
    assert prune(file_database, now=NOON, include_imported=True).deleted == 1


@pytest.mark.parametrize("written", ["infinity", "-infinity", "12026-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC"])
def test_a_time_that_python_does_not_have_keeps_its_tree(server_database: Database, written: str) -> None:
    """VA-08: PostgreSQL has such instants, and its driver fails on them."""
    with server_database.write(now=NOON) as work:
        add(work, "root")
        add(work, "old")
    run_sql(server_database, f"UPDATE conversations SET updated_at = '{written}' WHERE key = 'root'")

    done = prune(server_database, now=NOON)

    assert (done.kept, keys(server_database)) == ({"unknown_time": 1}, ["root"])


# --- the report ------------------------------------------------------------------------------------------------------


def many_kinds(work: UnitOfWork) -> None:
    """Add a tree for every outcome that a look can have."""
    for key in ("gone 1", "gone 2", "protected", "busy", "used", "imported"):
        a_conversation(work, key, turns=3)
        fork(work, key, f"{key}/branch", inherit=True)
        fork(work, key, f"{key}/agent")
        set_status(work, f"{key}/agent", "completed")
    set_status(work, "busy/agent", "executing")


def after_many_kinds(database: Database) -> None:
    """Make the trees of `many_kinds` what their names say."""
    with database.write(now=LONG_AGO) as work:
        many_kinds(work)
    with database.write(now=NOON) as work:
        a_turn(work, "used/branch")
    run_sql(database, "UPDATE conversations SET imported_at = updated_at WHERE key = 'imported'")


def test_a_dry_run_reports_the_same_and_writes_nothing(database: Database) -> None:
    """RT-09, acceptance 20: who looks first must see what will happen."""
    after_many_kinds(database)
    before = keys(database)

    rehearsed = prune(database, now=NOON, protect=["protected"], dry_run=True)
    untouched = keys(database)
    done = prune(database, now=NOON, protect=["protected"])

    assert untouched == before
    assert (rehearsed.dry_run, done.dry_run) == (True, False)
    assert comparable(rehearsed) == comparable(done)
    assert (done.candidates, done.deleted, done.deleted_turns) == (17, 6, 10)
    assert done.kept == {"protected": 3, "status": 3, "in_use": 2, "imported": 3}
    assert done.deleted + sum(done.kept.values()) == done.candidates
    assert list(done.roots) == ["deleted", "protected", "status", "in_use", "imported"]
    assert len(keys(database)) == len(before) - 6
    assert orphans(database) == 0


def comparable(found: PruneReport) -> tuple[Any, ...]:
    """Return all that a report says but whether it was a rehearsal."""
    return found.cutoff, found.candidates, found.deleted, found.deleted_turns, found.kept, found.roots


def test_a_dry_run_needs_no_right_to_write(file_database: Database, path: Path) -> None:
    """RT-09: an operator looks with a read-only handle; the real run says that it cannot."""
    with file_database.write(now=NOON) as work:
        add(work, "k")

    with Database.open(path, "ro") as readonly:
        assert prune(readonly, now=NOON, dry_run=True).deleted == 1
        with pytest.raises(DatabaseReadOnly):
            prune(readonly, now=NOON)


def test_a_hundred_roots_are_named_per_reason(database: Database) -> None:
    """A report is for a person, and an import may have brought in thousands."""
    with database.write(now=NOON) as work:
        for number in reversed(range(101)):
            add(work, f"old {number:03}")
            add(work, f"imported {number:03}", imported_at=NOON)

    done = prune(database, now=NOON)

    assert (done.deleted, done.kept) == (101, {"imported": 101})
    assert done.roots == {
        "deleted": tuple(f"old {number:03}" for number in range(100)),
        "imported": tuple(f"imported {number:03}" for number in range(100)),
    }


def test_turns_that_are_hidden_count_as_deleted_rows(database: Database) -> None:
    """RT-09: what a branch still needed of its parent is deleted with both."""
    with database.write(now=LONG_AGO) as work:
        a_conversation(work, "main", turns=4)
        fork(work, "main", "branch", inherit=True)
    run_sql(database, "UPDATE conversations SET compacted_seq = 5 WHERE key = 'main'")

    assert prune(database, now=NOON).deleted_turns == 5


# --- used between look and deletion ----------------------------------------------------------------------------------


def append_with_a_clock_set_back(work: UnitOfWork) -> None:
    """Append as of long ago: the last use stays what it was (TM-05)."""
    earlier = UnitOfWork(work.connection, LONG_AGO - DAY, work.info)
    append(earlier, "tree/branch", [said()])


@pytest.mark.parametrize(
    "act",
    [
        lambda work: append(work, "tree", [said()]),
        lambda work: append(work, "tree/branch", [said()]),
        append_with_a_clock_set_back,
        lambda work: set_status(work, "tree/agent", "active"),
        lambda work: fork(work, "tree/branch", "new branch", inherit=True),
        lambda work: add(work, "new child", "tree/branch", status="completed"),
        lambda work: delete_conversation(work, "tree/agent"),
        lambda work: delete_conversation(work, "tree", children="cascade"),
        lambda work: delete_conversation(work, "tree", children="keep"),
    ],
    ids=[
        "root used",
        "branch used",
        "clock set back",
        "at work again",
        "forked",
        "child added",
        "a part deleted",
        "all deleted",
        "detached",
    ],
)
def test_what_changes_after_the_look_is_left_as_it_is(database: Database, act: Callable[[UnitOfWork], object]) -> None:
    """RT-02, RT-09: a conversation taken up again in this very moment must not lose its history; the others go."""
    with database.write(now=LONG_AGO) as work:
        a_conversation(work, "tree", turns=2)
        fork(work, "tree", "tree/branch", inherit=True)
        fork(work, "tree", "tree/agent")
        set_status(work, "tree/agent", "completed")
        a_conversation(work, "before", turns=1)
        a_conversation(work, "unrelated", turns=1)
    expected: list[str] = []

    def interfere(work: UnitOfWork) -> None:
        act(work)
        found = work.connection.execute(text("SELECT key FROM conversations ORDER BY key")).scalars()
        expected.extend(key for key in found if key not in ("before", "unrelated"))

    done = prune(database, now=NOON, on_progress=at_the_start(interfere, database))

    assert keys(database) == expected
    assert (done.candidates, done.deleted, done.deleted_turns, done.kept) == (5, 2, 2, {"changed": 3})
    assert done.roots == {"deleted": ("before", "unrelated"), "changed": ("tree",)}
    assert orphans(database) == 0


def test_a_writer_who_holds_the_conversation_is_waited_for_and_wins(server: Server, server_database: Database) -> None:
    """PG-02, RT-02: the row is looked at again behind the lock, not before it."""
    with server_database.write(now=LONG_AGO) as work:
        for key in ("a", "b", "c"):
            a_conversation(work, key, turns=1)

    with ThreadPoolExecutor(1) as pool:
        with server_database.write(now=NOON) as work:
            append(work, "b", [said("one more thing")])
            waiting: Future[PruneReport] = pool.submit(prune, server_database, now=NOON)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
        done = waiting.result(60)

    assert (done.deleted, done.kept, keys(server_database)) == (2, {"changed": 1}, ["b"])


# --- batches ---------------------------------------------------------------------------------------------------------


def remaining(database: Database) -> tuple[int, int]:
    """Return how many conversations and turns there are."""
    with database.read() as work:
        count = "SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM turns)"
        found = work.connection.execute(text(count)).one()
        return int(found[0]), int(found[1])


def test_a_transaction_takes_200_conversations_and_the_turns_in_between_are_seen(database: Database) -> None:
    """LK-07: one transaction over everything kept live appends waiting past their timeout."""
    with database.write(now=NOON) as work:
        for number in range(450):
            add(work, f"k-{number:03}")
    seen: list[tuple[int, int, int]] = []

    prune(database, now=NOON, on_progress=lambda done, total: seen.append((done, total, remaining(database)[0])))

    assert seen == [(0, 450, 450), (200, 450, 250), (400, 450, 50), (450, 450, 0)]


def test_a_transaction_takes_2000_turns_and_a_bigger_tree_goes_alone(database: Database) -> None:
    """LK-07: a few long conversations hold the lock as long as many short ones."""
    with database.write(now=LONG_AGO) as work:
        for key, count in [("a", 1500), ("b", 500), ("c", 1), ("d", 2001), ("e", 1)]:
            create(work, key)
            Turns(work).add_many([a_row(key, seq) for seq in range(1, count + 1)])
    seen: list[tuple[int, int]] = []

    done = prune(database, now=NOON, on_progress=lambda *_: seen.append(remaining(database)))

    assert seen == [(5, 4003), (3, 2003), (2, 2002), (1, 1), (0, 0)]
    assert (done.deleted, done.deleted_turns) == (5, 4003)


def a_row(key: str, seq: int) -> dict[str, Any]:
    """Return the columns of a turn without messages."""
    return {
        "id": f"{key}-{seq}",
        "conversation_key": key,
        "seq": seq,
        "kind": 0,
        "message_count": 0,
        "origin_key": None,
        "summary": None,
        "author": "",
        "created_at": LONG_AGO,
        "meta": None,
        "messages": "[]",
    }


def test_between_two_transactions_others_get_their_turn(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """LK-07: SQLite queues nobody, and a loop that takes the lock again at once starves who waits for it."""
    pauses: list[float] = []
    monkeypatch.setattr(clock, "pause", pauses.append)
    with database.write(now=NOON) as work:
        for number in range(450):
            add(work, f"k-{number:03}")

    prune(database, now=NOON)

    assert len(pauses) == 2
    assert all(0.005 <= seconds <= 0.1 for seconds in pauses)


@pytest.mark.parametrize(("took", "waits"), [(0.0, 0.005), (0.05, 0.05), (9.0, 0.1)])
def test_others_get_as_much_time_as_a_transaction_took(
    monkeypatch: pytest.MonkeyPatch, took: float, waits: float
) -> None:
    """LK-07: too short and nobody finds the lock free, too long and maintenance takes all night."""
    pauses: list[float] = []
    monkeypatch.setattr(clock, "pause", pauses.append)

    clock.rest_after(took)

    assert pauses == [waits]


def test_no_statement_reads_a_body_or_has_more_than_500_ids(database: Database) -> None:
    """RT-08, acceptance 19: one tree of 1,201 conversations is deleted in chunks."""
    with database.write(now=NOON) as work:
        add(work, "root")
        for number in range(1200):
            add(work, f"k-{number:04}", "root", status="completed")

    with statements(database) as executed:
        done = prune(database, now=NOON)

    assert done.deleted == 1201
    assert max(parameters for _, parameters in executed) == 500
    assert [statement for statement, _ in executed if "messages" in statement] == []


def test_turns_are_counted_in_the_index(file_database: Database) -> None:
    """Section 17: counting must not walk over bodies."""
    with statements(file_database) as executed:
        prune(file_database, now=NOON)
    with file_database.read() as work:
        plan = work.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {executed[-1][0]}").all()

    assert any("turns USING COVERING INDEX" in row.detail for row in plan)


def test_what_was_deleted_before_an_interruption_stays_deleted(database: Database) -> None:
    """LK-07, LK-09: each batch is final, and the next prune goes on from there."""
    with database.write(now=NOON) as work:
        for number in range(450):
            add(work, f"k-{number:03}")

    def interrupt(done: int, _: int) -> None:
        if done == 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(database, now=NOON, on_progress=interrupt)

    assert remaining(database) == (50, 0)
    assert prune(database, now=NOON).deleted == 50
