"""The id of a turn: what a caller brings makes a repeated call store nothing twice, what we make is new each time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.models import ENDED, TurnKind, new_turn_id
from agentstate.conversations.records import Appended
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database
from agentstate.db.forks import OwnConnection
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationEnded, DatabaseBusy, TurnConflict
from agentstate.settings import Settings
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import everything, seqs, texts
from db_helpers import asked, can_write, holding, made

TURN: dict[str, Any] = {
    "messages": [said("what?"), {"role": "assistant", "content": None, "n": [2**70, "\0", "\ud83d"]}],
    "kind": TurnKind.QUESTION,
    "origin_key": "subagent:1",
    "summary": "asked",
    "author": "ada",
    "meta": {"a": 1, "b": [None]},
}


def the_turn(work: UnitOfWork, key: str = MAIN, **other: Any) -> Appended:
    """Append the turn under its id, with other values where they are given."""
    return workflows.append(work, key, **{"turn_id": "turn-1", **TURN, **other})


def test_the_same_turn_under_its_id_is_stored_once(database: Database) -> None:
    """SE-11: a client that repeated what had landed caused two turns of its user, and two runs of the model."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
        first = the_turn(work)
        a_turn(work, text="3")
    before = everything(database)

    with database.write(now=LATER) as work:
        again = the_turn(work)
        and_again = the_turn(work, created_at=LATER, meta=dict(TURN["meta"]), messages=tuple(TURN["messages"]))

    assert first == Appended("turn-1", 2, True)
    assert again == and_again == Appended("turn-1", 2, False)
    assert everything(database) == before  # the last use too


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [said("what?")]},
        {"messages": [TURN["messages"][0], {**TURN["messages"][1], "x": 1}]},
        {"messages": TURN["messages"][::-1], "kind": TurnKind.NORMAL},
        {"kind": TurnKind.PLAN_SUBMIT},
        {"kind": TurnKind.NORMAL},
        {"origin_key": "subagent:2"},
        {"summary": None},
        {"summary": "Asked"},
        {"author": ""},
        {"meta": None},
        {"meta": {"b": [None], "a": 1}},
        {"key": "other"},
        {"key": "gone"},
    ],
)
def test_another_turn_under_a_taken_id_is_refused(database: Database, other: dict[str, Any]) -> None:
    """SE-11: whoever uses an id twice would believe that the second turn is stored."""
    with database.write(now=NOON) as work:
        a_conversation(work)
        a_conversation(work, "other", turns=1)
        the_turn(work)
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(TurnConflict) as caught:
        the_turn(work, **other)

    assert (caught.value.turn_id, caught.value.conversation_key) == ("turn-1", MAIN)
    assert everything(database) == before


def test_the_same_text_under_another_id_or_none_is_another_turn(database: Database) -> None:
    """SE-11: a person may say "yes" twice; nothing is guessed from the text."""
    with database.write() as work:
        a_conversation(work)
        for turn_id in ("turn-1", "turn-2", None, None):
            the_turn(work, turn_id=turn_id)

    assert seqs(database, MAIN) == [1, 2, 3, 4]


@pytest.mark.parametrize("status", sorted(ENDED))
def test_a_stored_turn_is_found_although_its_conversation_has_ended_since(database: Database, status: str) -> None:
    """SE-11, SE-13: the answer to the first call was lost, not the turn; a new one is refused as ever."""
    with database.write(now=NOON) as work:
        a_conversation(work)
        the_turn(work)
        workflows.set_status(work, MAIN, status)
    before = everything(database)

    with database.write(now=LATER) as work:
        again = the_turn(work)
        with pytest.raises(TurnConflict):
            the_turn(work, author="eve")
        with pytest.raises(ConversationEnded):
            the_turn(work, turn_id="turn-2")

    assert again == Appended("turn-1", 1, False)
    assert everything(database) == before


def test_an_id_is_known_as_long_as_its_turn_is_stored(database: Database) -> None:
    """A compacted turn that a branch still sees is known; one that is gone is gone, and its id is free."""
    with database.write() as work:
        a_conversation(work)
        the_turn(work)
        workflows.fork(work, MAIN, "branch", inherit=True)
        history.compact_old_turns(work, MAIN, 0, "asked something")

        hidden = the_turn(work)
        workflows.delete_conversation(work, "branch")
        gone = the_turn(work)

    assert hidden == Appended("turn-1", 1, False)
    assert gone == Appended("turn-1", 3, True)


