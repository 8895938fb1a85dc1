"""A conversation becomes a file that nobody else may read, and the file becomes the same conversation again."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentstate.conversations.export import export_conversation, export_file_name, export_text, write_export
from agentstate.conversations.history import compact as compact_turns
from agentstate.conversations.history import messages, provider_messages
from agentstate.conversations.importer import import_sessions
from agentstate.conversations.models import TurnKind
from agentstate.conversations.workflows import append, create, fork, set_label, set_status
from agentstate.db.database import Database
from agentstate.errors import ConversationNotFound, InvalidValue, TurnUnreadable
from builders import LATER, NOON, a_conversation, a_turn, said
from conversation_helpers import column, everything, texts
from session_files import brought, compact, names, put, row, stored_text, turns


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    """An empty directory for exports."""
    directory = tmp_path / "exports"
    directory.mkdir()
    return directory


@pytest.fixture
def elsewhere() -> Iterator[Database]:
    """Another database, to which conversations move."""
    with Database.memory() as found:
        yield found


def exported(database: Database, key: str) -> dict[str, Any]:
    """Export the conversation."""
    with database.read() as work:
        return export_conversation(work, key)


def a_rich_conversation(database: Database, key: str = "agent:ada:main") -> None:
    """Make a conversation with compacted turns and turns of every kind, at NOON and LATER."""
    with database.write(now=NOON) as work:
        create(work, key, label='Ada "main" \U0001f41f')
        append(work, key, [said("1"), said("2", "assistant")])
        append(work, key, [said("3"), {"role": "assistant", "content": "lone \ud83d, NUL \0", "x": [2**70, None]}])
        compact_turns(work, key, 1, "One and two were said.")
    with database.write(now=LATER) as work:
        fork(work, key, f"{key}:job", meta={"n": 1.5})
        append(work, key, [said("done")], kind=TurnKind.REPORT, origin_key=f"{key}:job", author="job", meta={"a": [1]})
        append(work, key, [said("4"), said("5", "assistant")], turn_id="mine", summary="four and five")
        set_status(work, key, "review")


def test_an_export_says_everything_in_the_form_of_a_session_file(database: Database) -> None:
    """Programs that know session files read the first fields; the rest is what they leave out."""
    a_rich_conversation(database)

    document = exported(database, "agent:ada:main")

    assert list(document) == [
        *("key", "messages", "summary", "created", "updated"),
        *("label", "status", "parent_key", "next_seq", "turns"),
    ]
    assert [message["content"] for message in document["messages"]] == ["3", "lone \ud83d, NUL \0", "done", "4", "5"]
    assert (document["key"], document["summary"]) == ("agent:ada:main", "One and two were said.")
    assert (document["created"], document["updated"]) == ("2026-11-29T12:00:00.000Z", "2026-11-29T12:05:00.000Z")
    assert (document["label"], document["status"]) == ('Ada "main" \U0001f41f', "review")
    assert (document["parent_key"], document["next_seq"]) == (None, 6)
    assert [(turn["seq"], turn["kind"], turn["message_count"]) for turn in document["turns"]] == [
        (2, 0, 2),
        (3, 2, 0),
        (4, 1, 1),
        (5, 0, 2),
    ]
    assert document["turns"][2:] == [
        {
            "id": document["turns"][2]["id"],
            "seq": 4,
            "kind": 1,
            "message_count": 1,
            "author": "job",
            "origin_key": "agent:ada:main:job",
            "summary": None,
            "created_at": "2026-11-29T12:05:00.000Z",
            "meta": {"a": [1]},
        },
        {
            "id": "mine",
            "seq": 5,
            "kind": 0,
            "message_count": 2,
            "author": "",
            "origin_key": None,
            "summary": "four and five",
            "created_at": "2026-11-29T12:05:00.000Z",
            "meta": None,
        },
    ]


def test_a_branch_is_exported_with_what_it_inherits(database: Database) -> None:
    """SE-08: an export of its own turns alone would be half a conversation where its parent is not."""
    with database.write(now=NOON) as work:
        a_conversation(work, "parent", turns=3)
        compact_turns(work, "parent", 1, "One was said.")
        fork(work, "parent", "branch", inherit=True)
        a_turn(work, "branch", "mine")
        compact_turns(work, "branch", 2, "And two.")

    document = exported(database, "branch")

    assert [message["content"] for message in document["messages"]] == ["3", "mine"]
    assert document["summary"] == "One was said.\n\nAnd two."
    assert document["parent_key"] == "parent"
    assert [turn["seq"] for turn in document["turns"]] == [3, 4, 5]


def test_what_is_not_there_or_not_readable_is_not_exported(database: Database) -> None:
    """A pruned conversation must not become an empty file that looks like a copy of it."""
    with database.write(now=NOON) as work:
        a_conversation(work, "damaged", turns=2)
        work.connection.execute(text("UPDATE turns SET messages = '[{' WHERE seq = 2"))

    with pytest.raises(ConversationNotFound):
        exported(database, "gone")
    with pytest.raises(TurnUnreadable):
        exported(database, "damaged")


# --- the file --------------------------------------------------------------------------------------------------------

AWKWARD_KEYS = [
    "../../x",
    "/etc/y",
    "a\\b",
    "CON",
    "k" * 300,
    "k" * 301,
    "a:b",
    "a_b",
    "..",
    "日本",
    "a\nb",
    "-rf",
    "%2e",
]


def test_every_key_has_a_file_of_its_own_inside_the_directory(
    database: Database, elsewhere: Database, outbox: Path
) -> None:
    """IM-11: a session whose id contained ../ was written outside the directory."""
    with database.write(now=NOON) as work:
        for key in AWKWARD_KEYS:
            a_conversation(work, key, turns=2)

    paths = [write_export(exported(database, key), outbox) for key in AWKWARD_KEYS]

    assert names(outbox) == sorted(path.name for path in paths)
    assert len(set(paths)) == len(AWKWARD_KEYS)
    assert {path.parent for path in paths} == {outbox}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert all(len(path.name) <= 94 and path.name.isascii() for path in paths)
    assert paths[0].name.startswith(".._.._x-")
    assert import_sessions(elsewhere, outbox, now=NOON).imported == len(AWKWARD_KEYS)
    assert {key: texts(elsewhere, key) for key in AWKWARD_KEYS} == {key: ["1", "2"] for key in AWKWARD_KEYS}


def test_an_exports_messages_are_lines_of_their_stored_text() -> None:
    """UP-07: what differs between two exports is what was said between them, line by line."""
    spoken = [{"role": "user", "content": "Grüße \ud83d", "n": 2**70}, {"role": "assistant", "content": "\u2028"}]

    found = export_text({"key": "k\n", "messages": spoken, "turns": [], "parent_key": None})

    assert found == (
        '{"key":"k\\n",\n"messages":[\n'
        '{"role":"user","content":"Grüße \\ud83d","n":1180591620717411303424},\n'
        '{"role":"assistant","content":"\u2028"}\n],\n'
        '"turns":[],\n"parent_key":null}\n'
    )
    assert json.loads(found.encode())["messages"] == spoken


def test_an_export_replaces_the_earlier_one_of_its_conversation(database: Database, outbox: Path) -> None:
    """A script exports every night; what it reads next morning is whole, and the newest."""
    with database.write(now=NOON) as work:
        a_conversation(work, "k", turns=1)
    first = write_export(exported(database, "k"), outbox)
    first.chmod(0o644)
    with database.write(now=NOON) as work:
        a_turn(work, "k", "2")

    second = write_export(exported(database, "k"), outbox)

    assert first == second
    assert names(outbox) == [export_file_name("k")]
    assert [message["content"] for message in json.loads(second.read_bytes())["messages"]] == ["1", "2"]
    assert stat.S_IMODE(second.stat().st_mode) == 0o600


def test_a_file_can_be_named_by_the_caller(outbox: Path) -> None:
    """Whoever names the file means that file."""
    path = write_export({"key": "k", "messages": []}, str(outbox / "mine.json"))

    assert path == outbox / "mine.json"
    assert json.loads(path.read_bytes()) == {"key": "k", "messages": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_planted_link_is_not_followed(outbox: Path, tmp_path: Path) -> None:
    """FS-12: the link's target would be overwritten, or made readable."""
    victim = tmp_path / "victim"
    victim.write_text("secret")
    victim.chmod(0o640)
    planted = outbox / export_file_name("k")
    planted.symlink_to(victim)
    (outbox / "nowhere.json").symlink_to(tmp_path / "nowhere")

    for output in (outbox, planted, outbox / "nowhere.json"):
        with pytest.raises(InvalidValue, match="no regular file"):
            write_export({"key": "k", "messages": []}, output)

    assert victim.read_text() == "secret"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o640
    assert planted.is_symlink()
    assert not (tmp_path / "nowhere").exists()
    assert names(outbox) == sorted([planted.name, "nowhere.json"])


