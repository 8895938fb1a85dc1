"""A turn that is collected while a model thinks: stored whole and once, or not at all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentstate.conversations import messages as stored_text
from agentstate.conversations import workflows
from agentstate.conversations.models import TurnKind
from agentstate.conversations.records import TurnRecord
from agentstate.conversations.repositories import Turns
from agentstate.conversations.writer import TurnWriter, begin_turn
from agentstate.db.database import Database
from agentstate.errors import (
    ConversationEnded,
    ConversationNotFound,
    DatabaseBusy,
    InvalidIdentifier,
    InvalidMessage,
    InvalidValue,
    OriginMissing,
    ReportRoleRefused,
    TurnAlreadyCommitted,
    TurnConflict,
    TurnDiscarded,
    TurnTooLarge,
)
from agentstate.settings import Settings
from builders import MAIN, NOON, a_conversation, python, said
from conversation_helpers import Injected, failing_commit, texts
from db_helpers import asked, can_write, holding
from postgres_server import Server

EVERY_CHANGE: list[Callable[[TurnWriter], None]] = [
    lambda turn: turn.add(said()),
    lambda turn: turn.set_origin("subagent:scout-1"),
    lambda turn: turn.set_author("ada"),
    lambda turn: turn.set_summary("looked around"),
    lambda turn: turn.set_meta({}),
    lambda turn: turn.commit(),
    lambda turn: turn.discard(),
]

DYING = """
import os, signal, sys
from sqlalchemy import event
from agentstate.conversations.writer import begin_turn
from agentstate.db.database import Database
path, moment = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def commit_and_die(connection):
    connection.connection.driver_connection.commit()
    die()

def die_after_insert(connection, cursor, statement, *_):
    if statement.startswith("INSERT INTO turns"):
        die()

database = Database.open(path)
with database.write():
    pass  # has looked at the schema: the next commit is the turn's
with begin_turn(database, "agent:ada:main", turn_id="turn-1") as turn:
    for number in range(3):
        turn.add({"role": "user", "content": str(number) * 100_000})
        if moment == "between two messages" and number == 1:
            die()
    if moment == "after the insert":
        event.listen(database._engine, "after_cursor_execute", die_after_insert)
    if moment == "before the commit":
        event.listen(database._engine, "commit", die)
    if moment == "after the commit":
        event.listen(database._engine, "commit", commit_and_die)
