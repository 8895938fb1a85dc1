"""Forks: what is noted in the parent, where a child begins, and that neither side sees what the other does later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.models import ENDED, TurnKind
from agentstate.conversations.records import ProviderView
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationExists, ConversationNotFound, InvalidValue
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import column, everything, seqs, stored_seqs, texts

# --- the fork itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inherit", [False, True])
def test_a_fork_is_noted_in_its_parent_as_a_turn_of_its_own(database: Database, inherit: bool) -> None:
    """Seed 003: when and where a conversation left is part of the history that it left."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=4)

    with database.write(now=LATER) as work:
        child = workflows.fork(work, MAIN, "child", label="try redis", inherit=inherit, meta={"why": "\0"})

    with database.read() as work:
        point = Turns(work).find_last(MAIN)
        assert point is not None
        stored = Conversations(work).get("child")
    assert (point.seq, point.kind, point.message_count, point.messages) == (5, TurnKind.FORK_POINT, 0, [])
    assert point.meta == {"why": "\0", "child": "child", "inherit": inherit}
    assert (point.created_at, column(database, MAIN, "updated_at")) == (LATER, LATER)
    assert (point.origin_key, point.author, point.summary) == (None, "", None)
    for found in (child, stored):
        assert (found.key, found.parent_key, found.fork_turn_id) == ("child", MAIN, point.id)
        assert (found.label, found.status, found.summary) == ("try redis", "active", "")
        assert (found.created_at, found.updated_at) == (LATER, LATER)


def test_a_sub_agent_starts_empty_at_one(database: Database) -> None:
    """What the conductor knows is the conductor's; a sub-agent gets a task, not a memory."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.set_summary(work, MAIN, "s")
        child = workflows.fork(work, MAIN, "child")

        seq = a_turn(work, "child", "task")

    assert (child.inherited_seq, child.inherited_summary, child.compacted_seq) == (None, None, 0)
    assert seq == 1
    assert texts(database, "child") == ["task"]


def test_a_branch_has_the_messages_and_counts_on(database: Database) -> None:
    """Along one history every seq occurs once, so that one number cuts it."""
    with database.write() as work:
        a_conversation(work, turns=4)
        branch = workflows.fork(work, MAIN, "branch", inherit=True)
        before = history.messages(work, "branch")
        seq = a_turn(work, "branch", "mine")
        a_turn(work, MAIN, "theirs")

    assert (branch.inherited_seq, branch.next_seq, branch.compacted_seq) == (5, 6, 0)
    assert before == [said("1"), said("2"), said("3"), said("4")]
    assert seq == 6
    assert texts(database, "branch") == ["1", "2", "3", "4", "mine"]
    assert texts(database, MAIN) == ["1", "2", "3", "4", "theirs"]
    assert (seqs(database, "branch"), stored_seqs(database, "branch")) == ([6], [6])  # nothing is copied
    with database.read() as work:
        assert [turn.seq for turn in Turns(work).list_history("branch")] == [1, 2, 3, 4, 5, 6]
        ids = {key: {turn.id for turn in Turns(work).list_turns(key)} for key in (MAIN, "branch")}
    assert not ids[MAIN] & ids["branch"]


@pytest.mark.parametrize(("at_seq", "seen"), [(0, []), (2, ["1", "2"]), (4, ["1", "2", "3", "4"])])
def test_a_branch_may_start_earlier(database: Database, at_seq: int, seen: list[str]) -> None:
    """A person goes back to the turn before things went wrong."""
    with database.write() as work:
        a_conversation(work, turns=4)
        branch = workflows.fork(work, MAIN, "branch", inherit=True, at_seq=at_seq)
        seq = a_turn(work, "branch", "mine")
        point = Turns(work).get(branch.fork_turn_id or "")

    assert (branch.inherited_seq, seq, point.seq) == (at_seq, at_seq + 1, 5)
    assert point.meta == {"child": "branch", "inherit": True, "at_seq": at_seq}
    assert texts(database, "branch") == [*seen, "mine"]


@pytest.mark.parametrize("at_seq", [-1, 1, 7, 8, 2**70])
def test_a_branch_starts_where_its_parent_remembers(database: Database, at_seq: int) -> None:
    """Before what is compacted nothing is left, and behind the end nothing is yet."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=6)
        history.compact(work, MAIN, 2, "two turns")
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(InvalidValue) as caught:
        workflows.fork(work, MAIN, "branch", inherit=True, at_seq=at_seq)

    assert caught.value.field == "at_seq"
    assert everything(database) == before
    with database.write() as work:
        for allowed in (2, 6):
            workflows.fork(work, MAIN, f"branch-{allowed}", inherit=True, at_seq=allowed)
        assert history.messages(work, "branch-2") == []
        assert history.messages(work, "branch-6") == [said("3"), said("4"), said("5"), said("6")]


