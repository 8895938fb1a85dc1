"""Conversations are made and appended to: which place a turn gets, and who takes no more of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.models import ENDED, TurnKind
from agentstate.conversations.records import TurnRecord
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    ConversationEnded,
    ConversationExists,
    ConversationNotFound,
    EmptyTurn,
    InvalidMessage,
    InvalidValue,
    TurnConflict,
    TurnNotFound,
)
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import column, everything, seqs, texts

SECOND = timedelta(seconds=1)


# --- made ------------------------------------------------------------------------------------------------------------


def test_a_new_conversation_is_active_and_empty(database: Database) -> None:
    """What the columns say when nobody said anything."""
    with database.write(now=NOON) as work:
        made = workflows.create(work, MAIN)
        found = Conversations(work).get(MAIN)

    assert found is made
    assert (made.key, made.status, made.label, made.summary) == (MAIN, "active", "", "")
    assert (made.next_seq, made.compacted_seq, made.created_at, made.updated_at) == (1, 0, NOON, NOON)
    assert (made.parent_key, made.fork_turn_id, made.inherited_seq, made.inherited_summary) == (None,) * 4
    assert (made.imported_at, made.imported_from) == (None, None)


def test_a_key_that_is_taken_is_refused_and_everything_goes_on(database: Database) -> None:
    """CN-04: after an IntegrityError every later call on the same object failed until a restart."""
    with database.write(now=NOON) as work:
        workflows.create(work, MAIN, label="first")

    with database.write(now=LATER) as work:
        with pytest.raises(ConversationExists) as caught:
            workflows.create(work, MAIN, label="second")
        a_turn(work)
    with pytest.raises(ConversationExists), database.write() as work:
        workflows.create(work, MAIN)
    with database.write() as work:
        a_conversation(work, "another")

    assert caught.value.key == MAIN
    assert column(database, MAIN, "label") == "first"
    assert texts(database, MAIN) == ["hello"]


# --- appended --------------------------------------------------------------------------------------------------------


def test_a_turn_comes_back_as_it_was_given(database: Database) -> None:
    """Every field, in the conversation that it was said in, at the time that was given."""
    given = [said("what?"), {"role": "assistant", "content": None, "x_vendor": {"n": [1, 2.5, True, None]}}]
    with database.write(now=NOON) as work:
        a_conversation(work)

    with database.write(now=LATER) as work:
        first = workflows.append(
            work,
            MAIN,
            given,
            turn_id="turn-1",
            kind=TurnKind.REPORT,
            origin_key="subagent:1",
            summary="asked",
            author="ada",
            meta={"model": "m"},
            created_at=NOON - SECOND,
        )
        second = workflows.append(work, MAIN, (said(),))

    with database.read() as work:
        one, two = Turns(work).list_turns(MAIN)
        found = Turns(work).get("turn-1")
    assert (first.turn_id, first.seq, first.created) == ("turn-1", 1, True)
    assert one == found
    assert one == TurnRecord(
        "turn-1", MAIN, 1, TurnKind.REPORT, 2, "subagent:1", "asked", "ada", NOON - SECOND, {"model": "m"}, given
    )
    assert two == TurnRecord(second.turn_id, MAIN, 2, TurnKind.NORMAL, 1, None, None, "", LATER, None, [said()])


def test_an_append_notes_the_last_use_and_nothing_else(database: Database) -> None:
    """Prune goes by the last use; the time of creation is the conversation's own."""
    with database.write(now=NOON) as work:
        a_conversation(work)

    with database.write(now=LATER) as work:
        a_turn(work)

    assert column(database, MAIN, "updated_at") == LATER
    assert column(database, MAIN, "created_at") == NOON


def test_conversations_count_their_turns_apart(database: Database) -> None:
    """A seq is a place in one conversation."""
    with database.write() as work:
        a_conversation(work, "one", turns=2)
        a_conversation(work, "two", turns=3)

    assert (seqs(database, "one"), seqs(database, "two")) == ([1, 2], [1, 2, 3])


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"messages": []}, EmptyTurn),
    ({"messages": [{"role": ""}]}, InvalidMessage),
    ({"kind": TurnKind.FORK_POINT}, InvalidValue),
    ({"kind": 7}, InvalidValue),
    ({"kind": True}, InvalidValue),
    ({"kind": "0"}, InvalidValue),
    ({"turn_id": " "}, InvalidValue),
    ({"turn_id": "taken", "messages": [said("other")]}, TurnConflict),
    ({"origin_key": ""}, InvalidValue),
    ({"created_at": NOON.replace(tzinfo=None)}, InvalidValue),
    ({"meta": [1]}, InvalidValue),
    ({"meta": {1: 2}}, InvalidValue),
]