"""


def stored(database: Database) -> list[TurnRecord]:
    """Return the turns of the conversation."""
    with database.read() as work:
        return Turns(work).list_turns(MAIN)


@pytest.fixture
def conversation(database: Database) -> Database:
    """Each kind of database with one empty conversation."""
    with database.write(now=NOON) as work:
        a_conversation(work)
    return database


def test_leaving_the_block_stores_one_turn_with_all_that_was_said_of_it(conversation: Database) -> None:
    """SE-12: a turn is there whole or not at all; its id is known from the start and its seq once it is stored."""
    with begin_turn(conversation, MAIN, TurnKind.REPORT) as turn:
        before = (turn.id, turn.seq)
        turn.add(said("JWT is enough."))
        turn.add(said("Thanks.", "assistant"))
        turn.set_origin("subagent:scout-1")
        turn.set_author("scout-1")
        turn.set_summary("compared tokens")
        turn.set_meta({"tokens": 12})

    [found] = stored(conversation)
    assert before == (found.id, None)
    assert (turn.id, turn.seq) == (found.id, 1)
    assert (found.kind, found.origin_key, found.author) == (TurnKind.REPORT, "subagent:scout-1", "scout-1")
    assert (found.summary, found.meta) == ("compared tokens", {"tokens": 12})
    assert found.messages == [said("JWT is enough."), said("Thanks.", "assistant")]


def test_an_exception_in_the_block_stores_nothing(conversation: Database) -> None:
    """SE-12: half a turn looked like amnesia at the next start."""
    with pytest.raises(Injected), begin_turn(conversation, MAIN) as turn:
        turn.add(said())
        raise Injected

    assert stored(conversation) == []
    with pytest.raises(TurnDiscarded) as caught:
        turn.commit()
    assert caught.value.turn_id == turn.id


def test_a_stored_turn_takes_no_change(conversation: Database) -> None:
    """SE-12: what was added after the commit would be lost silently, and a stored turn is not taken back."""
    with begin_turn(conversation, MAIN) as turn:
        turn.add(said("first"))

    for change in EVERY_CHANGE:
        with pytest.raises(TurnAlreadyCommitted) as caught:
            change(turn)

        assert caught.value.turn_id == turn.id
    assert texts(conversation, MAIN) == ["first"]


def test_a_discarded_turn_takes_no_change(conversation: Database) -> None:
    """SE-12: what was given up does not come back by a commit elsewhere."""
    with begin_turn(conversation, MAIN) as turn:
        turn.add(said())
        turn.discard()

    for change in EVERY_CHANGE:
        with pytest.raises(TurnDiscarded):
            change(turn)

    assert stored(conversation) == []


def test_a_commit_in_the_block_is_the_only_one(conversation: Database) -> None:
    """SE-11: leaving the block afterwards stores nothing twice, also when an exception leaves it."""
    with pytest.raises(Injected), begin_turn(conversation, MAIN) as turn:
        turn.add(said())
        turn.commit()
        seq = turn.seq
        raise Injected

    assert seq == 1
    assert [found.seq for found in stored(conversation)] == [1]


def test_a_turn_without_messages_is_not_written_and_can_still_be_filled(conversation: Database) -> None:
    """A turn that says nothing is none: nothing was stored, so that nothing is 'already committed'."""
    with begin_turn(conversation, MAIN) as turn:
        turn.set_author("ada")
        turn.commit()
    with begin_turn(conversation, "nobody has made this one"):
        pass
    empty = stored(conversation)

    turn.add(said())
    turn.commit()

    assert empty == []
    assert [(found.id, found.author) for found in stored(conversation)] == [(turn.id, "ada")]


def test_a_refused_message_leaves_the_turn_as_it_was(conversation: Database) -> None:
    """LK-05: what JSON cannot hold is told where it was added, and the turn goes on without it."""
    with begin_turn(conversation, MAIN) as turn:
        turn.add(said("one"))
        with pytest.raises(InvalidMessage) as caught:
            turn.add({"role": "user", "content": {"score": object()}})
        with pytest.raises(InvalidMessage):
            turn.add({"content": "whose?"})
        turn.add(said("two"))

    assert caught.value.path == "message.content.score"
    assert texts(conversation, MAIN) == ["one", "two"]


def test_what_is_set_is_checked_at_once_and_a_refused_value_changes_nothing(conversation: Database) -> None:
    """VA-01: a NUL that is found out only at the commit costs the whole turn."""
    with begin_turn(conversation, MAIN) as turn:
        turn.add(said())
        turn.set_author("ada")
        turn.set_meta({"good": 1})
        fields = []
        refused: list[Callable[[], None]] = [
            lambda: turn.set_origin(""),
            lambda: turn.set_author("a\0"),
            lambda: turn.set_summary("\ud83d"),
            lambda: turn.set_meta({"score": float("nan")}),
        ]
        for call in refused:
            with pytest.raises(InvalidValue) as caught:
                call()
            fields.append(caught.value.field)

    [found] = stored(conversation)
    assert fields == ["origin_key", "author", "summary", "meta.score"]
    assert (found.author, found.meta, found.origin_key, found.summary) == ("ada", {"good": 1}, None, None)


def test_what_was_added_is_a_copy(conversation: Database) -> None:
    """A caller goes on with its own objects while the model thinks; the turn keeps what was said."""
    message: dict[str, Any] = {"role": "user", "content": [{"text": "one"}]}
    meta = {"tokens": [1]}

    with begin_turn(conversation, MAIN) as turn:
        turn.add(message)
        turn.set_meta(meta)
        message["content"][0]["text"] = "changed"
        meta["tokens"].append(2)

    [found] = stored(conversation)
    assert (found.messages, found.meta) == ([{"role": "user", "content": [{"text": "one"}]}], {"tokens": [1]})


@pytest.mark.parametrize("kind", [TurnKind.FORK_POINT, 3, -1, True, "0", None])
def test_kinds_that_only_forks_write_or_nobody_knows_are_refused_at_the_start(kind: Any) -> None:
    """At the end the model has been paid for, and its answer could not be stored."""
    with Database.memory() as database, pytest.raises(InvalidValue, match="kind"):
        begin_turn(database, MAIN, kind)


def test_bad_keys_and_ids_are_refused_at_the_start() -> None:
    """PG-04: the same; a key that only one engine takes is none."""
    with Database.memory() as database:
        with pytest.raises(InvalidIdentifier, match="key"):
            begin_turn(database, "")
        with pytest.raises(InvalidIdentifier, match="turn_id"):
            begin_turn(database, MAIN, turn_id="t" * 513)


def test_a_report_that_would_be_refused_at_the_end_is_refused_when_it_is_added(conversation: Database) -> None:
    """SE-10: a message cannot be taken out again, so that a refusal at the commit would cost the whole report."""
    with begin_turn(conversation, MAIN, TurnKind.REPORT) as turn:
        turn.set_origin("subagent:scout-1")
        with pytest.raises(ReportRoleRefused):
            turn.add(said("I found it.", "assistant"))
        turn.add(said("I found it."))
        with pytest.raises(ReportRoleRefused):
            turn.add(said("Obey.", "system"))
        turn.add(said("Good.", "assistant"))

    assert texts(conversation, MAIN) == ["I found it.", "Good."]


def test_what_makes_a_turn_too_large_is_refused_when_it_is_added(
    conversation: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VA-07: whatever was added can be stored, to the last byte."""
    fits = len('[{"role":"user","content":"ä"},{"role":"user","content":"ä"}]'.encode())
    monkeypatch.setattr(stored_text, "MAX_TURN_BYTES", fits)

    with begin_turn(conversation, MAIN) as turn:
        with pytest.raises(TurnTooLarge):
            turn.add(said("x" * fits))
        turn.add(said("ä"))
        with pytest.raises(TurnTooLarge) as caught:
            turn.add(said("äb"))
        turn.add(said("ä"))

    assert (caught.value.size, caught.value.limit) == (fits + 1, fits)
    assert texts(conversation, MAIN) == ["ä", "ä"]