@pytest.mark.parametrize("status", sorted(ENDED))
def test_a_conversation_that_has_ended_can_be_forked(database: Database, status: str) -> None:
    """To go on from what is finished is what a branch is for; the end of the parent stays."""
    with database.write() as work:
        a_conversation(work, turns=1, status=status)

        branch = workflows.fork(work, MAIN, "branch", inherit=True)
        a_turn(work, "branch", "on")

    assert (branch.status, column(database, MAIN, "status")) == ("active", status)
    assert texts(database, "branch") == ["1", "on"]


BAD: list[tuple[str, str, type[Exception]]] = [
    ("gone", "new", ConversationNotFound),
    ("gone", "gone", ConversationNotFound),
    ("gone", "child", ConversationNotFound),
    (MAIN, "child", ConversationExists),
    (MAIN, MAIN, ConversationExists),
    ("child", MAIN, ConversationExists),
]


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize(("parent", "child", "error"), BAD)
def test_a_fork_that_makes_no_sense_changes_neither_side(
    database: Database, parent: str, child: str, error: type[Exception], inherit: bool
) -> None:
    """SE-09: children hung on nothing, or the existing one was taken over; and nothing can make a circle."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        workflows.fork(work, MAIN, "child", inherit=True)
        a_turn(work, "child")
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(error):
        workflows.fork(work, parent, child, inherit=inherit, label="other")

    assert everything(database) == before
    with database.write() as work:
        workflows.fork(work, MAIN, "another", inherit=inherit)


def test_a_callers_meta_does_not_replace_what_the_fork_notes(database: Database) -> None:
    """Which child it was must be true, and what the caller passed stays as it was."""
    meta: dict[str, Any] = {"child": "x", "inherit": "x", "note": 1}
    with database.write() as work:
        a_conversation(work)
        child = workflows.fork(work, MAIN, "child", meta=meta)
        point = Turns(work).get(child.fork_turn_id or "")

    assert point.meta == {"child": "child", "inherit": False, "note": 1}
    assert meta == {"child": "x", "inherit": "x", "note": 1}


def test_children_are_listed_by_time_and_key(database: Database) -> None:
    """Only direct ones, of either kind."""
    with database.write(now=LATER) as work:
        a_conversation(work)
        workflows.fork(work, MAIN, "b", inherit=True)
        workflows.fork(work, MAIN, "a")
        workflows.fork(work, "a", "grandchild")
    with database.write(now=NOON) as work:
        workflows.fork(work, MAIN, "z")

    with database.read() as work:
        assert [child.key for child in Conversations(work).list_children(MAIN)] == ["z", "a", "b"]
        assert Conversations(work).list_children("gone") == []


# --- what a branch sees ----------------------------------------------------------------------------------------------


def view(database: Database, key: str) -> ProviderView:
    with database.read() as work:
        return history.provider_messages(work, key)


def test_nothing_that_the_parent_does_later_changes_a_branch(database: Database) -> None:
    """SE-08: the parent was compacted after the fork, and the branch lost its memory, or its fork point."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.set_summary(work, MAIN, "at the fork")
        workflows.fork(work, MAIN, "branch", inherit=True)
    seen = view(database, "branch")
    with database.write() as work:
        for text in ("6", "7", "8", "9"):
            a_turn(work, text=text)

    with database.write() as work:
        done = history.compact(work, MAIN, 8, "eight turns")
        workflows.set_summary(work, MAIN, "all different")
        workflows.report(work, MAIN, "subagent:1", "done")
        workflows.set_status(work, MAIN, "archived")

    assert (done.turns, done.deleted) == (8, 3)
    assert texts(database, MAIN) == ["9", "done"]
    assert view(database, MAIN).summary == "all different"
    assert view(database, "branch") == seen
    assert seen.messages[1:] == [said("1"), said("2"), said("3"), said("4")]
    assert seen.summary == "at the fork"
    assert stored_seqs(database, MAIN) == [1, 2, 3, 4, 5, 9, 10]
    with database.write() as work:
        workflows.delete_conversation(work, "branch")
    assert stored_seqs(database, MAIN) == [9, 10]


def test_a_parent_sees_nothing_of_its_branch(database: Database) -> None:
    """SE-08: nor do siblings of each other."""
    with database.write() as work:
        a_conversation(work, turns=2)
        for key in ("one", "two"):
            workflows.fork(work, MAIN, key, inherit=True)
    seen = view(database, MAIN), view(database, "two")

    with database.write() as work:
        a_turn(work, "one", "mine")
        workflows.set_summary(work, "one", "s")
        history.compact(work, "one", 2, "s: two turns")

    assert (view(database, MAIN), view(database, "two")) == seen
    assert texts(database, "one") == ["mine"]
    assert stored_seqs(database, MAIN) == [1, 2, 3, 4]


