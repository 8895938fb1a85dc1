"""The original program's database is brought in: what its rows become, and what becomes of what cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from agentstate.conversations import workflows
from agentstate.conversations.history import messages, provider_messages
from agentstate.conversations.importer_db import import_session_database
from agentstate.conversations.models import MAX_TURN_BYTES, TurnKind
from agentstate.conversations.records import ImportEntry, ImportReport
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.repositories.line import CONVERSATIONS
from agentstate.db.database import Database
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import everything
from original_store import SEED_SCHEMA, OriginalStore

MORNING = datetime(2026, 11, 29, 9, 0, 0, 120_000, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Any) -> Iterator[OriginalStore]:
    """A database of the original program, empty."""
    (tmp_path / "data").mkdir()
    with OriginalStore(tmp_path / "data" / "sessions.db") as made:
        yield made


def imported(database: Database, store: OriginalStore, *, dry_run: bool = False) -> ImportReport:
    """Import the store as it is now, at NOON."""
    store.close()
    return import_session_database(database, store.path, dry_run=dry_run, now=NOON)


def entry(report: ImportReport, key: str | None = MAIN) -> ImportEntry:
    """Return the one entry of a key."""
    (found,) = [one for one in report.entries if one.key == key]
    return found


def conversation(database: Database, key: str = MAIN) -> Any:
    """Return a conversation's row."""
    with database.read() as work:
        found = Conversations(work).find_row(key)
    assert found is not None, key
    return found


def conversations(database: Database) -> list[Any]:
    """Return the rows of all conversations, by key."""
    with database.read() as work:
        return list(work.connection.execute(select(CONVERSATIONS).order_by(CONVERSATIONS.c.key)))


def turns(database: Database, key: str = MAIN) -> list[Any]:
    """Return the turns of a conversation by seq, as records."""
    with database.read() as work:
        return Turns(work).list_turns(key)


def test_a_conversation_comes_in_with_all_that_its_rows_say(database: Database, store: OriginalStore) -> None:
    """IM-08, IM-10: keys, ids, kinds, times and messages are the original's own, nothing is made anew."""
    store.session(MAIN, label="Ada", summary="Ada asked.", status="executing", updated_at="2026-11-29T11:00:00.5+01:00")
    store.turn(MAIN, 1, [said("one")], id="4f9d5e1c-0000-4000-8000-000000000001", author="ada", summary="asked")
    store.turn(
        MAIN, 2, [said("two")], kind=1, origin_key="subagent:x", meta={"task": "x"}, created_at="2026-11-29T09:30:00Z"
    )

    report = imported(database, store)

    assert report.entries == (ImportEntry("sessions.db", MAIN, "imported", turns=2, messages=2),)
    assert (report.imported, report.complete, report.dry_run) == (1, True, False)
    row = conversation(database)
    assert (row.label, row.summary, row.status) == ("Ada", "Ada asked.", "executing")
    assert (row.created_at, row.updated_at) == (MORNING, datetime(2026, 11, 29, 10, 0, 0, 500_000, tzinfo=UTC))
    assert (row.parent_key, row.fork_turn_id, row.inherited_seq, row.inherited_summary) == (None, None, None, None)
    assert (row.compacted_seq, row.next_seq) == (0, 3)
    assert row.imported_at == NOON
    assert row.imported_from.startswith("sessions.db#")
    assert len(row.imported_from) == len("sessions.db#") + 64
    first, second = turns(database)
    assert (first.id, first.kind, first.author) == ("4f9d5e1c-0000-4000-8000-000000000001", TurnKind.NORMAL, "ada")
    assert (first.summary, first.origin_key, first.meta) == ("asked", None, None)
    assert (first.messages, first.message_count, first.created_at) == ([said("one")], 1, MORNING)
    assert (second.kind, second.origin_key, second.meta) == (TurnKind.REPORT, "subagent:x", {"task": "x"})
    assert second.created_at == datetime(2026, 11, 29, 9, 30, tzinfo=UTC)