def test_what_cannot_be_written_is_told_and_leaves_nothing(outbox: Path) -> None:
    """A traceback tells nobody that the directory is missing."""
    (outbox / export_file_name("k")).mkdir()
    os.mkfifo(outbox / "fifo")
    for output in (outbox, outbox / "fifo", outbox / "gone" / "k.json", outbox / ("x" * 300), outbox / "nul\0"):
        with pytest.raises(InvalidValue, match="output"):
            write_export({"key": "k", "messages": []}, output)

    assert names(outbox) == sorted(["fifo", export_file_name("k")])


# --- and back --------------------------------------------------------------------------------------------------------


def test_a_round_trip_keeps_turns_seqs_and_everything_they_say(
    database: Database, elsewhere: Database, outbox: Path
) -> None:
    """UP-07: a move between two machines must not make reports anonymous, or seqs begin again."""
    a_rich_conversation(database)
    write_export(exported(database, "agent:ada:main"), outbox)

    (entry,) = brought(elsewhere, outbox).values()

    assert (entry.outcome, entry.turns, entry.messages, entry.flags) == ("imported", 4, 5, ())
    assert turns(elsewhere, "agent:ada:main") == turns(database, "agent:ada:main")
    assert stored_text(elsewhere, "agent:ada:main") == stored_text(database, "agent:ada:main")
    before, after = row(database, "agent:ada:main"), row(elsewhere, "agent:ada:main")
    for name in ("label", "status", "summary", "created_at", "updated_at", "next_seq", "compacted_seq"):
        assert getattr(after, name) == getattr(before, name)
    assert exported(elsewhere, "agent:ada:main") == exported(database, "agent:ada:main")
    with elsewhere.write(now=LATER) as work:
        assert append(work, "agent:ada:main", [said("6")]).seq == 6


