"""The sweep: what is old goes, what is still needed stays, and every row is accounted for.

RT-06, RT-07: no table of messages or of an audit trail is there yet. The rules of pruning itself, and that appends go
on meanwhile (LK-07), are shown in test_prune.py and test_prune_at_scale.py; giving space back in test_space.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentstate import retention
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.conversations.workflows import append, create, fork, set_status
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import DatabaseReadOnly, InvalidSetting, InvalidValue, SchemaBehind, SchemaUnversioned
from agentstate.retention import Outcome, Policy, PolicyReport, SweepReport, Task, sweep
from agentstate.settings import Settings
from builders import LATER, NOON, a_conversation, a_start, an_approval, finished, python, said, sql
from db_helpers import asked, holding, made
from session_files import a_document, brought, put

DAY = timedelta(days=1)
LONG_AGO = NOON - 30 * DAY
POLICY = "conversations"

SWEEPER = """
import sys
from datetime import datetime
from agentstate.db.database import Database
from agentstate.retention import sweep
target, now = sys.argv[1:]
with Database.open(target) as database:
    report = sweep(
        database,
        now=datetime.fromisoformat(now),
        batch_rows=10,
        on_progress=lambda what, done, total: print(what, done, total, flush=True),
    )
    found, = report.policies
print(found.candidates, found.deleted, found.kept.get("changed", 0))
"""


def add(database: Database, *keys: str, used: datetime = LONG_AGO, turns: int = 0) -> None:
    """Add conversations that were last used long ago."""
    with database.write(now=used) as work:
        for key in keys:
            a_conversation(work, key, turns=turns)


def keys(database: Database) -> list[str]:
    """Return the keys of all conversations there are."""
    with database.read() as work:
        return list(work.connection.execute(text("SELECT key FROM conversations ORDER BY key")).scalars())


def swept(database: Database, **options: Any) -> PolicyReport:
    """Sweep at NOON and return what is reported of conversations."""
    (found,) = sweep(database, **{"now": NOON, **options}).policies
    assert found.deleted + sum(found.kept.values()) == found.candidates
    return found


@pytest.fixture
def memory() -> Iterator[Database]:
    """A database for what is decided in Python alone."""
    with Database.memory() as found:
        yield found


# --- how long rows are kept ---


def test_conversations_are_kept_for_seven_days(database: Database) -> None:
    """RT-01: the default of the prune; exactly seven days is not older."""
    add(database, "exactly", used=NOON - 7 * DAY)
    add(database, "longer", used=NOON - 7 * DAY - timedelta(milliseconds=1))

    found = swept(database)

    assert found == PolicyReport(POLICY, "conversations", 1, 1, {}, NOON - 7 * DAY, None)
    assert keys(database) == ["exactly"]


@pytest.mark.parametrize(
    ("said_so", "left"), [("3d", ["1"]), ("72h", ["1"]), ("30d", ["1", "5", "9"]), ("", ["1", "5"])]
)
def test_the_environment_says_how_long(
    memory: Database, monkeypatch: pytest.MonkeyPatch, said_so: str, left: list[str]
) -> None:
    """A deployment sets it once for the timer, the scripts and the people who sweep."""
    for days in (1, 5, 9):
        add(memory, str(days), used=NOON - days * DAY)
    monkeypatch.setenv("AGENT_KEEP_CONVERSATIONS", said_so)

    swept(memory)

    assert keys(memory) == left


def test_what_is_kept_for_ever_is_not_even_looked_at(memory: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """RT-07: never is never, by setting or by argument; the report does not speak of it."""
    add(memory, "k")
    monkeypatch.setenv("AGENT_KEEP_CONVERSATIONS", "never")

    assert sweep(memory, now=NOON).policies == ()
    assert sweep(memory, now=NOON, keep={POLICY: timedelta(days=40)}).policies[0].candidates == 0
    monkeypatch.delenv("AGENT_KEEP_CONVERSATIONS")
    assert sweep(memory, now=NOON, keep={POLICY: None}).policies == ()

    assert keys(memory) == ["k"]


def test_only_the_policies_named_are_carried_out(memory: Database) -> None:
    """An operator tidies one table at a time."""
    add(memory, "k")

    assert sweep(memory, now=NOON, only=[]).policies == ()
    assert [found.policy for found in sweep(memory, now=NOON, only=iter([POLICY])).policies] == [POLICY]
    assert keys(memory) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"keep": {POLICY: timedelta(microseconds=-1)}}, "keep"),
        ({"keep": {POLICY: 7}}, "keep"),
        ({"keep": {POLICY: "7d"}}, "keep"),
        ({"keep": {"conversation": timedelta(days=7)}}, "keep"),
        ({"keep": [POLICY]}, "keep"),
        ({"only": ["conversation"]}, "only"),
        ({"only": POLICY}, "only"),
        ({"only": 7}, "only"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"batch_rows": True}, "batch_rows"),
        ({"batch_rows": 2.5}, "batch_rows"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"max_seconds": float("nan")}, "max_seconds"),
        ({"max_seconds": True}, "max_seconds"),
        ({"max_seconds": "60"}, "max_seconds"),
        ({"now": datetime(2026, 11, 29, 12, 0)}, "now"),  # noqa: DTZ001
    ],
)
def test_what_makes_no_sense_is_refused_by_name_before_anything_goes(
    memory: Database, options: dict[str, Any], field: str
) -> None:
    """A negative age would delete what has not happened yet, and a policy misspelt would keep its default."""
    add(memory, "k")

    with pytest.raises(InvalidValue) as caught:
        sweep(memory, **{"now": NOON, **options})

    assert caught.value.field == field
    assert keys(memory) == ["k"]


def test_a_setting_that_is_not_understood_deletes_nothing(memory: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error that falls back to a default is found after the first loss."""
    add(memory, "k")

    for name, value in [("AGENT_KEEP_CONVERSATIONS", "-1d"), ("AGENT_KEEP_CONVERSATION", "never")]:
        with monkeypatch.context() as patch, pytest.raises(InvalidSetting, match=name):
            patch.setenv(name, value)
            sweep(memory, now=NOON)

    assert keys(memory) == ["k"]


