"""Values of conversations and turns: what comes back exactly, what is refused before SQL, and what others wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.messages import messages_text
from agentstate.conversations.models import MAX_TURN_BYTES, Conversation, Turn, TurnKind, known_kind
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    ConstraintViolated,
    EmptyTurn,
    InvalidIdentifier,
    InvalidMessage,
    InvalidValue,
    TurnTooLarge,
    TurnUnreadable,
)
from builders import LATER, MAIN, NOON, a_conversation, a_turn, can_lock, said
from conversation_helpers import column, everything, statements
from naughty import FREE_TEXT, NAUGHTY

# --- what comes back -------------------------------------------------------------------------------------------------

AWKWARD: list[dict[str, Any]] = [
    {"role": "tool", "content": "W\0s\0l", "tool_call_id": "call_1\0"},
    {"role": "user", "content": "hi \ud83d"},
    {"role": "user", "content": "👩‍👩‍👧‍👦 田中さん \u202e مرحبا e\u0301 é \ufeff\uffff"},
    {"role": "assistant", "content": None, "n": [2**70, -(2**70), 1e-300, 0.1, True, None, {}, []]},
    {"role": "system", "x_vendor": {"": {"a.b": [{"\0": "\udfff"}]}}, "content": [{"type": "text", "text": "a"}]},
]


def test_messages_and_meta_come_back_exactly(database: Database) -> None:
    """VA-01, VA-02: output of tools holds anything, and a turn that cannot be stored is lost."""
    meta = {"NUL": "a\0b", "half": "\ud83d", "big": 2**70, "nested": {"list": [None, 1.5, "日本"]}}
    with database.write() as work:
        a_conversation(work)

    with database.write() as work:
        workflows.append(work, MAIN, AWKWARD, meta=meta)
        workflows.append(work, MAIN, [said()], meta={})
        workflows.append(work, MAIN, [said()])

    with database.read() as work:
        turns = Turns(work).list_turns(MAIN)
        stored = work.connection.exec_driver_sql("SELECT messages, meta FROM turns ORDER BY seq").all()
    assert (turns[0].messages, turns[0].meta) == (AWKWARD, meta)
    assert [turn.meta for turn in turns[1:]] == [{}, None]
    assert [row.meta for row in stored[1:]] == ["{}", None]
    assert stored[0].messages == json.dumps(AWKWARD, ensure_ascii=False, separators=(",", ":")).replace(
        "\ud83d", "\\ud83d"
    ).replace("\udfff", "\\udfff")
    assert stored[0].messages.encode()  # UTF-8, without a lone surrogate


@pytest.mark.parametrize("form", [list, tuple])
def test_a_turn_is_any_sequence_of_messages(database: Database, form: Callable[[Any], Any]) -> None:
    """What is given is not kept: to change it afterwards changes nothing."""
    message = said("before")
    with database.write() as work:
        a_conversation(work)
        workflows.append(work, MAIN, form([message]))
        message["content"] = "after"

        assert history.messages(work, MAIN) == [said("before")]


def test_every_awkward_text_is_a_key_of_its_own(database: Database) -> None:
    """VA-12: keys were folded, normalised or cut, and conversations mixed."""
    with database.write() as work:
        for number, key in enumerate(NAUGHTY):
            a_conversation(work, key)
            a_turn(work, key, str(number), turn_id=key)

    with database.read() as work:
        for number, key in enumerate(NAUGHTY):
            assert Conversations(work).get(key).key == key
            assert history.messages(work, key) == [said(str(number))]
            assert Turns(work).get(key).conversation_key == key
        assert [found.key for found in Conversations(work).find_many(NAUGHTY)] == sorted(NAUGHTY)


def test_every_awkward_text_is_a_text(database: Database) -> None:
    """VA-12, acceptance 1: labels of 10,000 characters and more; nothing is trimmed."""
    with database.write() as work:
        a_conversation(work, turns=1)
        for number, text in enumerate(FREE_TEXT):
            workflows.create(work, f"agent:{number}", label=text)
            workflows.set_summary(work, f"agent:{number}", text)
            workflows.append(work, MAIN, [said(text)], author=text, summary=text)

    with database.read() as work:
        found = [Conversations(work).get(f"agent:{number}") for number in range(len(FREE_TEXT))]
        turns = Turns(work).list_turns(MAIN, since_seq=1)
    assert [(row.label, row.summary) for row in found] == [(text, text) for text in FREE_TEXT]
    assert [(turn.author, turn.summary, turn.messages) for turn in turns] == [
        (text, text, [said(text)]) for text in FREE_TEXT
    ]


def test_a_change_inside_a_loaded_meta_is_saved(database: Database) -> None:
    """VA-11: a nested key was changed and committed, and no UPDATE was issued."""
    with database.write() as work:
        a_conversation(work)
        workflows.append(work, MAIN, [said()], turn_id="turn-1", meta={"a": {"b": 0}})

    with database.write() as work:
        turn = work.session.get_one(Turn, "turn-1")
        assert turn.meta is not None
        turn.meta["a"]["b"] = 1
        turn.messages[0]["content"] = "changed"

    with database.read() as work:
        found = Turns(work).get("turn-1")
    assert (found.meta, found.messages) == ({"a": {"b": 1}}, [said("changed")])


# --- what is refused -------------------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {"role": "user"}
for _ in range(250):
    DEEP = {"role": "user", "content": DEEP}
CIRCLE: dict[str, Any] = {"role": "user"}
CIRCLE["content"] = [CIRCLE]

BAD_MESSAGES: list[tuple[Any, str]] = [
    ("hello", "messages"),
    (b"hello", "messages"),
    (None, "messages"),
    ({"role": "user"}, "messages"),
    (iter([said()]), "messages"),
    (["hello"], "messages[0]"),
    ([said(), None], "messages[1]"),
    ([{"content": "hello"}], "messages[0].role"),
    ([{"role": ""}], "messages[0].role"),
    ([{"role": None}], "messages[0].role"),
    ([said(), {"role": "user", "content": float("nan")}], "messages[1].content"),
    ([{"role": "user", "meta": {"score": [0.5, float("inf")]}}], "messages[0].meta.score[1]"),
    ([{"role": "user", "content": object()}], "messages[0].content"),
    ([{"role": "user", "content": {1, 2}}], "messages[0].content"),
    ([{"role": "user", "content": b"x"}], "messages[0].content"),
    ([{"role": "user", 7: "x"}], "messages[0]"),
    ([{"role": "user", "a": [{None: "x"}]}], "messages[0].a[0]"),
    ([{"role": "user", "content": NOON}], "messages[0].content"),
    ([DEEP], "messages[0]"),
    ([CIRCLE], "messages[0]"),
]


def test_what_json_cannot_hold_is_refused_by_its_place_before_sql(database: Database) -> None:
    """VA-03: SQLite stored NaN, PostgreSQL refused the whole turn; and a key that is no text came back as one."""
    with database.write() as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with database.write() as work, statements(database) as log:
        for messages, place in BAD_MESSAGES:
            with pytest.raises(InvalidMessage) as caught:
                workflows.append(work, MAIN, messages)
            assert caught.value.path == place

    assert log == []
    assert everything(database) == before


BAD_METAS: list[tuple[Any, str]] = [
    ({"score": float("nan")}, "meta.score"),
    ({"a": [object()]}, "meta.a[0]"),
    ({7: 1}, "meta"),
    ([], "meta"),
    ("{}", "meta"),
    ({"deep": DEEP}, "meta"),
]


def test_a_meta_that_is_no_json_object_is_refused_by_its_place(database: Database) -> None:
    """VA-03: an undefined metric made the row unreadable for every other program."""
    with database.write() as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with database.write() as work, statements(database) as log:
        for meta, place in BAD_METAS:
            with pytest.raises(InvalidValue) as appending:
                workflows.append(work, MAIN, [said()], meta=meta)
            with pytest.raises(InvalidValue) as forking:
                workflows.fork(work, MAIN, "child", meta=meta)
            assert (appending.value.field, forking.value.field) == (place, place)

    assert log == []
    assert everything(database) == before


TEXTS: dict[str, Callable[[UnitOfWork, Any], object]] = {
    "label": lambda work, bad: workflows.create(work, "new", label=bad),
    "label of a fork": lambda work, bad: workflows.fork(work, MAIN, "child", label=bad),
    "label, set": lambda work, bad: workflows.set_label(work, MAIN, bad),
    "summary, set": lambda work, bad: workflows.set_summary(work, MAIN, bad),
    "summary": lambda work, bad: history.compact(work, MAIN, 1, bad),
    "summary of old turns": lambda work, bad: history.compact_old_turns(work, MAIN, 0, bad),
    "summary of a turn": lambda work, bad: workflows.append(work, MAIN, [said()], summary=bad),
    "author": lambda work, bad: workflows.append(work, MAIN, [said()], author=bad),
    "author of a report": lambda work, bad: workflows.report(work, MAIN, "subagent:1", "done", author=bad),
}
KEYS: dict[str, Callable[[UnitOfWork, Any], object]] = {
    "key": lambda work, bad: workflows.create(work, bad),
    "key, appended to": lambda work, bad: workflows.append(work, bad, [said()]),
    "key, set": lambda work, bad: workflows.set_status(work, bad, "active"),
    "key, completed": lambda work, bad: workflows.complete(work, bad),
    "key, finished": lambda work, bad: workflows.finish(work, bad, "completed", MAIN, "done"),
    "key, compacted": lambda work, bad: history.compact(work, bad, 1, "s"),
    "key, replaced": lambda work, bad: history.replace_history(work, bad, [said()], expected_next_seq=1),
    "key, deleted": lambda work, bad: workflows.delete_conversation(work, bad),
    "key, found": lambda work, bad: Conversations(work).find(bad),
    "key, read": lambda work, bad: history.messages(work, bad),
    "status": lambda work, bad: workflows.create(work, "new", status=bad),
    "status, set": lambda work, bad: workflows.set_status(work, MAIN, bad),
    "parent_key": lambda work, bad: workflows.fork(work, bad, "child"),
    "child_key": lambda work, bad: workflows.fork(work, MAIN, bad),
    "conductor_key": lambda work, bad: workflows.finish(work, MAIN, "completed", bad, "done"),
    "origin_key": lambda work, bad: workflows.append(work, MAIN, [said()], origin_key=bad),
    "origin_key of a report": lambda work, bad: workflows.report(work, MAIN, bad, "done"),
    "task_id": lambda work, bad: workflows.spawn(work, MAIN, bad),
    "turn_id": lambda work, bad: workflows.append(work, MAIN, [said()], turn_id=bad),
    "turn_id, replaced": lambda work, bad: history.replace_history(
        work, MAIN, [said()], expected_next_seq=2, turn_id=bad
    ),
}


BAD_TEXTS = ("a\0b", "hi \ud83d", 7, b"x")
BAD_KEYS = ("", " \n", "x" * 513, "田" * 9_000, "a\0b", "hi \ud83d", 7)
OTHERS: dict[str, Callable[[UnitOfWork, Any], object]] = {
    "status, no end": lambda work, _: workflows.complete(work, MAIN, "active"),
    "text": lambda work, bad: workflows.report(work, MAIN, "subagent:1", bad),
    "at_seq": lambda work, bad: workflows.fork(work, MAIN, "child", inherit=True, at_seq=bad),
    "at_seq, without inheriting": lambda work, _: workflows.fork(work, MAIN, "child", at_seq=1),
    "children": lambda work, bad: workflows.delete_conversation(work, MAIN, children=bad),
    "up_to_seq": lambda work, bad: history.compact(work, MAIN, bad, "s"),
    "expected_next_seq": lambda work, bad: history.replace_history(work, MAIN, [], expected_next_seq=bad),
    "kind": lambda work, bad: workflows.append(work, MAIN, [said()], kind=bad),
    "created_at": lambda work, bad: workflows.append(work, MAIN, [said()], created_at=bad),
}


@pytest.mark.parametrize(
    ("writes", "bad_values", "error"),
    [(TEXTS, BAD_TEXTS, InvalidValue), (KEYS, BAD_KEYS, InvalidIdentifier), (OTHERS, (b"1", True, []), InvalidValue)],
    ids=["texts", "keys", "others"],
)
def test_what_no_column_holds_is_refused_by_its_field_before_sql(
    database: Database,
    writes: dict[str, Callable[[UnitOfWork, Any], object]],
    bad_values: tuple[object, ...],
    error: type[InvalidValue],
) -> None:
    """VA-01, VA-02, VA-12, PG-04: one typed error on both engines; the driver's came late, and on one of them only."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
    before = everything(database)
    refused: list[tuple[str, str]] = []

    with database.write(now=LATER) as work, statements(database) as log:
        for name, write in writes.items():
            for bad in bad_values:
                with pytest.raises(error) as caught:
                    write(work, bad)
                refused.append((name, caught.value.field))

    assert log == []
    assert [(name, field) for name, field in refused if field != name.split()[0].rstrip(",")] == []
    assert everything(database) == before


