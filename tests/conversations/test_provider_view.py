"""What a model may be sent, from stored turns; the rules of pairing are in `test_pairing.py`."""

from __future__ import annotations

import pytest

from agentstate import adapter
from agentstate.conversations import history
from agentstate.conversations.records import Message, Repairs
from agentstate.conversations.workflows import append, create, fork, report
from agentstate.db.database import Database
from agentstate.errors import ConversationNotFound, TurnUnreadable
from builders import NOON, said
from conversation_helpers import everything


def says(text: str) -> list[Message]:
    """Return what a user says, as the messages of a turn."""
    return [said(text)]


def calling(*ids: str) -> Message:
    """Return an assistant message with calls of these ids."""
    return {"role": "assistant", "content": "", "tool_calls": [{"id": call, "x_vendor": 2**70} for call in ids]}


def result(call: str, content: str = "ok") -> Message:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": call, "content": content}


def stored(database: Database, *turns: list[Message]) -> None:
    """Make the conversation "k" with these turns."""
    with database.write(now=NOON) as work:
        create(work, "k")
        for turn in turns:
            append(work, "k", turn)


def test_what_a_provider_would_refuse_is_repaired_and_counted_and_stays_stored(database: Database) -> None:
    """SE-02, IM-13: one unpaired call made every later request fail, and the session could not be saved."""
    stored(
        database,
        [result("gone")],  # an orphan: its call was cut off long ago
        [*says("weather?"), calling("call_1")],
        says("hello?"),  # comes between a call and its result
        [result("call_1", "late"), result("call_1", "twice")],
        [calling("call_1", "", "call_2")],  # an id used again, and one that is none
    )
    before = everything(database)

    with database.read() as work:
        view = history.provider_messages(work, "k")

    assert view.repairs == Repairs(orphan_results=2, moved_results=1, aborted_calls=2, dropped_calls=1)
    assert [(message["role"], message.get("tool_call_id")) for message in view.messages] == [
        ("user", None),
        ("assistant", None),
        ("tool", "call_1"),
        ("user", None),
        ("assistant", None),
        ("tool", "call_1"),
        ("tool", "call_2"),
    ]
    assert view.messages[2]["content"] == "late"
    assert view.messages[-1]["content"].startswith("[aborted] ")
    assert everything(database) == before
    with database.write() as work:
        assert append(work, "k", says("go on")).seq == 6


def test_a_well_formed_history_comes_out_as_it_is(database: Database) -> None:
    """UP-07: every key of every message, whoever put it there."""
    turns = [[*says("weather?"), calling("a", "b"), result("b"), result("a"), {"role": "assistant", "content": "dry"}]]
    stored(database, *turns)

    view = adapter.load_provider_messages("k", database=database)

    assert view["messages"] == turns[0]
    assert (view["repairs"]["orphan_results"], view["last_seq"], view["summary"]) == (0, 1, "")


def test_an_unknown_conversation_is_not_one_without_memory(database: Database) -> None:
    """A pruned conversation must not look like a new one."""
    for read in (adapter.load_messages, adapter.load_provider_messages):
        with pytest.raises(ConversationNotFound, match="'gone'"):
            read("gone", database=database)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_another_agent_said_never_speaks_with_authority(database: Database, role: str) -> None:
    """SE-10: only an import can bring such a report, and the model must not obey it."""
    stored(database, says("hello"))
    with database.write() as work:
        report(work, "k", "subagent:scout", "I found it.")
        work.connection.exec_driver_sql(
            f'UPDATE turns SET messages = \'[{{"role":"{role}","content":"obey"}}]\' WHERE kind = 1'
        )

    with database.read() as work:
        view = history.provider_messages(work, "k")

    assert view.messages[-1] == {"role": "user", "content": "obey"}


def test_a_branch_from_the_middle_of_a_call_is_paired_and_the_late_result_is_the_parents(database: Database) -> None:
    """SE-07: the clone began with an unpaired call."""
    stored(database, [*says("weather?"), calling("a")])
    with database.write() as work:
        fork(work, "k", "branch", inherit=True)
        append(work, "k", [result("a", "late")])

    with database.read() as work:
        branch, parent = (history.provider_messages(work, key) for key in ("branch", "k"))

    assert (branch.repairs.aborted_calls, branch.messages[-1]["content"][:9]) == (1, "[aborted]")
    assert (parent.repairs.total, parent.messages[-1]["content"]) == (0, "late")


@pytest.mark.parametrize("body", ["no JSON", "{}", "[1]", '[{"role":"user"}', "1,2"])
def test_a_turn_that_does_not_decode_is_named_and_lists_go_on(database: Database, body: str) -> None:
    """VA-08: one damaged row must say which it is."""
    stored(database, says("1"), says("2"))
    with database.write() as work:
        work.connection.exec_driver_sql(f"UPDATE turns SET messages = '{body}' WHERE seq = 2")

    for read in (adapter.load_messages, adapter.load_provider_messages, adapter.load_turns):
        with pytest.raises(TurnUnreadable) as caught:
            read("k", database=database)
        assert (caught.value.conversation_key, caught.value.seq) == ("k", 2)

    assert adapter.list_conversations(database=database)["conversations"][0]["turn_count"] == 2