# --- what is still needed ---


def request_by_sender(work: UnitOfWork, name: str) -> None:
    """Let a request of that sender wait for its start."""
    a_start(work, sender=name, requested_by="somebody")


def request_on_behalf(work: UnitOfWork, name: str) -> None:
    """Let a request that somebody made for another wait for its start."""
    a_start(work, sender="somebody", requested_by=name)


def finished_job(work: UnitOfWork, name: str) -> None:
    """Let a finished job wait for its release."""
    an_approval(work, requested_by=name)


@pytest.mark.parametrize("wait", [request_by_sender, request_on_behalf, finished_job])
def test_whoever_waits_for_a_yes_keeps_the_conversations(
    database: Database, wait: Callable[[UnitOfWork, str], None]
) -> None:
    """RT-02: the answer would have come to an agent that remembers nothing of the question."""
    add(database, "ada_", "agent:ada_:main", "agent:ada_:tg:direct:7", "agent:ada_:", "agent:adax:main", "ada_x")
    add(database, "agent:ADA_:main", "xagent:ada_:main", "agent:ada_", "agent:ada_;")
    with database.write(now=NOON) as work:
        wait(work, "ada_")

    found = swept(database)

    assert keys(database) == ["ada_", "agent:ada_:", "agent:ada_:main", "agent:ada_:tg:direct:7"]
    assert (found.candidates, found.deleted, found.kept) == (10, 6, {"protected": 4})


def test_what_is_needed_keeps_its_whole_tree_until_the_answer(database: Database) -> None:
    """RT-02, RT-03: a child of what is needed would go with its history otherwise; answered, all ages as usual."""
    add(database, "root")
    with database.write(now=LONG_AGO) as work:
        fork(work, "root", "agent:tg:7:main", inherit=True)
        fork(work, "agent:tg:7:main", "subagent:1")
        set_status(work, "subagent:1", "completed")
    with database.write(now=NOON) as work:
        a_start(work, "job-1", sender="tg:7")

    assert swept(database).kept == {"protected": 3}

    with database.write(now=NOON) as work:
        StartsPending(work).delete("job-1")
    assert (swept(database).deleted, keys(database)) == (3, [])


