"""Compaction: what is hidden, what is carried on, and what stops it; the pure rules are in `test_pairing.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentstate import adapter
from agentstate.conversations import history
from agentstate.conversations.records import Message
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.workflows import append, create, fork, set_summary
from agentstate.db.database import Database
from agentstate.errors import ConversationNotFound, EmptySummary, InvalidValue, StaleCompaction
from builders import NOON, finished, python, said
from conversation_helpers import everything


def says(text: str) -> list[Message]:
    """Return what a user says, as the messages of a turn."""
    return [said(text)]


CALLS: Message = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}
TRANSCRIPT = [
    [*says("look it up"), CALLS],
    [{"role": "tool", "tool_call_id": "a", "content": "14 °C"}],
    says("and?"),
    [{"role": "tool", "tool_call_id": "b", "content": "dry"}, {"role": "assistant", "content": "It is dry."}],
]


def told(database: Database, *turns: list[Message]) -> None:
    """Make the conversation "k" with these turns."""
    with database.write(now=NOON) as work:
        create(work, "k")
        for turn in turns:
            append(work, "k", turn)


@pytest.mark.parametrize(("up_to", "taken"), [(1, 0), (2, 0), (3, 0), (4, 4)])
def test_a_boundary_never_lies_between_a_call_and_its_result(database: Database, up_to: int, taken: int) -> None:
    """SE-01: history was cut by position, and the provider refused every later request."""
    told(database, *TRANSCRIPT)
    before = everything(database)

    with database.write(now=NOON) as work:
        done = history.compact(work, "k", up_to, "the weather")
    with database.read() as work:
        view = history.provider_messages(work, "k")

    assert (done.requested_seq, done.up_to_seq, done.turns) == (up_to, taken, taken)
    assert (view.repairs.orphan_results, view.repairs.aborted_calls) == (0, 0)
    assert (everything(database) == before) == (taken == 0)


@pytest.mark.parametrize("summary", ["", "  ", "\n\t", None])
def test_an_empty_summary_hides_nothing(database: Database, summary: Any) -> None:
    """SE-04: the model returned nothing, history was replaced by nothing, and success was reported."""
    told(database, says("1"), says("2"))
    before = everything(database)

    with database.write() as work:
        with pytest.raises(EmptySummary):
            history.compact(work, "k", 1, summary)
        with pytest.raises(EmptySummary):
            history.compact_old_turns(work, "k", 1, summary)
        with pytest.raises(EmptySummary):
            history.compact(work, "unknown", 1, summary)

    assert everything(database) == before


def test_a_summary_that_cannot_be_stored_is_refused_by_name(database: Database) -> None:
    """VA-01, VA-02: refused before anything is written."""
    told(database, says("1"))

    for summary in ("a\0b", "a\ud83d", 7):
        with database.write() as work, pytest.raises(InvalidValue, match="summary"):
            history.compact(work, "k", 1, summary)  # type: ignore[arg-type]


def test_a_turn_that_another_process_appends_while_the_model_thinks_stays(file_database: Database, path: Path) -> None:
    """SE-05: what arrived during the summarising call was deleted by the rewrite; a stale plan is refused."""
    told(file_database, *([{"role": "user", "content": f"{number}"}] for number in range(6)))
    with file_database.read() as work:
        plan = history.plan_compaction(work, "k", keep_last=2)
    assert plan is not None

    code = (
        "import sys; from agentstate import adapter; "
        "print(adapter.append_turn('k', [{'role': 'user', 'content': 'X'}], database=sys.argv[1]))"
    )
    seq = int(finished(python(code, path)))
    with file_database.write() as work:
        done = history.compact_plan(work, plan, "the first four")

    assert (plan.up_to_seq, plan.expected_compacted_seq, plan.summary) == (4, 0, "")
    assert [message["content"] for message in plan.messages] == ["0", "1", "2", "3"]
    assert (done.turns, done.deleted) == (4, 4)
    assert [message["content"] for message in adapter.load_messages("k", database=file_database)] == ["4", "5", "X"]
    assert seq == 7
    with file_database.write() as work, pytest.raises(StaleCompaction):
        history.compact_plan(work, plan, "again")


def test_the_earlier_summary_is_carried_on_until_somebody_has_seen_it(database: Database) -> None:
    """SE-03: an earlier summary was overwritten without a trace."""
    told(database, *(says(f"{number}") for number in range(6)))

    with database.write() as work:
        first = history.compact(work, "k", 1, "one").summary
        carried = history.compact(work, "k", 2, "two").summary
        contained = history.compact(work, "k", 3, f"all of: {carried}").summary
        replaced = history.compact(work, "k", 4, "four", supersedes=contained).summary
        with pytest.raises(StaleCompaction, match="another summary"):
            history.compact(work, "k", 5, "five", supersedes="something else")

    assert (first, carried, contained, replaced) == ("one", "one\n\ntwo", "all of: one\n\ntwo", "four")


def test_a_branch_keeps_the_inherited_summary_before_its_own(database: Database) -> None:
    """Section 7, rule 4: what stands for the parent's turns goes only when its text has been seen."""
    told(database, says("1"), says("2"), says("3"))
    with database.write() as work:
        history.compact(work, "k", 1, "parent's")
        fork(work, "k", "branch", inherit=True)
        own = history.compact(work, "branch", 2, "branch's").summary
        seen = history.compact(work, "branch", 3, "everything", supersedes=own).summary
        row = Conversations(work).get("branch")

    assert (own, seen) == ("parent's\n\nbranch's", "everything")
    assert (row.summary, row.inherited_summary) == ("everything", None)


