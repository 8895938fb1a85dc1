"""Session files are brought in: what of them is stored, under which key, with which times, and nothing twice."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentstate.conversations.history import provider_messages
from agentstate.conversations.importer import import_sessions
from agentstate.conversations.prune import prune
from agentstate.conversations.records import ImportEntry, ImportReport, Repairs
from agentstate.conversations.workflows import append, create, fork, set_label, set_status, set_summary
from agentstate.db.database import Database
from agentstate.errors import InvalidValue
from builders import NOON, a_conversation, a_turn, finished, python, said
from conversation_helpers import everything, texts
from postgres_server import Server
from session_files import a_document, brought, compact, names, outcomes, put, row, stored_text, turns

TELEGRAM = """{"key": "telegram:12345",
 "messages": [
  {"role": "user", "content": "Is it raining in Osaka?"},
  {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function",
    "function": {"name": "weather", "arguments": "{\\"city\\":\\"Osaka\\"}"}}]},
  {"role": "tool", "content": "14 °C, dry", "tool_call_id": "call_1"},
  {"role": "assistant", "content": "No, it is dry.", "x_vendor": {"trace": "Ünï", "n": 9007199254740993}}],
 "summary": "The user asks about the weather.",
 "created": "2026-02-11T09:12:33.123456789+09:00", "updated": "2026-02-11T09:15:02.1+09:00"}""".encode()

HEARTBEAT = b"""{"messages": [
  {"role": "tool", "content": "disk 41 %", "tool_call_id": "call_9"},
  {"role": "assistant", "content": "The disk is fine."},
  {"role": "user", "content": "And memory?"},
  {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call_10", "function": {"name": "mem", "arguments": ""}}]}],
 "created": "0001-01-01T00:00:00Z", "updated": "2026-02-27T07:03:31.804995349+08:00"}"""


def instant(text: str) -> datetime:
    """Return the instant of an ISO text."""
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty directory for session files."""
    directory = tmp_path / "sessions"
    directory.mkdir()
    return directory


# --- what is stored --------------------------------------------------------------------------------------------------


def test_a_session_becomes_a_conversation_with_its_own_times(database: Database, inbox: Path) -> None:
    """IM-08: rows were made with now(), so that the age of every session was wrong afterwards."""
    put(inbox, "telegram_12345.json", TELEGRAM)

    entries = brought(database, inbox)

    assert entries["telegram_12345.json"] == ImportEntry(
        "telegram_12345.json", "telegram:12345", "imported", turns=1, messages=4, renamed=True
    )
    found = row(database, "telegram:12345")
    assert found.created_at == instant("2026-02-11T00:12:33.123Z")
    assert found.updated_at == instant("2026-02-11T00:15:02.100Z")
    assert (found.summary, found.status, found.label) == ("The user asks about the weather.", "active", "")
    assert (found.parent_key, found.next_seq, found.compacted_seq, found.inherited_seq) == (None, 2, 0, None)
    assert found.imported_at == NOON
    assert found.imported_from is not None
    assert found.imported_from.startswith("telegram_12345.json#")
    (turn,) = turns(database, "telegram:12345")
    assert (turn.seq, turn.kind, turn.message_count, turn.author, turn.meta) == (1, 0, 4, "", None)
    assert turn.created_at == found.created_at


def test_a_session_that_begins_with_an_orphan_result_is_kept_as_it_is(database: Database, inbox: Path) -> None:
    """IM-13: a session that was cut between call and result was refused by the provider ever after."""
    put(inbox, "heartbeat.json", HEARTBEAT)

    entry = brought(database, inbox)["heartbeat.json"]

    assert (entry.outcome, entry.key, entry.turns, entry.messages) == ("imported", "heartbeat", 2, 4)
    assert entry.flags == ("key_from_name", "time_guessed")
    assert (entry.orphan_results, entry.aborted_calls) == (1, 1)
    found = row(database, "heartbeat")
    assert found.created_at == found.updated_at == instant("2026-02-26T23:03:31.804Z")
    assert [turn.message_count for turn in turns(database, "heartbeat")] == [2, 2]
    with database.read() as work:
        view = provider_messages(work, "heartbeat")
    assert view.repairs == Repairs(orphan_results=1, aborted_calls=1)
    assert [message["role"] for message in view.messages] == ["assistant", "user", "assistant", "tool"]


@pytest.mark.parametrize("content", [TELEGRAM, HEARTBEAT], ids=["telegram", "heartbeat"])
def test_a_second_import_of_the_same_file_stores_nothing(database: Database, inbox: Path, content: bytes) -> None:
    """IM-02: where the source could not be renamed, all messages were appended again at every start."""
    put(inbox, "heartbeat.json", content)
    brought(database, inbox, rename=False)
    before = everything(database)

    again = brought(database, inbox)

    assert [(entry.outcome, entry.renamed) for entry in again.values()] == [("already", True)]
    assert everything(database) == before
    assert names(inbox) == ["heartbeat.json.migrated"]


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "NUL \0, lone \ud83d, pair \U0001f41f, 日本, zero-width \u200d, \u2028"},
    {"role": "assistant", "content": None, "x": {"deep": [{"b": 1, "a": [[], {}, None, True]}]}, "": "empty key"},
    {"role": "tool", "tool_call_id": "c", "n": [2**53 + 1, 2**70, -0.0, 1.5e300, 0.1, 1e-9]},
    {"z": 1, "role": "assistant", "a": 2, "content": 'a " \\ / \n \t'},
]


