"""Deleting a conversation: what goes with it, what stays, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.records import Deletion, ProviderView, TurnRecord
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationHasChildren
from builders import LATER, MAIN, NOON, a_conversation, a_turn
from conversation_helpers import column, everything, stored_seqs, texts

Policy = Literal["refuse", "keep", "cascade"]
POLICIES: list[Policy] = ["refuse", "keep", "cascade"]


def a_family(work: UnitOfWork) -> None:
    """Make MAIN (4 turns, the first compacted) with a sub-agent that has ended, a branch and a branch of that.

    Beside it stands a stranger, with a report that comes from MAIN.
    """
    a_conversation(work, turns=4)
    workflows.fork(work, MAIN, "branch", inherit=True)
    a_turn(work, "branch", "6")
    workflows.fork(work, "branch", "leaf", inherit=True, at_seq=3)
    a_turn(work, "leaf", "4, leaf")
    history.compact(work, MAIN, 1, "one turn")
    workflows.spawn(work, MAIN, "scout")
    workflows.finish(work, "subagent:scout", "completed", MAIN, "found")
    a_conversation(work, "stranger")
    workflows.report(work, "stranger", MAIN, "from main")


def kept(database: Database, *keys: str) -> list[tuple[ProviderView, list[TurnRecord]]]:
    """Return what conversations show to a model, and their histories without what a copy changes: ids and owners."""
    with database.read() as work:
        return [
            (
                history.provider_messages(work, key),
                [replace(turn, id="", conversation_key="") for turn in Turns(work).list_history(key)],
            )
            for key in keys
        ]


# --- alone -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("children", POLICIES)
def test_a_conversation_goes_with_all_its_turns(database: Database, children: Policy) -> None:
    """And its key is free: what comes next under it begins at 1."""
    with database.write() as work:
        a_conversation(work, "another", turns=1)
    before = everything(database)
    with database.write() as work:
        a_conversation(work, turns=5)
        history.compact(work, MAIN, 2, "s")

    with database.write() as work:
        done = workflows.delete_conversation(work, MAIN, children=children)

    assert done == Deletion((MAIN,), ())
    assert done
    assert everything(database) == before
    with database.write() as work:
        a_conversation(work)
        assert a_turn(work) == 1


@pytest.mark.parametrize("children", POLICIES)
def test_what_is_not_there_is_no_error(database: Database, children: Policy) -> None:
    """Whoever deletes twice, or lost the answer, is told that nothing was there."""
    with database.write() as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with database.write(now=LATER) as work:
        done = workflows.delete_conversation(work, "gone", children=children)

    assert done == Deletion((), ())
    assert not done
    assert everything(database) == before


# --- with children ---------------------------------------------------------------------------------------------------


def test_the_default_never_deletes_what_a_branch_needs(database: Database) -> None:
    """RT-04: a person's branch was destroyed with the conversation that it came from."""
    with database.write(now=NOON) as work:
        a_family(work)
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(ConversationHasChildren) as caught:
        workflows.delete_conversation(work, MAIN)

    assert (caught.value.key, caught.value.inheriting, caught.value.running) == (MAIN, ("branch",), ())
    assert "keep" in str(caught.value)
    assert everything(database) == before