def test_a_store_as_the_seed_sketches_it_comes_in_too(database: Database, store: OriginalStore) -> None:
    """Section 2: NULL for what is missing, and times as seconds since 1970."""
    store.make(SEED_SCHEMA)
    store.session(MAIN, parent_key=None, fork_turn_id=None, created_at=1_795_942_800, updated_at=1_795_946_400)
    store.turn(MAIN, 1, [said()], origin_key=None, summary=None, meta=None, created_at=1_795_942_860)

    report = imported(database, store)

    assert report.entries == (ImportEntry("sessions.db", MAIN, "imported", turns=1, messages=1),)
    row, (turn,) = conversation(database), turns(database)
    assert (row.parent_key, row.fork_turn_id) == (None, None)
    assert row.created_at == datetime(2026, 11, 29, 9, 0, tzinfo=UTC)
    assert row.updated_at == datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
    assert (turn.origin_key, turn.summary, turn.meta) == (None, None, None)
    assert turn.created_at == datetime(2026, 11, 29, 9, 1, tzinfo=UTC)


def test_what_the_original_left_empty_is_null_and_active(database: Database, store: OriginalStore) -> None:
    """Section 12: the original's columns are NOT NULL, and '' stands for nothing in them."""
    store.session(MAIN, status="")
    store.turn(MAIN, 1, [said()], id="")

    report = imported(database, store)

    assert entry(report).flags == ()
    row, (turn,) = conversation(database), turns(database)
    assert (row.status, row.parent_key, row.fork_turn_id) == ("active", None, None)
    assert (turn.origin_key, turn.summary, turn.meta, turn.author) == (None, None, None, "")
    assert len(turn.id) == 36


def test_times_keep_the_order_of_the_source(database: Database, store: OriginalStore) -> None:
    """IM-08: text without trailing zeros does not sort as time; what is stored does, to the millisecond."""
    store.session("a", updated_at="2026-11-29T10:00:00.1Z")
    store.session("b", updated_at="2026-11-29T10:00:00Z")
    store.session("c", updated_at="2026-11-29T10:00:00.099999999Z")

    report = imported(database, store)

    assert report.imported == 3
    with database.read() as work:
        by_use = work.connection.execute(select(CONVERSATIONS.c.key).order_by(CONVERSATIONS.c.updated_at)).scalars()
        assert list(by_use) == ["b", "c", "a"]
    assert conversation(database, "c").updated_at == datetime(2026, 11, 29, 10, 0, 0, 99_000, tzinfo=UTC)


def test_a_time_that_is_missing_is_guessed_from_the_other_one_or_the_file(
    database: Database, store: OriginalStore
) -> None:
    """IM-08: never from the present, which would make the oldest history the newest."""
    store.session("created missing", created_at="", updated_at="2026-11-29T10:00:00Z")
    store.session("created in year 1", created_at="0001-01-01T00:00:00Z", updated_at="2026-11-29T10:00:00Z")
    store.session("updated no time", created_at="2026-11-29T10:00:00Z", updated_at="yesterday")
    store.session("neither a time", created_at="2026-13-29T10:00:00Z", updated_at=10**15)
    store.session("seconds of year 1", created_at=-62_135_596_800, updated_at="")
    store.session("turn without", created_at="2026-11-29T10:00:00Z")
    store.turn("turn without", 1, [said()], created_at="")
    store.close()
    file_time = datetime(2026, 11, 29, 8, 0, tzinfo=UTC).timestamp()
    os.utime(store.path, (file_time, file_time))

    report = imported(database, store)

    assert {one.flags for one in report.entries} == {("time_guessed",)}
    at = {one.key: (one.created_at.hour, one.updated_at.hour) for one in conversations(database)}
    assert at == {
        "created missing": (10, 10),
        "created in year 1": (10, 10),
        "updated no time": (10, 10),
        "neither a time": (8, 8),
        "seconds of year 1": (8, 8),
        "turn without": (10, 10),
    }
    assert turns(database, "turn without")[0].created_at.hour == 10


