"""Session files that are cut, foreign or refused: each is told by its reason and left in place, the others come in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.conversations.importer import MAX_FILE_BYTES, import_sessions
from agentstate.conversations.incoming import IncomingConversation, bring_in
from agentstate.conversations.models import MAX_TURN_BYTES
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.session_file import Unusable, parse_session
from agentstate.db.database import Database
from agentstate.errors import DatabaseReadOnly, SchemaBehind
from agentstate.settings import Settings
from builders import finished, said
from conversation_helpers import everything, texts
from db_helpers import AS_ROOT, NOBODY, as_nobody, common_ground, made
from session_files import a_document, brought, names, outcomes, put

GOOD = json.dumps(a_document("good", "Grüße")).encode()


def with_message(text: str) -> bytes:
    """Return a session file with one good message and that one behind it."""
    return b'{"key": "k", "messages": [{"role": "user", "content": "1"}, ' + text.encode() + b"]}"


DAMAGED = {
    "empty": (b"", "empty_file"),
    "cut": (GOOD[: len(GOOD) // 2], "not_json: "),
    "nul": (bytes(1000), "not_json: "),
    "utf16": (GOOD.decode().encode("utf-16"), "not_utf8: byte 0"),
    "utf16 without a mark": (GOOD.decode().encode("utf-16-le"), "not_json: "),
    "latin1": (b'{"key": "k", "messages": [], "summary": "Gr\xfc\xdfe"}', "not_utf8: byte 43"),
    "surrogate": (b'{"key": "\xed\xa0\xbd"}', "not_utf8: byte 9"),
    "two": (GOOD + GOOD, "not_json: Extra data, "),
    "array": (b"[" + GOOD + b"]", "not_an_object"),
    "text": (b'"good"', "not_an_object"),
    "null": (b"null", "not_an_object"),
    "settings": (b'{"theme": "dark"}', "not_a_session"),
    "nothing": (b"{}", "not_a_session"),
    "nested": (b'{"key": "k", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not_json: nested too deeply"),
    "duplicate key": (b'{"key": "k", "key": "k", "messages": []}', "duplicate_key: 'key'"),
    "duplicate role": (with_message('{"role": "user", "role": "tool"}'), "duplicate_key: 'role'"),
    "duplicate below": (
        with_message('{"role": "user", "x": [{"\\ud83d": 1, "\\ud83d": 1}]}'),
        "duplicate_key: '\ufffd",
    ),
    "nan": (with_message('{"role": "user", "x": NaN}'), "bad_number: NaN"),
    "infinity": (with_message('{"role": "user", "x": -Infinity}'), "bad_number: -Infinity"),
    "too large a float": (with_message('{"role": "user", "x": 1e999}'), "bad_number: 1e999"),
    "too long an integer": (with_message('{"role": "user", "x": 1' + "0" * 5000 + "}"), "bad_number: "),
    "messages is a text": (b'{"key": "k", "messages": "hello"}', "bad_message: messages is not a list"),
    "messages is an object": (b'{"key": "k", "messages": {}}', "bad_message: messages is not a list"),
    "no object": (with_message('"hello"'), "bad_message: messages[1] must be a dict"),
    "null message": (with_message("null"), "bad_message: messages[1] must be a dict"),
    "no role": (with_message('{"content": "2"}'), "bad_message: messages[1].role must be a non-empty text"),
    "empty role": (with_message('{"role": ""}'), "bad_message: messages[1].role must be a non-empty text"),
    "nested message": (
        with_message('{"role": "user", "x": ' + "[" * 300 + "]" * 300 + "}"),
        "bad_message: messages[1]",
    ),
    "number as key": (b'{"key": 17, "messages": []}', "bad_key: must be text"),
    "blank key": (b'{"key": " ", "messages": []}', "bad_key: must not be empty"),
    "long key": (json.dumps({"key": "k" * 513}).encode(), "bad_key: has 513 characters"),
    "nul in key": (b'{"key": "k\\u0000", "messages": []}', "bad_key: holds U+0000"),
}


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty directory for session files."""
    directory = tmp_path / "sessions"
    directory.mkdir()
    return directory


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory that every user may look into."""
    with common_ground() as place:
        yield place


def test_each_damaged_file_is_told_by_its_reason_and_left_in_place(database: Database, inbox: Path) -> None:
    """IM-05, VA-06: one file that was cut lost all sessions, or was overwritten by an empty one."""
    for name, (content, _) in DAMAGED.items():
        put(inbox, f"{name}.json", content)
    (inbox / "directory.json").mkdir()
    put(inbox, "a good one.json", GOOD)
    put(inbox, "with a mark.json", b"\xef\xbb\xbf" + json.dumps(a_document("marked", "hello")).encode())
    before = {path.name: path.read_bytes() for path in inbox.iterdir() if path.is_file()}

    report = import_sessions(database, inbox)

    entries = {entry.source.removesuffix(".json"): entry for entry in report.entries}
    assert {name for name, entry in entries.items() if entry.outcome == "imported"} == {"a good one", "with a mark"}
    expected = {name: reason for name, (_, reason) in DAMAGED.items()} | {"directory": "not_a_regular_file"}
    failed = {name: entry.reason for name, entry in entries.items() if entry.outcome == "failed"}
    assert {name: reason[: len(expected[name])] for name, reason in failed.items()} == expected
    assert not report.complete
    assert report.failed == len(expected)
    assert [row[0] for row in everything(database)[0]] == ["good", "marked"]
    after = {path.name.removesuffix(".migrated"): path.read_bytes() for path in inbox.iterdir() if path.is_file()}
    assert after == before


def test_a_repaired_file_comes_in_with_the_next_run(database: Database, inbox: Path) -> None:
    """IM-05: what had failed once counted as done."""
    put(inbox, "a.json", GOOD[:-1])
    first = brought(database, inbox)
    put(inbox, "a.json", GOOD)

    second = brought(database, inbox)

    assert [outcomes(first), outcomes(second)] == [{"a.json": "failed"}, {"a.json": "imported"}]
    assert texts(database, "good") == ["Grüße"]


def test_a_fifo_keeps_nobody_waiting(file_database: Database, inbox: Path) -> None:
    """A FIFO that nobody writes to stopped whoever read the directory."""
    os.mkfifo(inbox / "a.json")
    put(inbox, "b.json", GOOD)

    entries = brought(file_database, inbox)

    assert {name: (entry.outcome, entry.reason) for name, entry in entries.items()} == {
        "a.json": ("failed", "not_a_regular_file"),
        "b.json": ("imported", ""),
    }


def test_a_file_that_is_too_large_is_not_read(file_database: Database, inbox: Path) -> None:
    """A log of gigabytes with the wrong name used up all memory."""
    with open(inbox / "a.json", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a hole: it takes no room on the disk

    entry = brought(file_database, inbox)["a.json"]

    assert (entry.outcome, entry.reason) == ("failed", f"too_large: more than {MAX_FILE_BYTES} bytes")
    assert names(inbox) == ["a.json"]


@pytest.mark.parametrize("pieces", [1, 3], ids=["one message", "one turn"])
def test_a_turn_that_is_too_large_is_told(file_database: Database, inbox: Path, pieces: int) -> None:
    """VA-07: what no turn can hold is left in its file, whole, instead of being cut."""
    content = "x" * (MAX_TURN_BYTES // pieces + 1)
    put(inbox, "a.json", a_document("k", messages=[said(content, "assistant")] * pieces))

    entry = brought(file_database, inbox)["a.json"]

    assert entry.outcome == "failed"
    assert entry.reason.startswith("too_large: messages[0] " if pieces == 1 else "too_large: a turn ")
    assert everything(file_database) == ([], [])


def test_a_name_that_is_not_utf8_can_be_reported(file_database: Database, inbox: Path) -> None:
    """FS-03: such names come from other systems' archives, and ended the import with an encoding error."""
    (inbox / os.fsdecode(b"Gr\xfc\xdfe.json")).write_bytes(GOOD)
    (inbox / os.fsdecode(b"\xff.json")).write_bytes(b'{"messages": []}')

    entries = brought(file_database, inbox)

    assert entries["Gr\ufffd\ufffde.json"].outcome == "imported"
    assert entries["\ufffd.json"].reason.startswith("bad_key: holds U+DCFF")
    json.dumps([entry.source for entry in entries.values()], ensure_ascii=False).encode()