def test_a_branch_comes_back_as_a_whole_conversation(database: Database, elsewhere: Database, outbox: Path) -> None:
    """SE-08: what it inherited is its own where its parent is not; a parent is never invented."""
    with database.write(now=NOON) as work:
        a_conversation(work, "parent", turns=2)
        fork(work, "parent", "branch", inherit=True)
        a_turn(work, "branch", "mine")
    with elsewhere.write(now=NOON) as work:
        create(work, "parent")
    write_export(exported(database, "branch"), outbox)

    (entry,) = brought(elsewhere, outbox).values()

    assert entry.outcome == "imported"
    assert texts(elsewhere, "branch") == ["1", "2", "mine"]
    assert [turn.seq for turn in turns(elsewhere, "branch")] == [1, 2, 3, 4]
    assert column(elsewhere, "branch", "parent_key") is None
    assert column(elsewhere, "branch", "inherited_seq") is None


def test_a_conversation_that_was_compacted_whole_goes_on_counting(
    database: Database, elsewhere: Database, outbox: Path
) -> None:
    """A seq is never used twice, not even after a move: reports and pollers name seqs."""
    with database.write(now=NOON) as work:
        a_conversation(work, "k", turns=5)
        compact_turns(work, "k", 5, "Five things were said.")
    write_export(exported(database, "k"), outbox)

    (entry,) = brought(elsewhere, outbox).values()

    assert (entry.outcome, entry.turns, entry.flags) == ("imported", 0, ())
    assert (column(elsewhere, "k", "next_seq"), column(elsewhere, "k", "compacted_seq")) == (6, 5)
    with elsewhere.read() as work:
        assert provider_messages(work, "k").summary == "Five things were said."