def test_the_names_of_everybody_who_waits_are_looked_up(database: Database) -> None:
    """RT-02: each once, in the form in which they are stored."""
    with database.write(now=NOON) as work:
        a_start(work, "job-1", sender="Alice@Bot.Example/phone", requested_by="worker")
        a_start(work, "job-2", sender="alice@bot.example", requested_by="bob")
        an_approval(work, "job-3", requested_by="carol")

        assert StartsPending(work).list_names() == {"alice@bot.example", "worker", "bob"}
        assert PendingApprovals(work).list_names() == {"carol"}


def test_a_name_that_other_hands_stored_as_bytes_protects_too(file_database: Database, path: Path) -> None:
    """VA-08, RT-02: a damaged row must not pass for one that needs nothing."""
    add(file_database, "ada")
    with file_database.write(now=NOON) as work:
        a_start(work)
    sql(path, "UPDATE start_pending SET sender = CAST('ada' AS BLOB)")

    assert swept(file_database).kept == {"protected": 1}


def test_a_name_that_cannot_be_read_keeps_everything(file_database: Database, path: Path) -> None:
    """VA-08, RT-02: nobody can say whose conversations it needs; the report says which value it is."""
    add(file_database, "k")
    with file_database.write(now=NOON) as work:
        an_approval(work)
    sql(path, "UPDATE pending_approval SET requested_by = CAST(x'ff' AS TEXT)")

    report = sweep(file_database, now=NOON)

    (found,) = report.policies
    assert (found.candidates, found.deleted, found.kept, report.finished) == (0, 0, {}, False)
    assert "column requested_by that cannot be read" in str(found.error)
    assert keys(file_database) == ["k"]


def test_a_live_child_keeps_its_parent(database: Database) -> None:
    """RT-02: a sub-agent that has not ended is at work, however old its conversation is."""
    add(database, "root")
    with database.write(now=LONG_AGO) as work:
        fork(work, "root", "subagent:1")

    assert swept(database).kept == {"status": 2}


def test_imported_history_survives_the_start(database: Database, tmp_path: Path) -> None:
    """IM-09, acceptance 22: files last used 30 days ago, brought in, and then everything that runs at start.

    They go only when that is asked for; the report says how many that would be. What was used since ages as usual.
    """
    times = {"created": "2026-10-30T12:00:00Z", "updated": "2026-10-30T12:00:00Z"}
    for number in range(3):
        put(tmp_path / "sessions", f"{number}.json", a_document(f"k-{number}", **times))
    brought(database, tmp_path / "sessions")

    first = swept(database)
    with database.write(now=LATER) as work:
        append(work, "k-1", [said("still here?")])
    later = swept(database, now=LATER + 8 * DAY)

    assert (first.deleted, first.kept) == (0, {"imported": 3})
    assert (later.deleted, later.kept) == (1, {"imported": 2})
    assert keys(database) == ["k-0", "k-2"]


# --- every row is accounted for ---


def test_a_rehearsal_gives_the_numbers_of_the_real_run(database: Database) -> None:
    """RT-09: and changes nothing, not even the space."""
    add(database, "old", "agent:ada:main")
    add(database, "at work")
    add(database, "fresh", used=NOON)
    with database.write(now=LONG_AGO) as work:
        set_status(work, "at work", "executing")
        a_start(work, sender="ada")
    before = keys(database)

    rehearsal = sweep(database, now=NOON, dry_run=True)
    kept = keys(database)
    report = sweep(database, now=NOON)

    assert kept == before
    assert rehearsal == SweepReport(report.policies, None, True, True, None)
    assert [(found.deleted, found.kept) for found in report.policies] == [(1, {"protected": 1, "status": 1})]


def test_a_rehearsal_needs_no_right_to_write(path: Path) -> None:
    """RT-09: an operator looks with a read-only handle; the real run says at once that it cannot."""
    made(path)
    with Database.open(path) as database:
        add(database, "k")

    with Database.open(path, "ro") as readonly:
        assert swept(readonly, dry_run=True).deleted == 1
        with pytest.raises(DatabaseReadOnly):
            sweep(readonly, now=NOON)