def test_seconds_that_are_no_time_are_guessed_too(database: Database, store: OriginalStore) -> None:
    """IM-08: milliseconds where seconds belong, Go's zero time, and NULL where the columns allow it."""
    store.make(SEED_SCHEMA.replace("created_at INTEGER NOT NULL", "created_at INTEGER"))
    for key, created in {"milliseconds": 1_795_942_800_000, "year 1": -62_135_596_800, "null": None}.items():
        store.session(key, created_at=created, updated_at=1_795_946_400)

    report = imported(database, store)

    assert {one.flags for one in report.entries} == {("time_guessed",)}
    assert {one.created_at for one in conversations(database)} == {datetime(2026, 11, 29, 10, 0, tzinfo=UTC)}


def test_a_conversation_was_not_last_used_before_it_was_made(database: Database, store: OriginalStore) -> None:
    """Section 12: a clock that was set back made it so."""
    store.session(MAIN, updated_at="2026-11-28T00:00:00Z")

    report = imported(database, store)

    assert entry(report).flags == ()
    assert conversation(database).updated_at == MORNING


def test_children_hang_on_their_parents_and_inherit_nothing(database: Database, store: OriginalStore) -> None:
    """Section 12: in the original a fork saw nothing of its parent; parents come first, whatever their keys."""
    store.session("a-grandchild", parent_key="b-child")
    store.session("b-child", parent_key="c-root", fork_turn_id="task-7")
    store.session("c-root")
    store.turn("c-root", 1, [said()])

    report = imported(database, store)

    assert [one.key for one in report.entries] == ["c-root", "b-child", "a-grandchild"]
    child = conversation(database, "b-child")
    assert (child.parent_key, child.fork_turn_id, child.inherited_seq) == ("c-root", "task-7", None)
    assert conversation(database, "a-grandchild").parent_key == "b-child"
    with database.read() as work:
        assert messages(work, "b-child") == []


def test_a_parent_that_is_not_there_is_named(database: Database, store: OriginalStore) -> None:
    """Section 12: the original's column refers to nothing, and its prune leaves orphans behind."""
    store.session("child", parent_key="gone", fork_turn_id="task-7")
    store.session("grandchild", parent_key="child")

    report = imported(database, store)

    assert (entry(report, "child").flags, entry(report, "child").reason) == (
        ("parent_missing",),
        "its parent was 'gone'",
    )
    assert entry(report, "grandchild").flags == ()
    child = conversation(database, "child")
    assert (child.parent_key, child.fork_turn_id) == (None, "task-7")
    assert conversation(database, "grandchild").parent_key == "child"


def test_a_circle_of_parents_is_broken_at_its_smallest_key(database: Database, store: OriginalStore) -> None:
    """Section 12: nothing keeps the original from it, and a tree without a root is never shown."""
    store.session("c", parent_key="b")
    store.session("b", parent_key="a")
    store.session("a", parent_key="c")
    store.session("below", parent_key="b")
    store.session("own", parent_key="own")

    report = imported(database, store)

    assert report.imported == 5
    assert (entry(report, "a").flags, entry(report, "a").reason) == (("cycle_broken",), "its parent was 'c'")
    assert (entry(report, "own").flags, entry(report, "own").reason) == (("cycle_broken",), "its parent was 'own'")
    parents = {key: conversation(database, key).parent_key for key in ("a", "b", "c", "below", "own")}
    assert parents == {"a": None, "b": "a", "c": "b", "below": "b", "own": None}


def test_a_long_line_of_forks_comes_in_whole(file_database: Database, store: OriginalStore) -> None:
    """A tree deeper than Python's stack must not stop the import."""
    for number in range(1_100):
        store.session(f"k{number:04}", parent_key=f"k{number - 1:04}" if number else "")

    report = imported(file_database, store)

    assert report.imported == 1_100
    assert conversation(file_database, "k1099").parent_key == "k1098"