def test_every_way_to_store_a_turn_can_be_repeated_by_its_id(database: Database) -> None:
    """SE-11: reports, questions, plans and what a sub-agent did are turns too."""
    ways: dict[str, Callable[[UnitOfWork, str], Appended]] = {
        "report": lambda work, id: workflows.report(work, MAIN, "subagent:1", "done", turn_id=id),
        "ask": lambda work, id: workflows.ask(work, MAIN, "subagent:1", "may I?", turn_id=id),
        "submit_plan": lambda work, id: workflows.submit_plan(work, MAIN, "subagent:1", "1. …", turn_id=id),
        "record_turn": lambda work, id: workflows.record_turn(work, "subagent:1", [said()], turn_id=id),
        "finish": lambda work, id: workflows.finish(work, "subagent:1", "failed", MAIN, "sorry", turn_id=id),
    }
    with database.write() as work:
        a_conversation(work)
        a_conversation(work, "subagent:1")

    with database.write(now=NOON) as work:
        first = [way(work, name) for name, way in ways.items()]
    before = everything(database)
    with database.write(now=LATER) as work:
        again = [way(work, name) for name, way in ways.items()]

    assert [answer.created for answer in first] == [True] * 5
    assert again == [Appended(answer.turn_id, answer.seq, False) for answer in first]
    assert everything(database) == before


def test_a_replaced_history_can_be_replaced_again_by_the_same_id(database: Database) -> None:
    """SE-11, LK-04: the second call finds its own turn, and not that somebody else wrote meanwhile."""

    def replace(work: UnitOfWork, text: str = "new") -> int | None:
        return history.replace_history(work, MAIN, [said(text)], expected_next_seq=3, turn_id="turn-9")

    with database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        first = replace(work)
    before = everything(database)

    with database.write(now=LATER) as work:
        again = replace(work)
        with pytest.raises(TurnConflict):
            replace(work, "newer")

    assert (first, again) == (3, 3)
    assert everything(database) == before
    assert texts(database, MAIN) == ["new"]


# --- commits ---------------------------------------------------------------------------------------------------------


def test_a_refused_commit_writes_nothing_and_the_repeat_stores_one_turn(path: Path) -> None:
    """LK-09: 'locked' at COMMIT; a reader in another process keeps the writer from its last step."""
    settings = Settings(busy_timeout=0.1, journal_mode="delete")
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        with database.write() as work:
            a_conversation(work)
        with holding(path, "BEGIN", "SELECT * FROM turns"):
            with pytest.raises(DatabaseBusy), database.write() as work:
                the_turn(work)
            free = can_write(path)
        between = asked(path, "SELECT count(*) FROM turns")
        with database.write() as work:
            again = the_turn(work)

    assert free
    assert between == 0
    assert again == Appended("turn-1", 1, True)
    assert asked(path, "SELECT count(*) FROM turns") == 1


def test_a_failure_just_after_the_commit_is_followed_by_no_second_turn(
    file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-09: a commit of unknown fate was repeated, and the turn was there twice."""
    with file_database.write() as work:
        a_conversation(work)

    def commit_and_fail(connection: OwnConnection) -> None:
        sqlite3.Connection.commit(connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OwnConnection, "commit", commit_and_fail, raising=False)
        with pytest.raises(KeyboardInterrupt), file_database.write() as work:
            the_turn(work)
    alone = asked(path, "SELECT count(*) FROM turns")
    with file_database.write() as work:
        again = the_turn(work)

    assert alone == 1
    assert again == Appended("turn-1", 1, False)
    assert can_write(path)


# --- our own ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "now",
    [NOON, NOON + timedelta(milliseconds=999), datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)],
)
def test_an_id_of_ours_is_a_uuid_that_begins_with_its_time(now: datetime) -> None:
    """Random ids spread the inserts over the whole index; these go to its end."""
    ids = [UUID(new_turn_id(now)) for _ in range(100)]

    assert {(id.version, id.variant) for id in ids} == {(7, RFC_4122)}
    assert {id.int >> 80 for id in ids} == {(now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)}
    assert len(set(ids)) == 100


def test_a_later_id_of_ours_sorts_later(database: Database) -> None:
    """As text too, which is how it is stored."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
    with database.write(now=NOON + timedelta(milliseconds=1)) as work:
        a_turn(work)

    with database.read() as work:
        first, second = (turn.id for turn in Turns(work).list_turns(MAIN))
    assert first < second