# The interpreter may be root's alone: what the code needs is loaded with root's rights.
AS_NOBODY = f"""
if root:
    os.seteuid(0)
from agentstate.conversations.importer import import_sessions
if root:
    os.seteuid({NOBODY})
with Database.open(sys.argv[1]) as database:
    for _ in range(3):
        report = import_sessions(database, sys.argv[2])
        print([(e.source, e.outcome, e.reason, e.renamed) for e in report.entries], report.not_renamed)
"""


@pytest.mark.parametrize("mode", [0o555, 0o1777], ids=["closed", "shared"])
def test_a_directory_in_which_nothing_can_be_renamed_is_brought_in_once(ground: Path, mode: int) -> None:
    """IM-02: all messages were appended again at every start, and a new name was taken each time."""
    if mode == 0o1777 and not AS_ROOT:
        pytest.skip("a shared directory needs files of another user, hence root")
    state, inbox = ground / "state", ground / "sessions"
    state.mkdir()
    path = made(state / "agent.db")
    put(inbox, "a.json", GOOD).chmod(0o644)
    put(inbox, "secret.json", a_document("secret")).chmod(0)
    if AS_ROOT:
        os.chown(state, NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)
    inbox.chmod(mode)

    lines = finished(as_nobody(AS_NOBODY, path, inbox)).splitlines()

    secret = ("secret.json", "failed", "unreadable: Permission denied", None)
    first, again = (("a.json", outcome, "", False) for outcome in ("imported", "already"))
    assert lines == [f"{[first, secret]} 1", f"{[again, secret]} 1", f"{[again, secret]} 1"]
    assert names(inbox) == ["a.json", "secret.json"]
    with Database.open(path) as database:
        assert texts(database, "good") == ["Grüße"]