def test_every_key_and_value_of_a_message_survives_byte_for_byte(database: Database, inbox: Path) -> None:
    """UP-07: an importer that knows four fields of a message drops what other versions put there."""
    put(inbox, "a.json", b'{"key": "k", "messages": ' + json.dumps(MESSAGES, indent=1).encode() + b"}")

    entry = brought(database, inbox)["a.json"]

    assert entry.outcome == "imported"
    assert stored_text(database, "k") == compact(MESSAGES).replace("\ud83d", "\\ud83d")
    assert [message for turn in turns(database, "k") for message in turn.messages] == MESSAGES


def test_a_turn_begins_at_each_user_message_unless_a_call_waits(database: Database, inbox: Path) -> None:
    """SE-01: as one turn, old history could never be compacted in part; cut at a waiting call, it broke the pair."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    spoken = [said("1"), call, said("2, meanwhile"), result, said("3"), said("4"), said("5", "assistant")]
    put(inbox, "a.json", a_document("k", messages=spoken))

    brought(database, inbox)

    stored = turns(database, "k")
    assert [turn.messages for turn in stored] == [spoken[:4], spoken[4:5], spoken[5:]]
    assert [turn.seq for turn in stored] == [1, 2, 3]
    assert row(database, "k").next_seq == 4


def test_a_turn_has_the_time_of_its_first_message(database: Database, inbox: Path) -> None:
    """IM-08: where messages say when they were written, that is not lost; where they do not, nothing is made up."""
    spoken = [
        {**said("1"), "created_at": "2026-02-12T00:00:00.5+01:00"},
        {**said("2"), "created_at": "yesterday"},
        {**said("3"), "created_at": "0001-01-01T00:00:00Z"},
    ]
    put(inbox, "a.json", a_document("k", messages=spoken, created="2026-02-11T00:00:00Z"))

    brought(database, inbox)

    found = [turn.created_at for turn in turns(database, "k")]
    assert found == [instant("2026-02-11T23:00:00.500Z"), *[instant("2026-02-11T00:00:00Z")] * 2]


def test_an_empty_session_is_a_conversation_without_turns(database: Database, inbox: Path) -> None:
    """IM-07: the empty file of a cleared session was rejected, and the session disappeared."""
    times = {"created": "2026-02-11T00:00:00Z", "updated": "2026-02-12T00:00:00Z"}
    put(inbox, "empty.json", {"key": "empty", "messages": [], **times})
    put(inbox, "missing.json", {"key": "missing", **times})
    put(inbox, "null.json", {"key": "null", "messages": None, **times})

    entries = brought(database, inbox)

    for key in ("empty", "missing", "null"):
        entry, found = entries[f"{key}.json"], row(database, key)
        assert (entry.outcome, entry.turns, entry.messages, entry.flags) == ("imported", 0, 0, ())
        assert (found.created_at, found.next_seq) == (instant("2026-02-11T00:00:00Z"), 1)


def test_a_summary_loses_only_what_no_text_column_holds(database: Database, inbox: Path) -> None:
    """VA-01: one NUL in a summary refused the whole session."""
    put(inbox, "a.json", b'{"key": "a", "messages": [], "summary": "W\\u0000s \\ud83d \\ud83d\\udc1f"}')
    put(inbox, "b.json", {"key": "b", "messages": [], "summary": {"text": "no text"}})

    entries = brought(database, inbox)

    assert row(database, "a").summary == "W\ufffds \ufffd \U0001f41f"
    assert "characters_replaced" in entries["a.json"].flags
    assert row(database, "b").summary == ""
    assert "summary_ignored" in entries["b.json"].flags


# --- keys and times --------------------------------------------------------------------------------------------------


def test_the_key_is_the_one_in_the_file(database: Database, inbox: Path) -> None:
    """IM-10: two chats whose keys differ only in ':' and '_' shared one file name, and then one conversation."""
    put(inbox, "telegram_a_b.json", a_document("telegram:a_b", "mine"))
    put(inbox, "telegram_a_b (1).json", a_document("telegram:a:b", "yours"))
    put(inbox, "agent_tg_group_-100.json", a_document("agent:ada:tg:group:-100", "ours"))

    entries = brought(database, inbox)

    assert {entry.outcome for entry in entries.values()} == {"imported"}
    assert {entry.flags for entry in entries.values()} == {()}
    found = {key: texts(database, key) for key in ("telegram:a_b", "telegram:a:b", "agent:ada:tg:group:-100")}
    assert list(found.values()) == [["mine"], ["yours"], ["ours"]]


def test_without_a_key_the_file_name_is_it(database: Database, inbox: Path) -> None:
    """IM-10: a session without a key is still somebody's history; that its key was guessed is said."""
    put(inbox, "a chat.v2.json", {"messages": [said("hello")]})
    put(inbox, "empty.json", {"key": "", "messages": [said("hello")]})
    put(inbox, "null.json", {"key": None, "messages": [said("hello")]})

    entries = brought(database, inbox)

    assert [entry.key for entry in entries.values()] == ["a chat.v2", "empty", "null"]
    for entry in entries.values():
        assert "key_from_name" in entry.flags
        assert texts(database, str(entry.key)) == ["hello"]