@pytest.mark.parametrize("key", ["agent:ada:main", "branch"])
def test_an_export_that_is_brought_in_where_it_came_from_changes_nothing(
    database: Database, outbox: Path, key: str
) -> None:
    """IM-06: a restore of what is there is no conflict, and no second copy."""
    a_rich_conversation(database)
    with database.write(now=LATER) as work:
        fork(work, "agent:ada:main", "branch", inherit=True)
        a_turn(work, "branch", "mine")
    write_export(exported(database, key), outbox)
    before = everything(database)

    (entry,) = brought(database, outbox).values()

    assert (entry.outcome, entry.key) == ("already", key)
    assert everything(database) == before


def test_an_id_that_is_taken_is_replaced(database: Database, outbox: Path) -> None:
    """A copy under another key must not fail at its first turn, or take the turn away from its owner."""
    with database.write(now=NOON) as work:
        create(work, "k")
        for number in range(3):
            append(work, "k", [said(str(number))], turn_id=f"id {number}")
    document = exported(database, "k") | {"key": "copy"}
    document["turns"][2]["id"] = "twice"
    document["turns"][1]["id"] = "twice"
    put(outbox, "copy.json", document)
    rehearsed = brought(database, outbox, dry_run=True)["copy.json"]

    entry = brought(database, outbox)["copy.json"]

    assert (entry.outcome, entry.flags) == ("imported", ("turn_id_replaced",))
    assert rehearsed.flags == entry.flags
    assert texts(database, "copy") == ["0", "1", "2"]
    assert texts(database, "k") == ["0", "1", "2"]
    ids = [turn.id for turn in turns(database, "copy")]
    assert ids[1] == "twice"
    assert len({*ids, "id 0", "id 1", "id 2"}) == 6


def test_two_copies_in_one_directory_are_both_whole(database: Database, outbox: Path) -> None:
    """A parent and its branch are exported with the same turns; a dry run says that as the import does."""
    with Database.memory() as source:
        with source.write(now=NOON) as work:
            a_conversation(work, "k", turns=2)
        document = exported(source, "k")
    put(outbox, "a.json", document)
    put(outbox, "b.json", {**document, "key": "copy"})
    rehearsed = brought(database, outbox, dry_run=True)

    entries = brought(database, outbox)

    assert [entry.flags for entry in entries.values()] == [(), ("turn_id_replaced",)]
    assert [entry.flags for entry in rehearsed.values()] == [(), ("turn_id_replaced",)]
    assert texts(database, "k") == texts(database, "copy") == ["1", "2"]


def test_two_copies_that_come_in_at_once_are_both_whole(database: Database, tmp_path: Path) -> None:
    """PG-05: both find the ids free; the one whose turns arrive second lost them without a word."""
    with Database.memory() as source:
        with source.write(now=NOON) as work:
            a_conversation(work, "k", turns=40)
        document = exported(source, "k")
    for number in range(10):
        put(tmp_path / "0", f"{number}.json", {**document, "key": f"0:{number}"})
        put(tmp_path / "1", f"{number}.json", {**document, "key": f"1:{number}"})

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda name: import_sessions(database, tmp_path / name), "01"))

    assert [report.imported for report in reports] == [10, 10]
    assert sum(not entry.flags for report in reports for entry in report.entries) == 1
    for key in (f"{half}:{number}" for half in "01" for number in range(10)):
        assert [turn.seq for turn in turns(database, key)] == list(range(1, 41))
        assert texts(database, key) == [str(number) for number in range(1, 41)]


def _turn(index: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["turns"][index].update(fields)


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a message taken out": lambda document: document["messages"].pop(),
    "a message put in": lambda document: document["messages"].append(said("9")),
    "no list": lambda document: document.update(turns="2"),
    "null": lambda document: document.update(turns=None),
    "a turn that is none": lambda document: document["turns"].__setitem__(0, "turn"),
    "no count": lambda document: document["turns"][0].pop("message_count"),
    "count below 0": _turn(0, message_count=-1),
    "count true": _turn(0, message_count=True),
    "seq 0": _turn(0, seq=0),
    "seq twice": _turn(1, seq=1),
    "seq of 64 bits": _turn(1, seq=2**63 - 1),
    "seq as text": _turn(1, seq="2"),
    "next_seq too small": lambda document: document.update(next_seq=2),
    "next_seq of 65 bits": lambda document: document.update(next_seq=2**64),
    "no next_seq": lambda document: document.pop("next_seq"),
    "kind as text": _turn(0, kind="normal"),
    "kind of 65 bits": _turn(0, kind=2**64),
    "NUL in author": _turn(0, author="\0"),
    "author null": _turn(0, author=None),
    "blank id": _turn(0, id=" "),
    "origin no text": _turn(0, origin_key=1),
    "summary no text": _turn(0, summary=1),
    "meta a list": _turn(0, meta=[]),
}