def test_sub_agents_become_roots(database: Database) -> None:
    """RT-04: children without a parent hung on nothing and could not be deleted; they were not used by it either."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
        for task in ("one", "two"):
            workflows.spawn(work, MAIN, task)
            a_turn(work, f"subagent:{task}", task)
            workflows.complete(work, f"subagent:{task}")
        workflows.spawn(work, "subagent:two", "three")
        workflows.complete(work, "subagent:three", "failed")

    with database.write(now=LATER) as work:
        done = workflows.delete_conversation(work, MAIN)

    assert done == Deletion((MAIN,), ("subagent:one", "subagent:two"))
    assert column(database, "subagent:three", "parent_key") == "subagent:two"
    for key in done.detached:
        assert [column(database, key, name) for name in ("parent_key", "fork_turn_id")] == [None, None]
        assert column(database, key, "updated_at") == NOON
    assert texts(database, "subagent:one") == ["one"]
    with database.write() as work:
        assert workflows.delete_conversation(work, "subagent:one") == Deletion(("subagent:one",), ())


def test_keep_gives_branches_what_they_see_and_nothing_else_changes_for_them(database: Database) -> None:
    """RT-04: the branch, and a branch of it, go on as if nothing had happened."""
    with database.write(now=NOON) as work:
        a_family(work)
        workflows.fork(work, MAIN, "late", inherit=True)  # which sees a summary, and not the first turn
    keys = ("branch", "leaf", "late", "subagent:scout", "stranger")
    before = kept(database, *keys)
    with database.read() as work:
        old = {turn.id for turn in Turns(work).list_history("branch") if turn.conversation_key == MAIN}

    with database.write(now=LATER) as work:
        done = workflows.delete_conversation(work, MAIN, children="keep")

    assert done == Deletion((MAIN,), ("branch", "late", "subagent:scout"))
    assert kept(database, *keys) == before
    assert texts(database, "late") == ["2", "3", "4", "found"]
    for key in ("branch", "late"):
        assert [column(database, key, name) for name in ("parent_key", "fork_turn_id", "inherited_seq")] == [None] * 3
        assert column(database, key, "updated_at") == NOON
    assert column(database, "late", "inherited_summary") == "one turn"
    assert (column(database, "leaf", "parent_key"), column(database, "leaf", "inherited_seq")) == ("branch", 3)
    assert stored_seqs(database, "branch") == [1, 2, 3, 4, 5, 6, 7]
    assert stored_seqs(database, "late")[0] == 2
    assert stored_seqs(database, "leaf") == [4]
    with database.write() as work:
        turns = Turns(work).list_history("branch")
        assert not old & {turn.id for turn in turns}
        assert {turn.conversation_key for turn in turns} == {"branch"}
        assert a_turn(work, "branch", "on") == 8


def test_keep_copies_for_a_branch_below_what_its_parent_has_compacted(database: Database) -> None:
    """The branch itself no longer sees these turns; the one below it does, through the branch."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.fork(work, MAIN, "branch", inherit=True)
        workflows.fork(work, "branch", "leaf", inherit=True)
        history.compact(work, "branch", 3, "three turns")
        history.compact(work, "leaf", 1, "one turn")
    before = kept(database, "branch", "leaf")

    with database.write() as work:
        workflows.delete_conversation(work, MAIN, children="keep")

    assert kept(database, "branch", "leaf") == before
    assert texts(database, "leaf") == ["2", "3", "4"]
    assert stored_seqs(database, "branch") == [2, 3, 4, 5, 6]
    with database.write() as work:
        workflows.delete_conversation(work, "leaf")
    assert stored_seqs(database, "branch") == [4, 5, 6]


def test_keep_in_the_middle_leaves_what_lies_above_to_the_branch_below(database: Database) -> None:
    """The branch below inherited through the one that goes; the root keeps its own turns and no others."""
    with database.write() as work:
        a_conversation(work, turns=3)
        workflows.fork(work, MAIN, "middle", inherit=True)
        a_turn(work, "middle", "5")
        workflows.fork(work, "middle", "leaf", inherit=True)
        history.compact(work, MAIN, 4, "main's")
    before = kept(database, "leaf", MAIN)

    with database.write() as work:
        done = workflows.delete_conversation(work, "middle", children="keep")

    assert done == Deletion(("middle",), ("leaf",))
    assert kept(database, "leaf", MAIN) == before
    assert texts(database, "leaf") == ["1", "2", "3", "5"]
    assert stored_seqs(database, MAIN) == []
    assert stored_seqs(database, "leaf") == [1, 2, 3, 4, 5, 6]


def test_keep_copies_more_turns_than_one_page(database: Database) -> None:
    """Bodies are copied a page at a time; the seam between two must not show."""
    with database.write() as work:
        a_conversation(work, turns=450)
        workflows.fork(work, MAIN, "branch", inherit=True)
    before = kept(database, "branch")

    with database.write() as work:
        workflows.delete_conversation(work, MAIN, children="keep")

    assert kept(database, "branch") == before
    assert stored_seqs(database, "branch") == list(range(1, 452))


def test_cascade_deletes_everything_below_and_nothing_beside(database: Database) -> None:
    """RT-04: only when it is asked for; the keys that went are returned."""
    with database.write(now=NOON) as work:
        a_family(work)

    with database.write(now=LATER) as work:
        done = workflows.delete_conversation(work, MAIN, children="cascade")

    assert done == Deletion((MAIN, "branch", "leaf", "subagent:scout"), ())
    conversations, turns = everything(database)
    assert [row[0] for row in conversations] == ["stranger"]
    assert [row[1] for row in turns] == ["stranger"]