def test_a_branch_compacts_what_it_inherited(database: Database) -> None:
    """Without a turn of its own too; and what then nobody sees any more goes."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.fork(work, MAIN, "branch", inherit=True)
        history.compact(work, MAIN, 4, "main's")

        done = history.compact(work, "branch", 3, "the branch's")

    assert (done.up_to_seq, done.turns, done.deleted) == (3, 3, 3)
    assert texts(database, "branch") == ["4"]
    assert (view(database, "branch").summary, view(database, MAIN).summary) == ("the branch's", "main's")
    assert stored_seqs(database, MAIN) == [4, 5]


def test_an_open_call_at_the_fork_is_answered_in_the_branch_and_in_the_parent_alone_later(database: Database) -> None:
    """SE-07: forked in mid-turn, the branch had a call without a result, and the provider refused it."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1"}]}
    result = {"role": "tool", "content": "14 °C", "tool_call_id": "call_1"}
    with database.write() as work:
        a_conversation(work, turns=1)
        workflows.append(work, MAIN, [call])
        workflows.fork(work, MAIN, "branch", inherit=True)
        workflows.append(work, MAIN, [result])

    branch, parent = view(database, "branch"), view(database, MAIN)

    assert branch.messages[1] == call
    assert branch.messages[2]["content"].startswith("[aborted]")
    assert (len(branch.messages), branch.repairs.aborted_calls) == (3, 1)
    assert (parent.messages, parent.repairs.total) == ([said("1"), call, result], 0)


@pytest.mark.parametrize("boundary", range(1, 10))
def test_a_grandchild_sees_the_same_whatever_is_compacted_above_it(database: Database, boundary: int) -> None:
    """SE-08: the history goes through two branches, and every boundary falls into another part of it."""
    with database.write() as work:
        a_conversation(work, turns=3)
        workflows.fork(work, MAIN, "middle", inherit=True)
        a_turn(work, "middle", "5")
        a_turn(work, "middle", "6")
        workflows.fork(work, "middle", "leaf", inherit=True, at_seq=5)
        a_turn(work, "leaf", "6, leaf")
        for key in (MAIN, "middle"):
            for text in ("more", "and more", "and yet more"):
                a_turn(work, key, text)
    seen = view(database, "leaf")
    wanted = ["1", "2", "3", "5", "6, leaf"]

    with database.write() as work:
        for key in (MAIN, "middle"):
            history.compact(work, key, min(boundary, Conversations(work).get(key).next_seq - 1), "s")
    between = (texts(database, "leaf"), view(database, "leaf"))
    with database.write() as work:
        last = Conversations(work).get("leaf").next_seq - 1
        history.compact(work, "leaf", min(boundary, last), "s")

    assert between == (wanted, seen)
    places = {1: "1", 2: "2", 3: "3", 5: "5", 6: "6, leaf"}
    assert texts(database, "leaf") == [text for seq, text in places.items() if seq > min(boundary, last)]


def test_a_branch_of_a_branch_may_start_in_what_that_inherited(database: Database) -> None:
    """The place of its parent's fork point does not matter, only what it sees there."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.fork(work, MAIN, "middle", inherit=True)
        a_turn(work, "middle", "6")
        leaf = workflows.fork(work, "middle", "leaf", inherit=True, at_seq=2)
        seq = a_turn(work, "leaf", "mine")

    assert (leaf.inherited_seq, seq) == (2, 3)
    assert texts(database, "leaf") == ["1", "2", "mine"]
    with database.write() as work:
        history.compact(work, MAIN, 5, "s")
        history.compact(work, "middle", 6, "s")
    assert texts(database, "leaf") == ["1", "2", "mine"]
    assert stored_seqs(database, MAIN) == [1, 2, 5]
    assert stored_seqs(database, "middle") == [7]


def test_what_a_branch_has_compacted_its_own_branches_never_see(database: Database) -> None:
    """A branch of a compacted conversation begins with its summary, as the conversation itself does."""
    with database.write() as work:
        a_conversation(work, turns=3)
        history.compact(work, MAIN, 2, "main's")
        workflows.fork(work, MAIN, "middle", inherit=True)
        history.compact(work, "middle", 3, "middle's")
        leaf = workflows.fork(work, "middle", "leaf", inherit=True)

    assert (leaf.compacted_seq, leaf.inherited_summary, leaf.summary) == (3, "main's\n\nmiddle's", "")
    assert texts(database, "leaf") == []
    assert view(database, "leaf").summary == "main's\n\nmiddle's"


WRITES: list[Callable[[UnitOfWork], object]] = [
    lambda work: a_turn(work, "branch"),
    lambda work: workflows.set_label(work, "branch", "l"),
    lambda work: history.compact(work, "branch", 1, "s"),
    lambda work: workflows.fork(work, "branch", "leaf", inherit=True),
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_what_a_branch_does_is_no_use_of_its_parent(database: Database, number: int) -> None:
    """Prune goes by the last use, and takes whole trees: nothing above needs to be touched."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        workflows.fork(work, MAIN, "branch", inherit=True)

    with database.write(now=LATER) as work:
        WRITES[number](work)

    assert [column(database, key, "updated_at") for key in (MAIN, "branch")] == [NOON, LATER]