def test_turns_are_renumbered_when_their_seqs_are_no_order(database: Database, store: OriginalStore) -> None:
    """Section 12: two writers gave the same seq; by (seq, order of storage) then."""
    given: dict[str, list[object]] = {
        "twice": [2, 1, 2],
        "below 1": [6, 5, 0],
        "no number": [1, "x", 2],
        "huge": [2**62],
    }
    for key, seqs in given.items():
        store.session(key)
        for number, seq in enumerate(seqs):
            store.turn(key, seq, [said(f"{number}")])

    report = imported(database, store)

    assert [(one.outcome, one.flags) for one in report.entries] == [("imported", ("renumbered",))] * 4
    order = {key: [(turn.seq, turn.messages[0]["content"]) for turn in turns(database, key)] for key in given}
    assert order == {
        "twice": [(1, "1"), (2, "0"), (3, "2")],
        "below 1": [(1, "2"), (2, "1"), (3, "0")],
        "no number": [(1, "0"), (2, "2"), (3, "1")],
        "huge": [(1, "0")],
    }
    row = conversation(database, "twice")
    assert (row.compacted_seq, row.next_seq) == (0, 4)


def test_turns_keep_their_seqs_and_what_was_compacted_stays_so(database: Database, store: OriginalStore) -> None:
    """Section 12: the original deletes what it compacts, so that its first turn may have any seq."""
    store.session(MAIN, summary="Four turns.")
    for seq in (5, 6, 9):
        store.turn(MAIN, seq, [said(str(seq))])

    report = imported(database, store)
    with database.write() as work:
        appended = a_turn(work, MAIN, "next")

    assert entry(report).flags == ()
    assert conversation(database).compacted_seq == 4
    assert [turn.seq for turn in turns(database)] == [5, 6, 9, 10]
    assert appended == 10
    with database.read() as work:
        assert provider_messages(work, MAIN).summary == "Four turns."


NO_MESSAGES = ["null", "", " null\n", "[]"]
UNREADABLE = [
    "[{",
    "not JSON",
    '{"role":"user"}',
    '["user"]',
    '[{"content":"no role"}]',
    '[{"role":""}]',
    '[{"role":"user","n":NaN}]',
    '[{"role":"user","n":1e999}]',
    '[{"role":"user","content":"one","content":"two"}]',
    '[{"role":"user","content":"a raw \x00"}]',
    "[" * 100_000,
    '[{"role":"user","x":' + "[" * 300 + "]" * 300 + "}]",
    '[{"role":"user","n":' + "9" * 5_000 + "}]",
]


def test_a_turn_without_messages_stays_a_turn(database: Database, store: OriginalStore) -> None:
    """IM-07: Go writes `null` for an empty list, and a turn may have meta alone."""
    store.session(MAIN)
    for seq, text in enumerate(NO_MESSAGES, 1):
        store.turn(MAIN, seq, text, meta={"a": "b"})

    report = imported(database, store)

    assert entry(report).flags == ()
    found = [(turn.messages, turn.message_count, turn.meta) for turn in turns(database)]
    assert found == [([], 0, {"a": "b"})] * len(NO_MESSAGES)


def test_messages_that_cannot_be_read_are_kept_as_they_are(database: Database, store: OriginalStore) -> None:
    """IM-05: a row cut by a full disk made the original's whole history unreadable; nothing of it is thrown away."""
    for number, text in enumerate(UNREADABLE):
        store.session(f"k{number:02}")
        store.turn(f"k{number:02}", 1, text, meta={"a": "b"})
        store.turn(f"k{number:02}", 2, [said("readable")])

    report = imported(database, store)

    assert [one.flags for one in report.entries] == [("unreadable_messages",)] * len(UNREADABLE)
    for number, text in enumerate(UNREADABLE):
        first, second = turns(database, f"k{number:02}")
        assert (first.messages, first.message_count) == ([], 0)
        assert first.meta == {"a": "b", "unreadable_messages": text}
        assert second.messages == [said("readable")]