def test_a_commit_that_was_refused_can_be_repeated_after_the_block(conversation: Database) -> None:
    """SE-12: without an origin, in an unknown conversation or in an ended one nothing is lost, and then stored once."""
    with conversation.write(now=NOON) as work:
        workflows.set_status(work, MAIN, "completed")

    with pytest.raises(OriginMissing), begin_turn(conversation, MAIN, TurnKind.QUESTION) as question:
        question.add(said("Which one?"))
    with pytest.raises(ConversationNotFound), begin_turn(conversation, "k") as early:
        early.add(said("too early"))
    with pytest.raises(ConversationEnded), begin_turn(conversation, MAIN) as late:
        late.add(said("too late"))
    before = (question.seq, early.seq, late.seq)
    with conversation.write(now=NOON) as work:
        workflows.set_status(work, MAIN, "active")
        a_conversation(work, "k")
    question.set_origin("subagent:scout-1")
    for turn in (question, early, late):
        turn.commit()

    assert before == (None, None, None)
    assert texts(conversation, MAIN) == ["Which one?", "too late"]
    assert texts(conversation, "k") == ["too early"]


def test_a_failed_commit_in_the_block_does_not_discard_the_turn_and_another_failure_does(
    conversation: Database,
) -> None:
    """SE-12: the commit's own error leaves the turn open wherever it is raised; any other exception gives it up."""
    with pytest.raises(ConversationNotFound), begin_turn(conversation, "k") as kept:
        kept.add(said())
        kept.commit()
    with pytest.raises(Injected), begin_turn(conversation, "k") as given_up:
        given_up.add(said())
        with pytest.raises(ConversationNotFound):
            given_up.commit()
        raise Injected
    with conversation.write(now=NOON) as work:
        a_conversation(work, "k")

    kept.commit()

    with pytest.raises(TurnDiscarded):
        given_up.commit()
    assert kept.seq == 1
    assert texts(conversation, "k") == ["hello"]


@pytest.mark.parametrize("after_it", [False, True])
def test_a_commit_of_unknown_fate_is_repeated_under_the_same_id(conversation: Database, after_it: bool) -> None:
    """LK-09, SE-11: a retry after a commit that had landed stored the turn twice."""
    with failing_commit(conversation, stored=after_it):
        with pytest.raises(Injected), begin_turn(conversation, MAIN) as turn:
            turn.add(said("once"))
        before = (turn.seq, [found.id for found in stored(conversation)])
        turn.commit()

    assert before == (None, [turn.id] if after_it else [])
    assert [(found.id, found.seq) for found in stored(conversation)] == [(turn.id, turn.seq)]
    with pytest.raises(TurnAlreadyCommitted):
        turn.commit()


def test_the_callers_own_id_makes_a_turn_safe_to_collect_again(conversation: Database) -> None:
    """SE-11: same id and content, one row; same id and other content is a conflict; the same text elsewhere is new."""
    turns = [begin_turn(conversation, MAIN, turn_id=turn_id) for turn_id in ("a", "a", "b")]
    for turn in turns:
        with turn:
            turn.add(said())

    with pytest.raises(TurnConflict), begin_turn(conversation, MAIN, turn_id="a") as other:
        other.add(said("something else"))

    assert [turn.seq for turn in turns] == [1, 1, 2]
    assert other.seq is None
    assert [found.id for found in stored(conversation)] == ["a", "b"]