def test_a_refused_message_keeps_no_lock(file_database: Database, path: Any) -> None:
    """LK-05: the first row was in when an item turned out to be none; later writers met a lock for ever."""
    with file_database.write() as work:
        a_conversation(work, turns=1)
    before = everything(file_database)

    with pytest.raises(InvalidMessage), file_database.write() as work:
        a_turn(work, text="in already")
        workflows.append(work, MAIN, [said(), {"role": "tool", "content": object()}])

    assert can_lock(path)
    assert everything(file_database) == before


# --- how much --------------------------------------------------------------------------------------------------------


def test_a_turn_of_33_mebibytes_is_refused_with_the_limit(database: Database) -> None:
    """VA-07: complete outputs of tools made a database of 5 GB, and a start that took minutes."""
    with database.write() as work:
        a_conversation(work, turns=1)
    before = everything(database)

    with database.write() as work, statements(database) as log, pytest.raises(TurnTooLarge) as caught:
        workflows.append(work, MAIN, [said("x" * 33 * 1024 * 1024)])

    assert log == []
    assert caught.value.limit == 32 * 1024 * 1024 < caught.value.size
    assert everything(database) == before


@pytest.mark.parametrize("letter", ["x", "é", "田", "😀"])
def test_the_limit_counts_the_bytes_that_are_stored(letter: str) -> None:
    """VA-07: not characters, of which one may have four bytes."""
    frame = len(messages_text([said("")]))
    spare, width = MAX_TURN_BYTES - frame, len(letter.encode())
    whole = letter * (spare // width) + "x" * (spare % width)

    assert len(messages_text([said(whole)]).encode()) == MAX_TURN_BYTES
    with pytest.raises(TurnTooLarge) as caught:
        messages_text([said(whole + "x")])
    assert (caught.value.size, caught.value.limit) == (MAX_TURN_BYTES + 1, MAX_TURN_BYTES)


def test_no_messages_are_no_turn(database: Database) -> None:
    """A turn without a body is a fork point, and nothing else."""
    with database.write() as work:
        a_conversation(work)
        with pytest.raises(EmptyTurn) as caught:
            workflows.append(work, MAIN, [])

    assert caught.value.field == "messages"


# --- what others wrote -----------------------------------------------------------------------------------------------


def test_a_status_and_a_kind_of_a_newer_version_are_read(database: Database) -> None:
    """UP-06: one unknown value made the row, and the whole list, unreadable."""
    with database.write() as work:
        a_conversation(work, turns=2)
        a_conversation(work, "other")
        work.connection.exec_driver_sql(f"UPDATE conversations SET status = 'paused-by-v9' WHERE key = '{MAIN}'")
        work.connection.exec_driver_sql("UPDATE turns SET kind = 77 WHERE seq = 2")

    with database.read() as work:
        statuses = [row.status for row in Conversations(work).find_many([MAIN, "other"])]
        kinds = [turn.kind for turn in Turns(work).list_turns(MAIN)]
        shown = history.provider_messages(work, MAIN).messages
    assert statuses == ["paused-by-v9", "active"]
    assert kinds == [TurnKind.NORMAL, 77]
    assert [type(kind) for kind in kinds] == [TurnKind, int]
    assert shown == [said("1"), said("2")]
    assert known_kind(2) is TurnKind.FORK_POINT


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("messages", "[{"),
        ("messages", ""),
        ("messages", "null"),
        ("messages", "{}"),
        ("messages", '["hello"]'),
        ("messages", "[" * 100_000),
        ("meta", "nonsense"),
        ("meta", "[]"),
        ("meta", "null"),
    ],
)
def test_a_turn_that_does_not_decode_is_named_and_hurts_nobody_else(database: Database, name: str, stored: str) -> None:
    """One damaged body must be found, and must not hide that the others are there."""
    with database.write() as work:
        a_conversation(work, turns=3)
        work.connection.exec_driver_sql(f"UPDATE turns SET id = 'damaged', {name} = '{stored}' WHERE seq = 2")

    reads: list[Callable[[UnitOfWork], object]] = [
        lambda work: Turns(work).get("damaged"),
        lambda work: Turns(work).list_turns(MAIN),
        lambda work: Turns(work).list_history(MAIN, last=2),
    ]
    if name == "messages":
        reads += [lambda work: history.messages(work, MAIN), lambda work: history.provider_messages(work, MAIN)]
    for read in reads:
        with database.read() as work, pytest.raises(TurnUnreadable) as caught:
            read(work)
        assert (caught.value.conversation_key, caught.value.seq, caught.value.turn_id) == (MAIN, 2, "damaged")
    with database.write() as work:
        assert [turn.seq for turn in Turns(work).list_history(MAIN, since_seq=2)] == [3]
        assert [turn.seq for turn in Turns(work).list_history_info(MAIN)] == [1, 2, 3]
        assert Turns(work).count(MAIN) == 3
        assert a_turn(work) == 4
        assert workflows.delete_conversation(work, MAIN)