def test_meta_that_says_nothing_is_null(database: Database, store: OriginalStore) -> None:
    """Section 12: Go writes `null` or `{}` for an empty map."""
    store.session(MAIN)
    for seq, text in enumerate(("null", "", "{}", " { } "), 1):
        store.turn(MAIN, seq, [said()], meta=text)

    report = imported(database, store)

    assert entry(report).flags == ()
    assert [turn.meta for turn in turns(database)] == [None] * 4


def test_meta_that_cannot_be_read_is_kept_as_it_is(database: Database, store: OriginalStore) -> None:
    """Section 12: the turn comes in, and what its meta was can still be looked at."""
    unreadable = ["[]", "[1]", "{", '"text"', "0", '{"n":NaN}', '{"a":1,"a":2}', '{"x":' * 300 + "1" + "}" * 300]
    for number, text in enumerate(unreadable):
        store.session(f"k{number}")
        store.turn(f"k{number}", 1, [said()], meta=text)

    report = imported(database, store)

    assert [one.flags for one in report.entries] == [("unreadable_meta",)] * len(unreadable)
    found = [turns(database, f"k{number}")[0].meta for number in range(len(unreadable))]
    assert found == [{"unreadable_meta": text} for text in unreadable]


def test_messages_are_the_compact_encoding_of_the_sources_byte_for_byte(
    database: Database, store: OriginalStore
) -> None:
    """UP-07: unknown keys, big integers, escapes and lone surrogates come through an import unchanged."""
    message = {"role": "user", "content": "Ünï \ud83d \x00", "x_vendor": {"b": [2**70, 1.5, None], "a": {}}}
    store.session(MAIN)
    store.turn(MAIN, 1, json.dumps([message], indent=1), meta='{ "task" : "日本" }')

    imported(database, store)

    (turn,) = turns(database)
    with database.read() as work:
        stored = Turns(work).find_stored(turn.id)
    assert stored is not None
    assert stored.messages == (
        '[{"role":"user","content":"Ünï \\ud83d \\u0000","x_vendor":{"b":[1180591620717411303424,1.5,null],"a":{}}}]'
    )
    assert stored.meta == '{"task":"日本"}'


def test_ids_that_another_conversation_has_are_replaced(database: Database, store: OriginalStore) -> None:
    """IM-06: the turn that has the id already stays what it is."""
    with database.write(now=NOON) as work:
        a_conversation(work, "other")
        a_turn(work, "other", "mine", turn_id="t-1")
    store.session(MAIN)
    store.turn(MAIN, 1, [said("theirs")], id="t-1")
    store.turn(MAIN, 2, [said("too long")], id="x" * 513)

    report = imported(database, store)

    assert entry(report).flags == ("turn_id_replaced",)
    first, second = turns(database)
    assert (first.messages, second.messages) == ([said("theirs")], [said("too long")])
    assert {first.id, second.id}.isdisjoint({"t-1", "x" * 513})
    assert turns(database, "other")[0].id == "t-1"


def test_unknown_kinds_are_kept(database: Database, store: OriginalStore) -> None:
    """Section 2: a newer version of the original wrote them, and somebody will know what they mean."""
    store.session(MAIN)
    for seq, kind in enumerate([2, 10, 11, 47, "plan"], 1):
        store.turn(MAIN, seq, [said()], kind=kind)

    report = imported(database, store)

    assert entry(report).flags == ("unknown_kind",)
    assert [turn.kind for turn in turns(database)] == [2, 10, 11, 47, 0]