TIMES = {
    "2026-02-27T07:03:31.804995349+08:00": "2026-02-26T23:03:31.804Z",
    "2026-02-11T09:15:02.1+09:00": "2026-02-11T00:15:02.100Z",
    "2026-02-11T09:15:02Z": "2026-02-11T09:15:02Z",
    "2026-02-11t09:15:02.000000001z": "2026-02-11T09:15:02Z",
    "2026-02-11T09:15:02.99999999999999-11:30": "2026-02-11T20:45:02.999Z",
    "1969-12-31T23:59:59.9999Z": "1969-12-31T23:59:59.999Z",
}


def test_times_of_any_offset_and_precision_are_kept_to_the_millisecond(database: Database, inbox: Path) -> None:
    """IM-08: the original writes nine digits and the local offset."""
    for number, text in enumerate(TIMES):
        put(inbox, f"{number}.json", a_document(f"k{number}", created=text, updated=text))

    entries = brought(database, inbox)

    assert {entry.flags for entry in entries.values()} == {()}
    found = [row(database, f"k{number}") for number in range(len(TIMES))]
    assert [each.created_at for each in found] == [instant(text) for text in TIMES.values()]
    assert [each.updated_at for each in found] == [instant(text) for text in TIMES.values()]


MTIME = 1_770_000_000
NO_TIME = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+08:00",
    None,
    "",
    "soon",
    1_770_000_000,
    "2026-02-30T00:00:00Z",
    "2026-02-11T09:15:02",
    "2026-02-11T09:15:02+24:00",
]