@pytest.mark.parametrize(
    "values", [{"next_seq": 0}, {"compacted_seq": -1}, {"next_seq": 5, "compacted_seq": 5}, {"compacted_seq": 1}]
)
def test_a_conversation_whose_numbers_are_impossible_is_not_stored(database: Database, values: dict[str, Any]) -> None:
    """Importers and raw SQL write these columns too; a boundary at the end would hide the next turn."""
    with pytest.raises(ConstraintViolated, match="ck_conversations_"), database.write() as work:
        Conversations(work).add(Conversation(key=MAIN, **values))

    with database.read() as work:
        assert not Conversations(work).exists(MAIN)


def test_a_place_is_taken_once(database: Database) -> None:
    """LK-03: two turns got one seq; the schema refuses what the code might."""
    with database.write() as work:
        a_conversation(work, turns=1)

    place = r"uq_turns|turns\.conversation_key, turns\.seq"
    with pytest.raises(ConstraintViolated, match=place), database.write() as work:
        work.connection.exec_driver_sql(
            "INSERT INTO turns (id, conversation_key, seq, message_count, created_at, messages) "
            f"VALUES ('t', '{MAIN}', 1, 0, '2026-11-29T12:00:00.000Z', '[]')"
        )

    assert column(database, MAIN, "next_seq") == 2