def test_a_name_too_long_for_another_ending_is_brought_in_once(database: Database, inbox: Path) -> None:
    """IM-02: the rename fails, whatever the reason; the conversation is stored all the same."""
    name = "x" * 245 + ".json"
    put(inbox, name, GOOD)

    found = [brought(database, inbox)[name] for _ in range(3)]

    assert [(entry.outcome, entry.renamed) for entry in found] == [
        ("imported", False),
        ("already", False),
        ("already", False),
    ]
    assert texts(database, "good") == ["Grüße"]
    assert names(inbox) == [name]


def test_a_database_that_is_behind_is_told_before_any_file_is_touched(path: Path, inbox: Path) -> None:
    """A file renamed without a place for its content would be lost to every later run."""
    made(path, to="0003")
    put(inbox, "a.json", GOOD)

    with Database.open(path) as database:
        with pytest.raises(SchemaBehind):
            import_sessions(database, inbox)
        with pytest.raises(SchemaBehind):
            import_sessions(database, inbox, dry_run=True)

    assert names(inbox) == ["a.json"]


def test_a_read_only_handle_rehearses_and_imports_nothing(path: Path, inbox: Path) -> None:
    """An operator looks at what an import would do without the right to do it."""
    made(path)
    put(inbox, "a.json", GOOD)

    with Database.open(path, "ro", settings=Settings()) as database:
        rehearsed = brought(database, inbox, dry_run=True)
        with pytest.raises(DatabaseReadOnly):
            import_sessions(database, inbox)

    assert outcomes(rehearsed) == {"a.json": "imported"}
    assert names(inbox) == ["a.json"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("key", "messages", "summary", "created", "updated", "label", "status", "next_seq", "turns")
A_TURN = st.fixed_dictionaries(
    {"seq": st.integers(-1, 4) | JSON, "message_count": st.integers(-1, 2) | JSON},
    optional=dict.fromkeys(("id", "kind", "author", "origin_key", "summary", "created_at", "meta"), JSON),
)
A_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"x": JSON})
DOCUMENTS = st.fixed_dictionaries(
    {"key": st.sampled_from(["a", "b"]), "messages": st.lists(A_MESSAGE, max_size=3)},
    optional={"turns": st.lists(A_TURN, max_size=3), "next_seq": st.integers(-1, 5) | JSON}
    | dict.fromkeys(("summary", "label", "status", "created", "updated"), JSON),
)


def parsed(data: bytes) -> IncomingConversation | None:
    """Return what the file says, or None if there is a reason not to bring it in."""
    try:
        return parse_session(data, "a.json", 0).incoming
    except Unusable:
        return None


def test_whatever_a_file_holds_it_is_a_session_or_has_a_reason() -> None:
    """IM-05: an exception that nobody had thought of ended the import at the same file for ever."""

    @given(st.dictionaries(st.sampled_from(FIELDS), JSON) | DOCUMENTS, st.integers(0, 300), st.binary(max_size=3))
    def check(document: object, cut: int, noise: bytes) -> None:
        whole = json.dumps(document).encode()
        with database.write() as work:
            for data in (whole, whole[:cut] + noise, whole[:cut] + noise + whole[cut:]):
                incoming = parsed(data)
                if incoming is not None:
                    assert bring_in(work, incoming).outcome == "imported"
                    found = Turns(work).list_turns(incoming.key)
                    assert [turn.seq for turn in found] == [turn.seq for turn in incoming.turns]
                    Conversations(work).delete(incoming.key)

    with Database.memory() as database:
        check()