def test_text_that_is_not_utf_8_is_mended_and_its_row_named(database: Database, store: OriginalStore) -> None:
    """VA-08: one row of a hundred that another tool had written made all of them unreadable."""
    for number in range(100):
        store.session(f"k{number:02}")
    store.turn("k07", 1, [said("one")], author="ada")
    store.run("UPDATE sessions SET label = CAST(x'ff41' AS TEXT) WHERE key = 'k07'")
    store.run("UPDATE turns SET messages = CAST(x'5b7b22726f6c65223a22ff227d5d' AS TEXT)")
    store.run("UPDATE sessions SET key = CAST(x'6bff' AS TEXT) WHERE key = 'k99'")
    store.run("UPDATE sessions SET parent_key = CAST(x'6bff' AS TEXT) WHERE key = 'k98'")

    report = imported(database, store)

    assert report.imported == 100
    assert [one.key for one in report.entries if one.flags] == ["k07", "k\ufffd"]
    assert {one.flags for one in report.entries} == {(), ("characters_replaced",)}
    assert conversation(database, "k07").label == "\ufffdA"
    assert turns(database, "k07")[0].messages == [{"role": "\ufffd"}]
    assert conversation(database, "k98").parent_key == "k\ufffd"


def test_nul_in_a_text_is_mended(database: Database, store: OriginalStore) -> None:
    """VA-01: no text column holds it on both engines."""
    store.session(MAIN, label="a\0b", summary="\0", fork_turn_id="t\0")
    store.turn(MAIN, 1, [said()], id="t\0", author="\0a", summary="\0s", origin_key="o\0")

    report = imported(database, store)

    assert entry(report).flags == ("characters_replaced",)
    row, (turn,) = conversation(database), turns(database)
    assert (row.label, row.summary, row.fork_turn_id) == ("a\ufffdb", "\ufffd", "t\ufffd")
    assert (turn.id, turn.author, turn.summary, turn.origin_key) == ("t\ufffd", "\ufffda", "\ufffds", "o\ufffd")


def test_what_cannot_be_an_identifier_is_flagged_and_not_lost(database: Database, store: OriginalStore) -> None:
    """PG-04: a status or origin that no index could hold must not stop its conversation."""
    store.session(MAIN, status=" ")
    store.turn(MAIN, 1, [said()], kind=1, origin_key="x" * 513)

    report = imported(database, store)

    assert entry(report).flags == ("status_replaced", "unreadable_origin_key")
    assert conversation(database).status == "active"
    (turn,) = turns(database)
    assert (turn.origin_key, turn.meta) == (None, {"unreadable_origin_key": "x" * 513})


def test_a_key_that_cannot_be_one_fails_and_its_children_become_roots(database: Database, store: OriginalStore) -> None:
    """IM-05: reported with its reason, and all others come in."""
    bad = [None, "", "  ", "x" * 513, "a\0b"]
    for number, key in enumerate(bad):
        store.session(key)
        store.session(f"child {number}", parent_key=key or "")

    report = imported(database, store)

    failed = [one for one in report.entries if one.outcome == "failed"]
    assert [one.key for one in failed] == [None, "", "  ", "x" * 513, "a\ufffdb"]
    assert {one.reason.partition(":")[0] for one in failed} == {"bad_key"}
    assert (report.imported, report.failed, report.complete) == (5, 5, False)
    assert [entry(report, f"child {number}").flags for number in range(5)] == [(), (), *[("parent_missing",)] * 3]
    assert entry(report, "child 4").reason == "its parent was 'a\\x00b'"
    assert [row.parent_key for row in conversations(database)] == [None] * 5


def test_two_keys_that_become_one_are_not_mixed(database: Database, store: OriginalStore) -> None:
    """IM-10: two conversations never share one key, not even when their keys were damaged."""
    store.session("first")
    store.turn("first", 1, [said("first")])
    store.session("second")
    store.run("UPDATE sessions SET key = CAST(x'6bfe' AS TEXT) WHERE key = 'second'")
    store.run("UPDATE turns SET session_key = CAST(x'6bff' AS TEXT)")
    store.run("UPDATE sessions SET key = CAST(x'6bff' AS TEXT) WHERE key = 'first'")

    report = imported(database, store)

    assert [(one.outcome, one.reason.partition(":")[0]) for one in report.entries] == [
        ("imported", ""),
        ("failed", "bad_key"),
    ]
    assert turns(database, "k\ufffd")[0].messages == [said("first")]