def test_an_unknown_time_is_taken_from_the_other_one(database: Database, inbox: Path) -> None:
    """IM-08: an unset time is the year 1 in the original's files; now() made the oldest session the newest."""
    known = "2026-02-11T00:00:00.123456Z"
    for number, unknown in enumerate(NO_TIME):
        put(inbox, f"a{number}.json", a_document(f"a{number}", created=unknown, updated=known))
        put(inbox, f"b{number}.json", a_document(f"b{number}", created=known, updated=unknown))
        put(inbox, f"c{number}.json", a_document(f"c{number}", created=unknown, updated=unknown))
        os.utime(inbox / f"c{number}.json", (NOON.timestamp(), MTIME))

    entries = brought(database, inbox)

    assert {entry.flags for entry in entries.values()} == {("time_guessed",)}
    found = {key: row(database, key) for key in (str(entry.key) for entry in entries.values())}
    guessed: dict[str, set[datetime]] = {key[0]: set() for key in found}
    for key, each in found.items():
        guessed[key[0]] |= {each.created_at, each.updated_at}
    other, mtime = instant("2026-02-11T00:00:00.123Z"), datetime.fromtimestamp(MTIME, UTC)
    assert guessed == {"a": {other}, "b": {other}, "c": {mtime}}


def test_a_session_was_not_used_before_it_was_made(database: Database, inbox: Path) -> None:
    """A clock that was set back must not make a new session stale."""
    put(inbox, "a.json", a_document("k", created="2026-02-12T00:00:00Z", updated="2026-02-11T00:00:00Z"))

    entry = brought(database, inbox)["a.json"]

    assert row(database, "k").updated_at == row(database, "k").created_at == instant("2026-02-12T00:00:00Z")
    assert entry.flags == ()


def test_old_history_is_not_pruned_by_the_start_that_brought_it_in(database: Database, inbox: Path) -> None:
    """IM-09: kept times and a prune of 7 days in the same start deleted everything older than a week."""
    long_ago = (NOON - timedelta(days=30)).isoformat()
    for number in range(3):
        put(inbox, f"{number}.json", a_document(f"k{number}", created=long_ago, updated=long_ago))
    brought(database, inbox)

    report = prune(database, now=NOON)

    assert (report.deleted, report.kept) == (0, {"imported": 3})


# --- what is there already -------------------------------------------------------------------------------------------


def test_the_same_messages_are_here_already_however_they_are_divided(database: Database, inbox: Path) -> None:
    """IM-06: a harmless duplicate blocked the import for ever."""
    document = a_document("k", "1", "2", "3", "4")
    with database.write(now=NOON) as work:
        create(work, "k")
        append(work, "k", document["messages"][:1])
        fork(work, "k", "child")
        append(work, "k", document["messages"][1:])
    before = everything(database)
    put(inbox, "a.json", document)

    entry = brought(database, inbox)["a.json"]

    assert (entry.outcome, entry.renamed) == ("already", True)
    assert everything(database) == before


def test_what_was_continued_since_is_here_already(database: Database, inbox: Path) -> None:
    """IM-02: a file that could not be renamed comes again at every start, while its conversation goes on."""
    put(inbox, "a.json", a_document("k", "1", "2"))
    brought(database, inbox, rename=False)
    with database.write(now=NOON) as work:
        a_turn(work, "k", "3")
    before = everything(database)

    entry = brought(database, inbox, rename=False)["a.json"]

    assert (entry.outcome, entry.renamed) == ("already", None)
    assert everything(database) == before


def test_a_conversation_that_nobody_has_used_is_filled(database: Database, inbox: Path) -> None:
    """IM-06: a role that had made its conversation before the import would have lost its history to a conflict."""
    with database.write(now=NOON) as work:
        create(work, "k", label="mine")
        set_status(work, "k", "review")
    put(inbox, "a.json", a_document("k", "1", "2", summary="before"))

    entry = brought(database, inbox)["a.json"]

    assert (entry.outcome, entry.renamed) == ("imported", True)
    assert texts(database, "k") == ["1", "2"]
    found = row(database, "k")
    assert (found.label, found.status, found.summary, found.next_seq) == ("mine", "review", "before", 2)
    assert found.updated_at == instant("2026-02-11T00:15:02.100Z")
    assert found.imported_at == NOON