def test_turns_that_do_not_fit_the_messages_are_not_believed(database: Database, outbox: Path) -> None:
    """IM-05: a file edited by hand must not lose messages, and not stop the import either."""
    with Database.memory() as source:
        with source.write(now=NOON) as work:
            a_conversation(work, "k", turns=2)
            set_label(work, "k", "mine")
        document = exported(source, "k")
    edited = {}
    for number, (name, edit) in enumerate(EDITS.items()):
        edited[name] = {**json.loads(json.dumps(document)), "key": name}
        edit(edited[name])
        put(outbox, f"{number:02}.json", edited[name])

    entries = brought(database, outbox)

    assert [entry.key for entry in entries.values()] == list(EDITS)
    assert {(entry.outcome, entry.flags) for entry in entries.values()} == {("imported", ("turns_ignored",))}
    for name in EDITS:
        assert stored_text(database, name) == compact(edited[name]["messages"])
        assert [turn.seq for turn in turns(database, name)] == list(range(1, len(edited[name]["messages"]) + 1))
        assert column(database, name, "label") == "mine"


def test_what_a_newer_version_exported_is_kept(database: Database, outbox: Path) -> None:
    """UP-07: an unknown kind of turn is a number; fields of the row that cannot be stored are not worth a failure."""
    with Database.memory() as source:
        with source.write(now=NOON) as work:
            a_conversation(work, "k", turns=1)
        document = exported(source, "k")
    document["turns"][0] |= {"kind": 77, "created_at": "soon", "new": 1}
    put(outbox, "a.json", {**document, "label": "NUL \0", "status": ["active"], "new": 1})

    entry = brought(database, outbox)["a.json"]

    assert (entry.outcome, entry.flags) == ("imported", ("characters_replaced",))
    (turn,) = turns(database, "k")
    assert (turn.kind, turn.created_at) == (77, NOON)
    assert (column(database, "k", "label"), column(database, "k", "status")) == ("NUL \ufffd", "active")


def test_unknown_keys_survive_every_way_through(database: Database, elsewhere: Database, outbox: Path) -> None:
    """UP-07: import, append, branch, compaction, export and import again hand on a message byte for byte."""
    spoken = [
        {"x_new": {"z": [1, {"y": None}], "a": 2**60}, "role": "user", "content": "Grüße \ud83d", "n": 1.5e300},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "x": 1}], "usage": {"in": 3, "out": 0.5}},
        {"tool_call_id": "c", "content": "14 °C", "role": "tool", "raw": "NUL \0"},
        {"role": "assistant", "content": "dry", "": [[], {}]},
    ]
    added = {"b": 1, "a": {"d": 1, "c": 2}, "role": "user", "content": "appended"}
    put(outbox, "k.json", b'{"key": "k", "messages": ' + json.dumps([said("old"), *spoken]).encode() + b"}")
    brought(database, outbox)
    with database.write(now=NOON) as work:
        append(work, "k", [added])
        fork(work, "k", "branch", inherit=True)
        append(work, "branch", [added])
        compact_turns(work, "branch", 1, "Something old.")
    path = write_export(exported(database, "branch"), outbox)

    (entry,) = brought(elsewhere, outbox).values()

    expected = compact([*spoken, added, added]).replace("\ud83d", "\\ud83d")
    lines = path.with_name(path.name + ".migrated").read_text(encoding="utf-8").splitlines()
    assert "[" + "".join(lines[2 : 2 + len(spoken) + 2]) + "]" == expected
    assert entry.outcome == "imported"
    assert stored_text(elsewhere, "branch") == stored_text(database, "branch") == expected
    with elsewhere.read() as work:
        assert messages(work, "branch") == [*spoken, added, added]