def test_time_that_is_up_ends_it_after_a_batch(database: Database) -> None:
    """RT-09: what was not reached is counted, and the next sweep goes on."""
    add(database, "a", "b", "c", turns=2)

    first = sweep(database, now=NOON, max_seconds=0, batch_rows=2)
    (found,) = first.policies
    rest = sweep(database, now=NOON, max_seconds=60, batch_rows=2)

    assert (found.candidates, found.deleted, found.kept, first.finished) == (3, 1, {"not reached": 2}, False)
    assert (rest.policies[0].deleted, rest.policies[0].kept, rest.finished) == (2, {}, True)
    assert keys(database) == []


def test_a_batch_is_as_large_as_asked_for(database: Database) -> None:
    """LK-07: rows of conversations count too, not only their turns."""
    add(database, *(f"k-{number}" for number in range(5)))
    seen: list[tuple[str, int | None, int | None]] = []

    sweep(database, now=NOON, batch_rows=2, on_progress=lambda *step: seen.append(step))

    steps = [(POLICY, done, 5) for done in (0, 2, 4, 5)]
    assert seen == [*steps, ("giving space back", None, None)]


def test_an_error_in_the_middle_is_reported_with_what_was_done(path: Path) -> None:
    """RT-09, LK-08: somebody takes the lock after the first batch and keeps it; the next sweep goes on."""
    made(path)
    with Database.open(path, settings=Settings(busy_timeout=0.1)) as database, ExitStack() as stack:
        add(database, "a", "b", "c", turns=1)

        def lock(_: str, done: int | None, __: int | None) -> None:
            if done == 1:
                stack.enter_context(holding(path, "BEGIN IMMEDIATE"))

        report = sweep(database, now=NOON, batch_rows=1, on_progress=lock)
        (found,) = report.policies
        stack.close()
        rest = sweep(database, now=NOON)

    assert (found.candidates, found.deleted, found.kept) == (3, 1, {"not reached": 2})
    assert f"{path} is busy with others; waited 0.1 s" in str(found.error)
    assert report.finished is False
    assert (rest.policies[0].deleted, rest.policies[0].error, rest.finished) == (2, None, True)


def test_space_that_cannot_be_given_back_is_reported_too(path: Path) -> None:
    """FS-14, LK-08: the rows are gone already, and whoever asked must hear so."""
    made(path)
    with Database.open(path, settings=Settings(busy_timeout=0.1)) as database, ExitStack() as stack:
        with database.write(now=LONG_AGO) as work:
            create(work, "k")
            append(work, "k", [said("x" * 100_000)])

        def lock(what: str, _: int | None, __: int | None) -> None:
            if what == "giving space back":
                stack.enter_context(holding(path, "BEGIN IMMEDIATE"))

        report = sweep(database, now=NOON, on_progress=lock)

    assert (report.policies[0].deleted, report.space, report.finished) == (1, None, False)
    assert "is busy with others" in str(report.error)