@pytest.mark.parametrize("there", ["other messages", "fewer messages", "a summary", "a summary and no more"])
def test_a_conversation_in_use_is_never_replaced(database: Database, inbox: Path, there: str) -> None:
    """IM-04: the start-up scan replaced a history by what a file of its key said."""
    document = a_document("k", "1", "2")
    with database.write(now=NOON) as work:
        create(work, "k")
        if there == "other messages":
            append(work, "k", [said("1"), said("3", "assistant")])
        elif there == "fewer messages":
            append(work, "k", document["messages"][:1])
        else:
            set_summary(work, "k", "something")
    if there == "a summary and no more":
        document = {"key": "k", "messages": [], "summary": "something else"}
    before = everything(database)
    path = put(inbox, "a.json", document)
    content = path.read_bytes()

    entry = brought(database, inbox)["a.json"]

    assert (entry.outcome, entry.key, entry.renamed) == ("conflict", "k", None)
    assert everything(database) == before
    assert path.read_bytes() == content


def test_an_emptier_file_changes_nothing(database: Database, inbox: Path) -> None:
    """IM-04: a cleared session's file emptied the conversation that had gone on meanwhile."""
    with database.write(now=NOON) as work:
        a_conversation(work, "k", turns=2)
    put(inbox, "a.json", {"key": "k", "messages": []})
    before = everything(database)

    entry = brought(database, inbox)["a.json"]

    assert entry.outcome == "conflict"
    assert everything(database) == before


def test_one_transaction_holds_one_file(database: Database, inbox: Path) -> None:
    """A directory of large files in one transaction would lock everybody out, and lose all of it to one fault."""
    for number in range(3):
        put(inbox, f"{number}.json", a_document(f"k{number}"))
    seen: list[tuple[str, bool | None, list[object]]] = []

    def look(entry: ImportEntry) -> None:
        assert entry.key is not None
        seen.append((entry.source, entry.renamed, texts(database, entry.key)))

    import_sessions(database, inbox, now=NOON, on_progress=look)

    assert seen == [(f"{number}.json", True, ["hello", "good day"]) for number in range(3)]


# --- which files -----------------------------------------------------------------------------------------------------


def test_only_sessions_are_brought_in(database: Database, inbox: Path) -> None:
    """IM-04: a metadata file was taken for a session and emptied it; an index and half-written files are none."""
    with database.write(now=NOON) as work:
        a_conversation(work, "a", turns=2)
    put(inbox, "a.jsonl", b'{"role": "user", "content": "hello"}\n')
    put(inbox, "a.meta.json", {"key": "a", "summary": "", "count": 0, "created_at": "2026-02-11T00:00:00Z"})
    put(inbox, "sessions.json", {"agent:ada:main": {"sessionId": "x"}})
    put(inbox, "index.json", ["a", "d"])
    put(inbox, "b.json.tmp", a_document("b"))
    put(inbox, "c.json.migrated", a_document("c"))
    put(inbox, "d.json", a_document("d"))
    before = names(inbox)

    entries = brought(database, inbox)

    assert {name: (entry.outcome, entry.reason) for name, entry in entries.items()} == {
        "a.meta.json": ("skipped", "metadata"),
        "d.json": ("imported", ""),
        "index.json": ("skipped", "index"),
        "sessions.json": ("skipped", "index"),
    }
    assert texts(database, "a") == ["1", "2"]
    assert [found[0] for found in everything(database)[0]] == ["a", "d"]
    assert names(inbox) == [name.replace("d.json", "d.json.migrated") for name in before]


def test_names_that_are_suspicious_do_not_hide_sessions(database: Database, inbox: Path) -> None:
    """IM-04: only the name together with the content says that a file is none."""
    put(inbox, "a.meta.json", a_document("a"))
    put(inbox, "index.json", {"key": "b"})
    put(inbox, "sessions.json", {"messages": []})

    entries = brought(database, inbox)

    assert [(entry.key, entry.outcome) for entry in entries.values()] == [
        ("a", "imported"),
        ("b", "imported"),
        ("sessions", "imported"),
    ]