def test_what_nobody_can_have_summarised_and_what_is_compacted_already_are_refused(database: Database) -> None:
    """SE-05: each is another mistake, and neither writes anything."""
    told(database, says("1"), says("2"))
    before = everything(database)

    with database.write() as work:
        for up_to, expected, error in ((3, None, InvalidValue), (0, None, StaleCompaction), (1, 1, StaleCompaction)):
            with pytest.raises(error):
                history.compact(work, "k", up_to, "s", expected_compacted_seq=expected)
        for odd in ("1", True, 1.0):
            with pytest.raises(InvalidValue):
                history.compact(work, "k", 1, "s", expected_compacted_seq=odd)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="supersedes"):
            history.compact(work, "k", 1, "s", supersedes=b"s")  # type: ignore[arg-type]
        with pytest.raises(ConversationNotFound):
            history.compact(work, "unknown", 1, "s")

    assert everything(database) == before


def test_every_turn_compacted_leaves_the_numbers_where_they_were(database: Database) -> None:
    """Section 2: a seq is never used twice, and a poller who saw the last one misses nothing."""
    told(database, *(says(f"{number}") for number in range(5)))

    with database.write() as work:
        history.compact(work, "k", 5, "all")
        seq = append(work, "k", says("6")).seq
        later = [turn.seq for turn in Turns(work).list_turns("k", 5)]

    assert (seq, later) == (6, [6])


def test_a_plan_is_nothing_where_nothing_can_be_hidden(database: Database) -> None:
    """A summariser is not asked to summarise nothing, or what is still going on."""
    told(database, [*says("look"), CALLS])
    with database.read() as work:
        running = history.plan_compaction(work, "k", 0)
        few = history.plan_compaction(work, "k", 9)
        with pytest.raises(InvalidValue, match="keep_last"):
            history.plan_compaction(work, "k", -1)
        with pytest.raises(ConversationNotFound):
            history.plan_compaction(work, "unknown")

    assert (running, few) == (None, None)


def test_old_turns_are_compacted_or_the_summary_alone_is_kept(database: Database) -> None:
    """Section 7: a summary made elsewhere is never thrown away."""
    told(database, says("1"), says("2"), says("3"))

    with database.write() as work:
        kept = history.compact_old_turns(work, "k", 9, "alone")
        hidden = history.compact_old_turns(work, "k", 1, "and two")

    assert (kept.turns, kept.summary) == (0, "alone")
    assert (hidden.turns, hidden.up_to_seq, hidden.summary) == (2, 2, "alone\n\nand two")


LOOP = """
import sys
from agentstate.conversations import history
from agentstate.conversations.workflows import append
from agentstate.db.database import Database
with Database.open(sys.argv[1]) as database:
    for number in range(150):
        with database.write() as work:
            append(work, "k", [{"role": "user", "content": f"<{number}>"}])
        if number % 3 == 2:
            with database.write() as work:
                history.compact(work, "k", number, " ".join(f"<{n}>" for n in range(number)), supersedes=None)
"""


def test_a_view_never_misses_a_turn_and_its_summary(
    database: Database, request: pytest.FixtureRequest, path: Path
) -> None:
    """CN-03, SE-05: a reader between two statements saw the turns hidden and not yet the summary that replaces them."""
    if database.in_memory:
        pytest.skip("another process cannot see a database in memory")
    with database.write() as work:
        create(work, "k")
    target = str(path) if database.backend == "sqlite" else request.getfixturevalue("server_url")
    process = python(LOOP, target)

    seen = 0
    while process.poll() is None or seen == 0:
        with database.read() as work:
            view = history.provider_messages(work, "k")
        text = " ".join(str(message["content"]) for message in view.messages)
        count = view.last_seq
        assert [number for number in range(count) if f"<{number}>" not in text] == []
        seen += 1

    finished(process)
    assert seen > 10


def test_a_summary_can_be_set_without_hiding_anything(database: Database) -> None:
    """set_summary replaces the conversation's own summary only."""
    told(database, says("1"))

    with database.write() as work:
        set_summary(work, "k", "about numbers")
        view = history.provider_messages(work, "k")

    assert [message["content"] for message in view.messages] == ["[Summary of earlier turns]\nabout numbers", "1"]
    assert view.messages[0]["role"] == "user"