@pytest.mark.parametrize(
    "text", [json.dumps([said("x" * MAX_TURN_BYTES)]), "x" * (MAX_TURN_BYTES + 1)], ids=["valid", "unreadable"]
)
def test_a_turn_that_is_too_large_fails_its_conversation_alone(
    text: str, file_database: Database, store: OriginalStore
) -> None:
    """VA-07: what cannot be stored whole is not stored in part, and its children become roots."""
    store.session(MAIN)
    store.turn(MAIN, 1, text)
    store.session("child", parent_key=MAIN)

    report = imported(file_database, store)

    failed = entry(report)
    assert (failed.outcome, failed.reason.partition(":")[0]) == ("failed", "too_large")
    assert (entry(report, "child").outcome, entry(report, "child").flags) == ("imported", ("parent_missing",))
    assert len(everything(file_database)[0]) == 1


def test_turns_whose_session_is_gone_are_named(database: Database, store: OriginalStore) -> None:
    """RT-09: nothing is left out without a word; the original shows such turns to nobody."""
    store.session(MAIN)
    store.turn("gone", 1, [said()])
    store.turn("gone", 2, [said()])

    report = imported(database, store)

    assert entry(report, "gone") == ImportEntry("sessions.db", "gone", "skipped", "no_session", turns=2)
    assert (report.imported, report.skipped, report.complete) == (1, 1, True)


def test_raw_history_stays_and_what_a_provider_needs_mended_is_counted(
    database: Database, store: OriginalStore
) -> None:
    """IM-13: an earlier trim cut between call and result, and every later request was refused."""
    store.session(MAIN)
    raw: list[dict[str, Any]] = [
        {"role": "tool", "content": "disk 41 %", "tool_call_id": "call_9"},
        {"role": "assistant", "content": "The disk is fine."},
    ]
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_10", "function": {"name": "mem"}}]}
    store.turn(MAIN, 1, raw)
    store.turn(MAIN, 2, [said("And memory?"), call])

    report = imported(database, store)

    assert (entry(report).orphan_results, entry(report).aborted_calls, entry(report).messages) == (1, 1, 4)
    with database.read() as work:
        assert messages(work, MAIN) == [*raw, said("And memory?"), call]
        view = provider_messages(work, MAIN)
    assert (view.repairs.orphan_results, view.repairs.aborted_calls) == (1, 1)


def a_mixed_store(store: OriginalStore) -> None:
    """Fill a store with a bit of everything."""
    store.session("a-root", label="A")
    store.turn("a-root", 3, [said("three")])
    store.session("b-child", parent_key="a-root", status="completed")
    store.turn("b-child", 1, "broken", meta="[]")
    store.turn("b-child", 1, [said("one")])
    store.session("c-lonely", parent_key="gone", updated_at="")
    store.session("d-loop", parent_key="d-loop")
    store.session("")
    store.turn("nobody", 1, [said()])


def test_a_second_import_finds_everything_and_changes_nothing(database: Database, store: OriginalStore) -> None:
    """IM-02, acceptance 30: every start imports again."""
    a_mixed_store(store)
    first = imported(database, store)
    stored = everything(database)

    second = imported(database, store)

    assert (first.imported, first.already) == (4, 0)
    assert (second.imported, second.already, second.conflicts) == (0, 4, 0)
    assert (second.failed, second.skipped) == (first.failed, first.skipped) == (1, 1)
    assert everything(database) == stored


def test_what_was_used_since_is_still_known(database: Database, store: OriginalStore) -> None:
    """IM-04: an import never takes back what was said since, and the source may have moved on in its times alone."""
    store.session(MAIN)
    store.turn(MAIN, 1, [said("one")])
    imported(database, store)
    with database.write(now=LATER) as work:
        a_turn(work, MAIN, "since")
    stored = everything(database)

    report = imported(database, store)

    assert entry(report).outcome == "already"
    assert everything(database) == stored