@pytest.mark.parametrize(("given", "error"), REFUSED)
def test_what_is_refused_leaves_nothing_behind_and_no_gap(
    database: Database, given: dict[str, Any], error: type[Exception]
) -> None:
    """PG-05: after failed inserts a sequence has gaps; these numbers have none, and the unit goes on."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
        a_turn(work, turn_id="taken")
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(error):
        workflows.append(work, MAIN, **{"messages": [said()], **given})

    assert everything(database) == before
    with database.write(now=LATER) as work:
        assert a_turn(work) == 3


def test_a_unit_that_fails_gives_its_seqs_back(database: Database) -> None:
    """PG-05, SE-12: whatever happens before the block ends, nothing of it is stored."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with pytest.raises(ZeroDivisionError), database.write(now=LATER) as work:
        assert a_turn(work) == 2
        assert a_turn(work) == 3
        _ = 1 / 0

    assert everything(database) == before
    with database.write() as work:
        assert a_turn(work) == 2


# --- unknown and ended -----------------------------------------------------------------------------------------------

CHANGES: list[Callable[[UnitOfWork], object]] = [
    lambda work: a_turn(work, "gone"),
    lambda work: a_turn(work, "gone", turn_id="turn-9"),
    lambda work: workflows.set_status(work, "gone", "active"),
    lambda work: workflows.set_summary(work, "gone", "s"),
    lambda work: workflows.set_label(work, "gone", "l"),
    lambda work: workflows.complete(work, "gone"),
    lambda work: workflows.report(work, "gone", MAIN, "done"),
    lambda work: workflows.finish(work, MAIN, "completed", "gone", "done"),
    lambda work: workflows.finish(work, "gone", "completed", MAIN, "done"),
    lambda work: history.compact(work, "gone", 1, "s"),
    lambda work: history.compact_old_turns(work, "gone", 1, "s"),
    lambda work: history.replace_history(work, "gone", [said()], expected_next_seq=1),
    lambda work: history.messages(work, "gone"),
    lambda work: history.provider_messages(work, "gone"),
    lambda work: history.plan_compaction(work, "gone"),
    lambda work: Conversations(work).get("gone"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_an_unknown_conversation_is_an_error_and_is_not_made(database: Database, number: int) -> None:
    """SE-13: writing to a key that was just pruned made it anew, without its memory, or failed on a foreign key."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with pytest.raises(ConversationNotFound) as caught, database.write(now=LATER) as work:
        CHANGES[number](work)

    assert caught.value.key == "gone"
    assert everything(database) == before


def test_the_repository_is_tolerant_of_what_is_not_there(database: Database) -> None:
    """Whoever asks for rows of an unknown key gets none; only answers for a conversation are errors."""
    with database.read() as work:
        turns = Turns(work)

        assert (turns.list_turns("gone"), turns.list_history("gone"), turns.list_history("gone", last=3)) == ([],) * 3
        assert (turns.find_last("gone"), turns.find("gone"), Conversations(work).find("gone")) == (None,) * 3
        assert turns.count("gone") == 0
        assert not Conversations(work).exists("gone")
        with pytest.raises(TurnNotFound) as caught:
            turns.get("gone")
    assert caught.value.turn_id == "gone"
    with pytest.raises(ConversationNotFound):
        next(history.walk_history(database, "gone"))


@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_ended_conversation_takes_no_turn_until_it_is_active_again(database: Database, status: str) -> None:
    """SE-13: one rule for all of them, and reports are no exception."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1, status=status)
        a_conversation(work, "subagent:1")
    before = everything(database)

    with database.write(now=LATER) as work:
        for refused in (
            lambda: a_turn(work),
            lambda: a_turn(work, turn_id="turn-2"),
            lambda: workflows.report(work, MAIN, "subagent:1", "done"),
            lambda: history.replace_history(work, MAIN, [said()], expected_next_seq=2),
        ):
            with pytest.raises(ConversationEnded) as caught:
                refused()
            assert (caught.value.key, caught.value.status) == (MAIN, status)
    unchanged = everything(database)
    with database.write(now=LATER) as work:
        workflows.set_status(work, MAIN, "active")
        seq = a_turn(work)

    assert unchanged == before
    assert seq == 2


@pytest.mark.parametrize("status", ["clarifying", "review", "executing", "paused-by-v9", "Completed"])
def test_any_other_status_has_not_ended(database: Database, status: str) -> None:
    """UP-06: the vocabulary is open; a status that nobody here knows must stop nobody from speaking."""
    with database.write() as work:
        a_conversation(work, status=status)
        a_turn(work)

    assert column(database, MAIN, "status") == status
    assert texts(database, MAIN) == ["hello"]


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_changes_no_order_and_makes_nothing_older(database: Database) -> None:
    """TM-05: a clock 40 ms back put a result before its call, and the provider refused the history for ever."""
    earlier = NOON - 2 * SECOND
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)

    with database.write(now=earlier) as work:
        a_turn(work, text="2")
        workflows.set_label(work, MAIN, "renamed")
        workflows.set_status(work, MAIN, "review")
        child = workflows.fork(work, MAIN, "branch", inherit=True)
        a_turn(work, "branch", "3")
        history.compact(work, "branch", 1, "one")
    with database.write(now=LATER) as work:
        a_turn(work, text="4")

    assert texts(database, MAIN) == ["1", "2", "4"]
    assert texts(database, "branch") == ["2", "3"]
    assert (column(database, MAIN, "updated_at"), child.created_at) == (LATER, earlier)
    with database.read() as work:
        assert [turn.created_at for turn in Turns(work).list_turns(MAIN)] == [NOON, earlier, earlier, LATER]


def test_every_way_to_use_a_conversation_keeps_the_later_time(database: Database) -> None:
    """TM-05: `updated_at` never decreases, or prune would take what was used a moment ago."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=3)
        a_conversation(work, "subagent:1")

    with database.write(now=NOON - SECOND) as work:
        workflows.set_summary(work, MAIN, "s")
        workflows.finish(work, "subagent:1", "failed", MAIN, "no")
        history.compact(work, MAIN, 2, "s, and more")
        history.replace_history(work, MAIN, [said()], expected_next_seq=5)

    assert [column(database, key, "updated_at") for key in (MAIN, "subagent:1")] == [NOON, NOON]


def test_a_thousand_turns_of_one_instant_are_read_in_pages_in_order(database: Database) -> None:
    """TM-06: with one timestamp, pages showed a message twice or not at all."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1_000)
    wanted = [str(number) for number in range(1, 1_001)]

    own: list[TurnRecord] = []
    seen: list[TurnRecord] = []
    with database.read() as work:
        while page := Turns(work).list_turns(MAIN, since_seq=own[-1].seq if own else 0, limit=10):
            own += page
        while page := Turns(work).list_history(MAIN, since_seq=seen[-1].seq if seen else 0, limit=10):
            seen += page
    walked = list(history.walk_history(database, MAIN, page=10))

    assert [turn.messages[0]["content"] for turn in own] == wanted
    assert own == seen == walked


def test_a_poller_misses_nothing_after_everything_was_compacted(database: Database) -> None:
    """A seq is never used twice: with MAX + 1 the next turn was number 1 again, and no poller saw it."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=5)
        history.compact(work, MAIN, 5, "five turns")

    with database.write(now=LATER) as work:
        seq = a_turn(work, text="six")

    assert seq == 6
    with database.read() as work:
        assert [turn.messages for turn in Turns(work).list_turns(MAIN, 5)] == [[said("six")]]
        assert Turns(work).list_turns(MAIN, 6) == []


def test_count_and_last_are_those_of_the_visible_own_turns(database: Database) -> None:
    """Fork points count; what is compacted or inherited does not."""
    with database.write() as work:
        a_conversation(work, turns=3)
        workflows.fork(work, MAIN, "branch", inherit=True)
        history.compact(work, MAIN, 2, "two turns")
        turns = Turns(work)

        before = (turns.count(MAIN), turns.count("branch"), turns.find_last("branch"))
        a_turn(work, "branch", "4")
        last, branch_last = turns.find_last(MAIN), turns.find_last("branch")
        counts = (turns.count(MAIN), turns.count("branch"))
        listed = [len(turns.list_turns(key)) for key in (MAIN, "branch")]

    assert before == (2, 0, None)
    assert counts == (2, 1)
    assert listed == [2, 1]
    assert last is not None
    assert (last.seq, last.kind, last.message_count) == (4, TurnKind.FORK_POINT, 0)
    assert branch_last is not None
    assert (branch_last.seq, branch_last.messages) == (5, [said("4")])


def test_a_part_of_the_history_is_the_oldest_or_the_newest(database: Database) -> None:
    """Ascending in any case; own and inherited turns alike."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.fork(work, MAIN, "branch", inherit=True, at_seq=4)
        for text in ("5", "6"):
            a_turn(work, "branch", text)
        turns = Turns(work)

        def found(**wanted: int) -> list[object]:
            return [turn.messages[0]["content"] for turn in turns.list_history("branch", **wanted)]

        assert found() == ["1", "2", "3", "4", "5", "6"]
        assert found(limit=5) == ["1", "2", "3", "4", "5"]
        assert found(last=3) == ["4", "5", "6"]
        assert found(since_seq=3, limit=2) == ["4", "5"]
        assert found(since_seq=4, last=1) == ["6"]
        assert found(since_seq=5, last=9) == ["6"]
        assert (found(limit=0), found(last=0), found(since_seq=6)) == ([], [], [])
        for wrong in ({"limit": -1}, {"last": -1}, {"limit": 1, "last": 1}, {"last": 2**70}, {"since_seq": 2**70}):
            with pytest.raises(InvalidValue):
                found(**wrong)
        places: list[Any] = [2**70, -(2**70), "1", None, 1.5, True]
        for since in places:
            with pytest.raises(InvalidValue) as caught:
                turns.list_turns("branch", since)
            assert caught.value.field == "since_seq"