def test_a_busy_database_keeps_the_turn_for_a_later_commit(file_database: Database, path: Path) -> None:
    """LK-09: after a commit that could not get the lock, the model's answer is not asked for again."""
    with file_database.write(now=NOON) as work:
        a_conversation(work)

    with Database.open(path, settings=Settings(busy_timeout=0.05)) as impatient:
        with holding(path, "BEGIN IMMEDIATE"):
            with pytest.raises(DatabaseBusy), begin_turn(impatient, MAIN) as at_exit:
                at_exit.add(said("at the exit"))
            with begin_turn(impatient, MAIN) as inside:
                inside.add(said("inside"))
                with pytest.raises(DatabaseBusy):
                    inside.commit()
                inside.discard()
            with pytest.raises(DatabaseBusy):
                at_exit.commit()
        at_exit.add(said("and more"))
        at_exit.commit()

    assert can_write(path)
    assert texts(file_database, MAIN) == ["at the exit", "and more"]
    assert [found.id for found in stored(file_database)] == [at_exit.id]


@pytest.mark.parametrize(
    ("moment", "count"),
    [("between two messages", 0), ("after the insert", 0), ("before the commit", 0), ("after the commit", 3)],
)
def test_a_killed_process_leaves_the_whole_turn_or_nothing(
    file_database: Database, path: Path, moment: str, count: int
) -> None:
    """SE-12: kill -9 at any moment; whoever collects the turn again under its id has it once."""
    with file_database.write(now=NOON) as work:
        a_conversation(work)

    process = python(DYING, path, moment)
    _, errors = process.communicate(timeout=120)
    left = [len(found.messages) for found in stored(file_database)]
    with begin_turn(file_database, MAIN, turn_id="turn-1") as turn:
        for number in range(3):
            turn.add(said(str(number) * 100_000))

    assert process.returncode == -signal.SIGKILL, errors
    assert left == [count][: bool(count)]
    assert [found.id for found in stored(file_database)] == ["turn-1"]
    assert asked(path, "PRAGMA integrity_check") == "ok"


def test_others_write_while_a_turn_is_collected(conversation: Database) -> None:
    """PG-01: the one connection of a database in memory, and the one write lock of a file, are free in the block."""
    with begin_turn(conversation, MAIN) as slow:
        slow.add(said("slow"))
        with begin_turn(conversation, MAIN) as quick:
            quick.add(said("quick"))
        seen = texts(conversation, MAIN)

    assert seen == ["quick"]
    assert (quick.seq, slow.seq) == (1, 2)


def test_the_server_sees_no_transaction_while_a_turn_is_collected(server: Server, server_url: str) -> None:
    """PG-01: idle transactions were killed in the middle of a model call, and the pool ran out.

    Asked from another connection in the block, in place of the three seconds that a model would take.
    """
    server.psql(f"ALTER DATABASE {server_url.rpartition('/')[2]} SET idle_in_transaction_session_timeout = '1s'")
    with Database.open(server_url, settings=Settings(pool_size=1)) as database:
        with database.write(now=NOON) as work:
            a_conversation(work)

        with begin_turn(database, MAIN) as one, begin_turn(database, MAIN) as two:
            one.add(said("one"))
            two.add(said("two"))
            states = server.clients()
            one.commit()
            states += server.clients()

        assert [state for _, state in states] == ["idle", "idle"]
        assert texts(database, MAIN) == ["one", "two"]


def test_many_threads_fill_one_turn_and_many_commits_store_it_once(conversation: Database) -> None:
    """CN-03: nothing that was added before the commit is lost, and only one of the commits wins."""
    turn = begin_turn(conversation, MAIN)

    def fill(number: int) -> None:
        for count in range(20):
            turn.add(said(f"{number}-{count}"))

    def commit(_: int) -> bool:
        try:
            turn.commit()
        except TurnAlreadyCommitted:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(8)))
        winners = list(pool.map(commit, range(8)))

    found = texts(conversation, MAIN)
    assert winners.count(True) == 1
    assert len(stored(conversation)) == 1
    assert sorted(map(str, found)) == sorted(f"{number}-{count}" for number in range(8) for count in range(20))
    assert [text for text in found if str(text).startswith("3-")] == [f"3-{count}" for count in range(20)]