def test_what_grew_in_the_source_is_a_conflict(database: Database, store: OriginalStore) -> None:
    """IM-04: which of two histories goes on is for a person to say."""
    store.session(MAIN)
    store.turn(MAIN, 1, [said("one")])
    imported(database, store)
    stored = everything(database)
    store.turn(MAIN, 2, [said("two")])

    report = imported(database, store)

    assert entry(report).outcome == "conflict"
    assert everything(database) == stored


def test_a_child_of_a_conflict_hangs_on_what_is_stored(database: Database, store: OriginalStore) -> None:
    """Section 12: both conversations of one key are untouched, and the tree goes on below the one that is here."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=2)
    store.session(MAIN)
    store.turn(MAIN, 1, [said("another")])
    store.session("child", parent_key=MAIN)
    store.turn("child", 1, [said("below")])

    report = imported(database, store)

    assert (entry(report).outcome, bool(entry(report).reason)) == ("conflict", True)
    assert (report.imported, report.conflicts, report.complete) == (1, 1, False)
    assert [turn.messages for turn in turns(database)] == [[said("1")], [said("2")]]
    assert conversation(database).imported_at is None
    assert conversation(database, "child").parent_key == MAIN


def test_a_conversation_that_nobody_used_is_filled(database: Database, store: OriginalStore) -> None:
    """Section 12: the program that was started before the import made it, and it holds nothing yet."""
    with database.write(now=LATER) as work:
        a_conversation(work, MAIN)
    store.session(MAIN, summary="Before.")
    store.turn(MAIN, 4, [said("four")])

    report = imported(database, store)

    assert entry(report).outcome == "imported"
    row = conversation(database)
    assert (row.summary, row.compacted_seq, row.next_seq, row.created_at) == ("Before.", 3, 5, MORNING)
    assert [turn.seq for turn in turns(database)] == [4]


def test_a_dry_run_says_the_same_and_writes_nothing(database: Database, store: OriginalStore) -> None:
    """Section 12: an operator looks before the history of a year is moved."""
    a_mixed_store(store)
    store.session("e-taken")
    store.turn("e-taken", 1, [said("theirs")], id="t-1")
    store.session("f-conflict")
    store.turn("f-conflict", 1, [said("theirs")])
    with database.write(now=NOON) as work:
        a_conversation(work, "other")
        a_turn(work, "other", turn_id="t-1")
        a_conversation(work, "f-conflict", turns=1)
    stored = everything(database)

    dry = imported(database, store, dry_run=True)

    assert everything(database) == stored
    real = imported(database, store)
    assert dry.dry_run
    assert dry.entries == real.entries
    assert (dry.imported, dry.conflicts, dry.failed, dry.skipped) == (5, 1, 1, 1)


def test_each_entry_is_told_once_its_tree_is_stored(file_database: Database, store: OriginalStore) -> None:
    """A person watches a long import, and what is said to be in must be in."""
    a_mixed_store(store)
    store.close()
    told: list[tuple[str | None, bool]] = []

    def note(one: ImportEntry) -> None:
        with file_database.read() as work:
            told.append((one.key, one.key != "" and Conversations(work).exists(one.key or "?")))

    report = import_session_database(file_database, store.path, on_progress=note)

    assert told == [(one.key, one.outcome == "imported") for one in report.entries]


def test_an_empty_store_is_imported_in_no_time(database: Database, store: OriginalStore) -> None:
    """IM-07: an original that was installed and never used is no error."""
    report = imported(database, store)

    assert (report.entries, report.complete) == ((), True)


def test_an_imported_conversation_is_used_like_any_other(database: Database, store: OriginalStore) -> None:
    """UP-07: appended to, forked and ended, with its old turns unchanged."""
    store.session(MAIN)
    store.turn(MAIN, 7, [said("seven") | {"x": 1}])
    imported(database, store)

    with database.write(now=NOON + timedelta(days=1)) as work:
        a_turn(work, MAIN, "next")
        workflows.fork(work, MAIN, "branch", inherit=True)
        workflows.set_status(work, MAIN, "completed")

    with database.read() as work:
        assert messages(work, "branch") == [said("seven") | {"x": 1}, said("next")]