def test_a_link_is_not_followed(database: Database, inbox: Path, tmp_path: Path) -> None:
    """FS-12: a planted link would bring in somebody's file, and rename the link."""
    target = put(tmp_path / "elsewhere", "a.json", a_document("a"))
    (inbox / "a.json").symlink_to(target)
    (inbox / "b.json").symlink_to(tmp_path / "nowhere.json")

    entries = brought(database, inbox)

    assert {(entry.outcome, entry.reason) for entry in entries.values()} == {("skipped", "symlink")}
    assert everything(database) == ([], [])
    assert names(inbox) == ["a.json", "b.json"]


def test_a_file_of_the_new_name_is_not_replaced(database: Database, inbox: Path) -> None:
    """IM-02: a rename over it would delete the only copy of an earlier session."""
    for number in range(3):
        put(inbox, "a.json", a_document(f"k{number}"))
        brought(database, inbox)
    (inbox / "b.json.migrated").symlink_to(inbox / "nothing")
    put(inbox, "b.json", a_document("b"))

    brought(database, inbox)

    migrated = [inbox / f"a.json.migrated{suffix}" for suffix in ("", ".1", ".2")]
    assert names(inbox) == [path.name for path in migrated] + ["b.json.migrated", "b.json.migrated.1"]
    assert [f'"k{number}"' in path.read_text() for number, path in enumerate(migrated)] == [True] * 3


def test_a_missing_directory_holds_nothing(database: Database, tmp_path: Path) -> None:
    """A role that never had session files imports at its start like every other."""
    assert import_sessions(database, tmp_path / "none") == ImportReport()
    assert import_sessions(database, str(tmp_path / "none"), dry_run=True) == ImportReport(dry_run=True)


@pytest.mark.parametrize("name", ["a.json", "nul\0"])
def test_what_is_no_directory_is_refused(database: Database, inbox: Path, name: str) -> None:
    """Taken for an empty directory, a mistyped path looked like success."""
    put(inbox, "a.json", a_document("k"))

    with pytest.raises(InvalidValue, match="cannot be listed"):
        import_sessions(database, inbox / name)


def test_a_file_that_was_written_to_meanwhile_keeps_its_name(file_database: Database, inbox: Path) -> None:
    """IM-01: the original still runs and saves a newer version between our reading and our renaming."""
    newer = a_document("k", "1", "2", "3")

    class Meanwhile(Database):
        def _check_still_there(self) -> None:
            super()._check_still_there()
            put(inbox, "a.json", newer)

    put(inbox, "a.json", a_document("k", "1", "2"))
    assert file_database.path is not None
    with Meanwhile.open(file_database.path) as database:
        first = brought(database, inbox)["a.json"]
    second = brought(file_database, inbox)["a.json"]

    assert (first.outcome, first.renamed) == ("imported", False)
    assert second.outcome == "conflict"
    assert names(inbox) == ["a.json"]


# --- dry run, and several at once ------------------------------------------------------------------------------------


def a_mixed_directory(database: Database, inbox: Path) -> None:
    """Fill directory and database so that every outcome occurs, twice files of one key among them."""
    with database.write(now=NOON) as work:
        a_conversation(work, "conflict", turns=1)
        create(work, "unused")
        set_label(work, "unused", "mine")
    put(inbox, "broken.json", b"{")
    put(inbox, "conflict.json", a_document("conflict", "another"))
    put(inbox, "skipped.meta.json", {"key": "k"})
    put(inbox, "unused.json", a_document("unused"))
    put(inbox, "twice 1.json", a_document("twice"))
    put(inbox, "twice 2.json", a_document("twice", summary="the same messages"))
    put(inbox, "twice 3.json", a_document("twice", "other messages"))
    put(inbox, "empty 1.json", {"key": "empty"})
    put(inbox, "empty 2.json", a_document("empty", "filled"))
    (inbox / "directory.json").mkdir()