def test_a_policy_that_fails_does_not_stop_the_others(memory: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """RT-09: one damaged table, and nothing was ever deleted again."""
    add(memory, "k")

    def fail(task: Task) -> Outcome:
        raise InvalidValue("messages", f"cannot be read at {task.now:%H:%M}")

    broken = Policy("messages", "messages", 90 * DAY, fail)
    monkeypatch.setattr(retention, "POLICIES", (broken, *retention.POLICIES))

    report = sweep(memory, now=NOON)

    expected = PolicyReport("messages", "messages", 0, 0, {}, NOON - 90 * DAY, "messages: cannot be read at 12:00")
    assert report.policies[0] == expected
    assert (report.policies[1].deleted, report.finished) == (1, False)


def test_an_age_beyond_all_times_deletes_nothing(memory: Database) -> None:
    """A number that is meant as "for ever" must not overflow."""
    add(memory, "k")

    found = swept(memory, keep={POLICY: timedelta.max})

    assert (found.candidates, found.cutoff) == (0, datetime.min.replace(tzinfo=UTC))


# --- several at once, and killed ones ---


@pytest.mark.parametrize("kind", ["file", "server"])
def test_two_sweeps_at_once_delete_every_row_once(kind: str, request: pytest.FixtureRequest) -> None:
    """RT-09: two timers, or a timer and a person; the reports of both add up."""
    fixture = "file_database" if kind == "file" else "server_database"
    database: Database = request.getfixturevalue(fixture)
    target = database.name if kind == "file" else str(request.getfixturevalue("server_url"))
    add(database, *(f"k-{number:03}" for number in range(200)))

    outputs = [finished(one).splitlines()[-1] for one in [python(SWEEPER, target, NOON.isoformat()) for _ in range(2)]]

    found = [[int(number) for number in line.split()] for line in outputs]
    assert sum(deleted for _, deleted, _ in found) == 200
    assert all(candidates == deleted + changed for candidates, deleted, changed in found)
    assert keys(database) == []


def test_a_killed_sweep_leaves_whole_trees_and_the_next_one_finishes(path: Path) -> None:
    """LK-09: killed between any two batches."""
    made(path)
    with Database.open(path, settings=Settings(busy_timeout=60)) as database:
        add(database, *(f"k-{number:02}" for number in range(60)), turns=5)

        for _ in range(3):
            sweeper = python(SWEEPER, path, NOON.isoformat())
            assert sweeper.stdout is not None
            for _ in range(3):
                sweeper.stdout.readline()
            sweeper.kill()
            sweeper.communicate()

            assert asked(path, "PRAGMA integrity_check") == "ok"
            assert asked(path, "SELECT count(*) FROM turns") == 5 * len(keys(database))
        assert 0 < len(keys(database)) < 60
        assert sweep(database, now=NOON).finished
        assert (keys(database), asked(path, "SELECT count(*) FROM turns")) == ([], 0)


# --- space, schema, imports ---


def test_what_was_20_megabytes_is_small_afterwards(file_database: Database, path: Path) -> None:
    """FS-14, FS-13: the file kept its peak size, and the write-ahead log its own."""
    with file_database.write(now=LONG_AGO) as work:
        for number in range(20):
            create(work, f"k-{number}")
            append(work, f"k-{number}", [said("x" * 2**20)])
    log = path.with_name(f"{path.name}-wal")
    peak = path.stat().st_size + log.stat().st_size

    report = sweep(file_database, now=NOON)

    assert (report.policies[0].deleted, report.finished) == (20, True)
    assert peak > 20 * 2**20
    assert path.stat().st_size < peak / 4
    assert log.stat().st_size <= 64 * 2**20
    assert report.space is not None
    assert (report.space.file_after, report.space.wal_after) == (path.stat().st_size, log.stat().st_size)


def test_a_reader_who_keeps_the_log_is_in_the_report(file_database: Database, path: Path) -> None:
    """FS-13: with a reader kept open the log cannot be emptied; the sweep works and says so."""
    add(file_database, "k", turns=1)

    with holding(path, "BEGIN", "SELECT count(*) FROM turns"):
        blocked = sweep(file_database, now=NOON)
    free = sweep(file_database, now=NOON)

    assert (blocked.policies[0].deleted, blocked.finished) == (1, True)
    assert blocked.space is not None
    assert blocked.space.blocked_by_reader
    assert free.space is not None
    assert (free.space.blocked_by_reader, free.space.wal_after) == (False, 0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_schema_that_is_not_ours_is_an_error_and_no_report(path: Path, dry_run: bool) -> None:
    """UP-01: a rehearsal too, since the real run would be refused."""
    made(path, to="0003")

    with Database.open(path) as database:
        with pytest.raises(SchemaBehind):
            sweep(database, now=NOON, dry_run=dry_run)
        sql(path, "DROP TABLE alembic_version")
        with pytest.raises(SchemaUnversioned):
            sweep(database, now=NOON, dry_run=dry_run)


def test_a_normal_call_of_the_adapter_loads_no_retention(path: Path) -> None:
    """Cold start is the product's cost: what a timer needs is not loaded by every script."""
    made(path)
    code = """
import sys
from agentstate import adapter
adapter.create_conversation("k", database=sys.argv[1])
print([name for name in ("agentstate.retention", "agentstate.db.space") if name in sys.modules])
"""

    assert finished(python(code, path)) == "[]\n"