def test_a_branch_takes_with_it_what_only_it_still_saw(database: Database) -> None:
    """SE-08: hidden turns are kept for branches, and for nobody else."""
    with database.write() as work:
        a_conversation(work, turns=4)
        workflows.fork(work, MAIN, "one", inherit=True, at_seq=3)
        workflows.fork(work, MAIN, "two", inherit=True, at_seq=2)
        history.compact(work, MAIN, 6, "s")
    assert stored_seqs(database, MAIN) == [1, 2, 3, 5, 6]

    with database.write() as work:
        workflows.delete_conversation(work, "one")
    after_one = stored_seqs(database, MAIN)
    with database.write() as work:
        workflows.delete_conversation(work, "two", children="cascade")

    assert after_one == [1, 2, 6]
    assert stored_seqs(database, MAIN) == []


# --- at work ---------------------------------------------------------------------------------------------------------

AT_WORK: dict[str, tuple[str, Callable[[UnitOfWork], object]]] = {
    "an active sub-agent": ("subagent:scout", lambda work: workflows.set_status(work, "subagent:scout", "active")),
    "a question": ("subagent:scout", lambda work: workflows.set_status(work, "subagent:scout", "clarifying")),
    "a newer version": ("subagent:scout", lambda work: workflows.set_status(work, "subagent:scout", "paused-by-v9")),
    "a branch that executes": ("branch", lambda work: workflows.set_status(work, "branch", "executing")),
    "a branch of a branch": ("leaf", lambda work: workflows.set_status(work, "leaf", "review")),
    "a sub-agent of that": ("subagent:coder", lambda work: workflows.spawn(work, "leaf", "coder")),
}


@pytest.mark.parametrize("children", POLICIES)
@pytest.mark.parametrize("who", AT_WORK)
def test_while_somebody_below_is_at_work_nothing_is_deleted(database: Database, who: str, children: Policy) -> None:
    """RT-04: a child went on working without a record of it, and reported to nobody."""
    key, goes_to_work = AT_WORK[who]
    with database.write(now=NOON) as work:
        a_family(work)
        goes_to_work(work)
    before = everything(database)

    with database.write(now=LATER) as work, pytest.raises(ConversationHasChildren) as caught:
        workflows.delete_conversation(work, MAIN, children=children)

    assert caught.value.running == (key,)
    assert key in str(caught.value)
    assert everything(database) == before
    with database.write() as work:
        workflows.set_status(work, key, "canceled")
        assert workflows.delete_conversation(work, MAIN, children="cascade")


def test_who_is_at_work_may_be_deleted_itself(database: Database) -> None:
    """The rule protects what lies below; whoever names a conversation means it."""
    with database.write() as work:
        a_conversation(work)
        workflows.spawn(work, MAIN, "scout")

        done = workflows.delete_conversation(work, "subagent:scout")

    assert done == Deletion(("subagent:scout",), ())


# --- reports from what is gone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("children", ["keep", "cascade"])
def test_a_report_from_a_deleted_conversation_stays_and_says_so(database: Database, children: Policy) -> None:
    """SE-10: what was reported was read and acted upon; it does not go with whoever said it."""
    with database.write() as work:
        a_family(work)

    with database.read() as work:
        (before,) = Turns(work).list_history_info("stranger")
    with database.write() as work:
        workflows.delete_conversation(work, MAIN, children=children)
    with database.read() as work:
        (after,) = Turns(work).list_history_info("stranger")

    assert (before.origin_key, before.origin_gone) == (MAIN, False)
    assert (after.origin_key, after.origin_gone) == (MAIN, True)
    assert texts(database, "stranger") == ["from main"]
    with database.write() as work:
        assert workflows.report(work, "stranger", MAIN, "from the grave").created


@pytest.mark.parametrize("inherit", [True, False])
def test_what_was_kept_for_a_child_alone_goes_with_it(database: Database, inherit: bool) -> None:
    """Section 5: a hidden turn stays while somebody needs it, and its parent may never be compacted again."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        workflows.fork(work, MAIN, "child", inherit=inherit)
        history.compact(work, MAIN, 3, "all")
        workflows.set_status(work, "child", "completed")

    with database.write() as work:
        workflows.delete_conversation(work, "child")

    with database.read() as work:
        assert work.connection.exec_driver_sql("SELECT count(*) FROM turns").scalar_one() == 0