def test_a_dry_run_says_the_same_and_touches_nothing(database: Database, inbox: Path) -> None:
    """A rehearsal that calls a conflict an import is worse than none."""
    a_mixed_directory(database, inbox)
    before, files = everything(database), names(inbox)

    rehearsed = brought(database, inbox, dry_run=True)

    assert everything(database) == before
    assert names(inbox) == files
    done = brought(database, inbox)
    assert outcomes(rehearsed) == outcomes(done)
    assert {name: (entry.key, entry.reason, entry.turns, entry.flags) for name, entry in rehearsed.items()} == {
        name: (entry.key, entry.reason, entry.turns, entry.flags) for name, entry in done.items()
    }
    assert {entry.renamed for entry in rehearsed.values()} == {None}


def test_the_report_counts_what_happened(database: Database, inbox: Path) -> None:
    """'Done in part' is told from the counts; an operator looks at the rest."""
    a_mixed_directory(database, inbox)

    report = import_sessions(database, inbox, now=NOON)

    counts = (report.imported, report.already, report.skipped, report.conflicts, report.failed, report.not_renamed)
    assert counts == (4, 1, 1, 2, 2, 0)
    assert not report.complete
    assert [entry.source for entry in report.entries] == sorted(entry.source for entry in report.entries)


def test_two_importers_bring_each_session_in_once(database: Database, inbox: Path) -> None:
    """IM-03: two processes that start together found the same files."""
    documents = {f"k{number}": a_document(f"k{number}", *map(str, range(number + 2))) for number in range(30)}
    for key, document in documents.items():
        put(inbox, f"{key}.json", document)

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: import_sessions(database, inbox, now=NOON), range(2)))

    assert sum(report.imported for report in reports) == 30
    assert all(report.complete for report in reports)
    assert {key: stored_text(database, key) for key in documents} == {
        key: compact(document["messages"]) for key, document in documents.items()
    }
    # Which of two free names it gets depends on who renames it.
    assert {path.name.partition(".migrated")[0] for path in inbox.iterdir()} == {f"{key}.json" for key in documents}
    assert len(names(inbox)) == 30


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_a_conversation_that_is_made_meanwhile_is_seen(
    server: Server, server_database: Database, inbox: Path, used: bool
) -> None:
    """IM-06: its role starts while its history is brought in; neither of them fails."""
    put(inbox, "a.json", a_document("k", "1", "2"))

    with ThreadPoolExecutor(1) as pool:
        with server_database.write(now=NOON) as work:
            create(work, "k", label="mine")
            if used:
                a_turn(work, "k", "other")
            waiting = pool.submit(brought, server_database, inbox)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
        entry = waiting.result()["a.json"]

    assert entry.outcome == ("conflict" if used else "imported")
    assert texts(server_database, "k") == (["other"] if used else ["1", "2"])
    assert row(server_database, "k").label == "mine"


# --- a really large session ------------------------------------------------------------------------------------------

LARGE = """
import sys
import agentstate.metadata
from agentstate.conversations.importer import import_sessions
from agentstate.db.database import Database
with Database.open(sys.argv[1]) as database:
    report = import_sessions(database, sys.argv[2])
print(report.imported, report.entries[0].messages)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="IM-12: /proc says how much memory was used")
def test_a_really_large_session_is_brought_in_with_little_memory(file_database: Database, inbox: Path) -> None:
    """IM-12: a heartbeat session of 4.1 MB and 3,417 messages."""
    spoken: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": "gone", "content": "disk 41 % \ufffd"}]
    spoken += [said("日本 " * 13_500)]
    spoken += [said(f"{number}: " + "x" * 1_150, ("user", "assistant")[number % 2]) for number in range(3_415)]
    times = {"created": "2026-01-01T00:00:00.123456789+08:00", "updated": "2026-02-27T07:03:31.804995349+08:00"}
    path = put(inbox, "agent_main group_-100123.json", a_document("agent:main:group:-100123", messages=spoken, **times))
    size = path.stat().st_size

    lines = finished(python(LARGE, str(file_database.path), inbox)).splitlines()

    assert size > 4_100_000
    assert len(spoken) == 3_417
    assert lines[0] == "1 3417"
    assert int(lines[1]) < 300 * 1024
    assert stored_text(file_database, "agent:main:group:-100123") == compact(spoken)
    assert row(file_database, "agent:main:group:-100123").updated_at == instant("2026-02-26T23:03:31.804Z")
