"""`agentstate conversations`: every command with and without --json, and every exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import frozen
from agentstate.cli.main import run
from agentstate.conversations import history, workflows
from agentstate.conversations.models import Conversation, TurnKind
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from builders import LATER, MAIN, NOON, a_conversation, a_turn, agentstate, said, sql
from conversation_helpers import everything, texts
from original_store import OriginalStore
from session_files import a_document, put

UTC_TEXT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def configured(file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database at head, named by AGENT_DB_PATH."""
    monkeypatch.setenv("AGENT_DB_PATH", str(path))
    return file_database


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command of the group in this process; return its exit code and what it printed on stdout and stderr."""
    code = run(["conversations", *arguments])
    return code, *capsys.readouterr()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command that has nothing to say on stderr, and return what it printed."""
    found, output, error = call(capsys, *arguments)
    assert (found, error) == (code, "")
    return output


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Run a command with --json and return what its one document means."""
    return json.loads(shown(capsys, *arguments, "--json", code=code))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command that must fail, with and without --json; return exit code and the error's JSON.

    Without --json the same error is one line that says the same.
    """
    code, output, error = call(capsys, *arguments)
    assert output == ""
    assert error.startswith("agentstate: ")
    assert error.count("\n") == 1
    again, output, document = call(capsys, *arguments, "--json")
    assert (again, output) == (code, "")
    assert document.count("\n") == 1
    found: dict[str, Any] = json.loads(document)
    assert list(found)[:2] == ["error", "message"]
    assert " ".join(found["message"].split())[:40] in error
    return code, found


def family(database: Database) -> None:
    """Store a conversation of three turns, a branch of it with one more, and a sub-agent's that has ended."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=3)
        workflows.fork(work, MAIN, f"{MAIN}:branch", label="try redis", inherit=True)
        a_turn(work, f"{MAIN}:branch", "own")
        workflows.spawn(work, MAIN, "scout-1")
        workflows.finish(work, "subagent:scout-1", "completed", MAIN, "found it")


# --- list ---


def test_the_list_is_the_default(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Section 14's lines, in a pipe as on a terminal; the age is the only thing that changes."""
    assert shown(capsys) == "No conversations.\n"
    family(configured)

    text = shown(capsys)

    assert re.sub(r"\(\d+\w \d+\w\)|\(\d+s\)", "(age)", text) == (
        "Conversations (3)\n"
        "- main [active] (age) turns=6\n"
        "- try redis [active] (age) turns=1 parent=main from=4\n"
        "- scout-1 [completed] (age) turns=0 parent=main\n"
    )
    assert shown(capsys, "list").splitlines()[0] == "Conversations (3)"


def test_the_list_as_json_has_every_field(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: times as they are stored, and the cursor."""
    family(configured)

    page = as_json(capsys, "--sort", "key", "--desc", "--limit", "2")
    rest = as_json(capsys, "list", "--sort", "key", "--desc", "--cursor", page["next_cursor"])

    assert [row["key"] for row in page["conversations"]] == ["subagent:scout-1", f"{MAIN}:branch"]
    assert page["conversations"][1] == {
        "key": f"{MAIN}:branch",
        "short_key": "main:branch",
        "parent_key": MAIN,
        "fork_turn_id": page["conversations"][1]["fork_turn_id"],
        "status": "active",
        "label": "try redis",
        "summary": "",
        "created_at": "2026-11-29T12:00:00.000Z",
        "updated_at": "2026-11-29T12:00:00.000Z",
        "compacted_seq": 0,
        "inherited_seq": 4,
        "inherited_summary": None,
        "imported_at": None,
        "turn_count": 1,
    }
    assert [row["key"] for row in rest["conversations"]] == [MAIN]
    assert rest["next_cursor"] is None


def test_a_list_that_goes_on_says_how(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """A person who sees a hundred lines must not take them for all."""
    family(configured)

    code, output, hint = call(capsys, "--limit", "2")
    rest = shown(capsys, *hint.split()[-2:])

    assert code == 0
    assert output.startswith("Conversations (2)\n")
    assert re.fullmatch(r"agentstate: there are more: --cursor \S+\n", hint)
    assert rest.startswith("Conversations (1)\n- scout-1 ")


def test_the_filters_of_the_list_are_options(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Each as in `list_conversations`."""
    family(configured)

    found = [
        [row["short_key"] for row in as_json(capsys, *options)["conversations"]]
        for options in (
            ("--prefix", "agent:"),
            ("--contains", "redis"),
            ("--parent", MAIN),
            ("--roots",),
            ("--status", "completed"),
            ("--prefix", "agent_"),
        )
    ]

    assert found == [
        ["main", "main:branch"],
        ["main:branch"],
        ["main:branch", "subagent:scout-1"],
        ["main"],
        ["subagent:scout-1"],
        [],
    ]


def test_a_row_that_cannot_be_read_is_done_in_part(
    configured: Database, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VA-08: exit 8, the others listed, and the row named; in the tree as well."""
    family(configured)
    sql(path, "UPDATE conversations SET label = CAST(x'ff' AS TEXT) WHERE key LIKE '%scout%'")

    listed = call(capsys)
    drawn = call(capsys, "graph")

    assert (listed[0], listed[1].splitlines()[0]) == (8, "Conversations (2)")
    assert (drawn[0], len(drawn[1].splitlines())) == (8, 3)
    for _, _, error in (listed, drawn):
        assert "key='subagent:scout-1'" in error
        assert error.count("\n") == 1


# --- graph ---


def test_the_tree_is_drawn(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, or below a key, which may be cut short."""
    assert shown(capsys, "graph") == "No conversations.\n"
    family(configured)

    assert shown(capsys, "graph") == (
        "Conversations\n└── ● main (turns=6)\n    ├── ● try redis (turns=1, from=4)\n    └── ✓ scout-1 (turns=0)\n"
    )
    assert shown(capsys, "graph", "--root", "sub") == "Conversations\n└── ✓ scout-1 (turns=0)\n"
    assert [node["label"] for node in as_json(capsys, "graph")["nodes"]] == ["main", "try redis", "scout-1"]
    assert [edge["from"] for edge in as_json(capsys, "graph")["edges"]] == [MAIN, MAIN]
    assert as_json(capsys, "graph", "--root", f"{MAIN}:branch")["edges"] == []


def test_a_terminal_without_utf_8_gets_everything_in_ascii(configured: Database, path: Path) -> None:
    """Acceptance 32: a label that the terminal's encoding lacks ended in a traceback."""
    with configured.write(now=NOON) as work:
        a_conversation(work, "a:b:田", turns=1)
        workflows.set_label(work, "a:b:田", "Ünï\n😀")
        a_turn(work, "a:b:田", "größer 😀")

    runs = {
        arguments: agentstate("conversations", *arguments, AGENT_DB_PATH=str(path), PYTHONIOENCODING="ascii:strict")
        for arguments in (
            ("graph",),
            ("list", "--json"),
            ("show", "a:b", "--messages"),
            ("export", "a:b"),
        )
    }

    assert all(done.stdout.isascii() for done in runs.values())
    assert [(done.returncode, done.stderr) for done in runs.values()] == [(0, "")] * 4
    assert runs["graph",].stdout == "Conversations\n`-- * \\xdcn\\xef\\ufffd\\U0001f600 (turns=2)\n"
    assert "user: gr\\xf6\\xdfer \\U0001f600\n" in runs["show", "a:b", "--messages"].stdout
    assert json.loads(runs["list", "--json"].stdout)["conversations"][0]["label"] == "Ünï\n😀"
    assert json.loads(runs["export", "a:b"].stdout)["messages"][1]["content"] == "größer 😀"


# --- show ---


def test_one_conversation_is_shown_with_a_line_for_each_turn(
    configured: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row, lineage, and the turns that it sees; SE-10: an origin that is gone is marked."""
    family(configured)
    with configured.write(now=LATER) as work:
        a_turn(work, MAIN, "?", kind=TurnKind.QUESTION, origin_key="subagent:gone")
        workflows.set_label(work, f"{MAIN}:branch", "try\nredis\x1b[2J")

    branch = shown(capsys, "show", f"{MAIN}:branch")
    parent = shown(capsys, "show", MAIN, "--last", "3")

    assert f"inherits from\t{MAIN}\n" in branch
    assert "label\ttry�redis�[2J\n" in branch
    assert "inherited up to\t4\n" in branch
    assert [line.split("\t")[:3] for line in branch.partition("\n\n")[2].splitlines()] == [
        ["1", "normal", "1"],
        ["2", "normal", "1"],
        ["3", "normal", "1"],
        ["4", "fork point", "0"],
        ["5", "normal", "1"],
    ]
    assert parent.partition("\n\n")[2].splitlines() == [
        "5\tfork point\t0\t2026-11-29T12:00:00.000Z\t\t",
        "6\treport\t1\t2026-11-29T12:00:00.000Z\tscout-1\tsubagent:scout-1",
        "7\tquestion\t1\t2026-11-29T12:05:00.000Z\t\tsubagent:gone (gone)",
    ]


def test_a_conversation_as_json_is_its_row_and_its_turns(
    configured: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """`conversation` and `turns`; bodies when they are asked for."""
    family(configured)

    plain = as_json(capsys, "show", f"{MAIN}:b")
    bodies = as_json(capsys, "show", f"{MAIN}:b", "--messages", "--last", "1")

    assert list(plain) == ["conversation", "turns"]
    assert plain["conversation"]["key"] == f"{MAIN}:branch"
    assert plain["conversation"]["lineage"] == [f"{MAIN}:branch", MAIN]
    assert [turn["seq"] for turn in plain["turns"]] == [1, 2, 3, 4, 5]
    assert set(plain["turns"][0]) == {
        "id",
        "conversation_key",
        "seq",
        "kind",
        "message_count",
        "origin_key",
        "origin_gone",
        "summary",
        "author",
        "created_at",
    }
    assert [(turn["messages"], turn["meta"]) for turn in bodies["turns"]] == [([said("own")], None)]


def test_messages_are_shown_under_their_turns(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Text as text, everything else as JSON, and nothing that commands the terminal."""
    call_made = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "one\n\x1b[2Jtwo"}
    with configured.write(now=NOON) as work:
        a_conversation(work, "k")
        workflows.append(work, "k", [said("look"), call_made, result], author="ada")

    text = shown(capsys, "show", "k", "--messages").partition("\n\n")[2]

    assert text == (
        "1  normal  3 messages  2026-11-29T12:00:00.000Z  ada\n"
        "    user: look\n"
        "    assistant:\n"
        '        {"tool_calls": [{"id": "c1"}]}\n'
        "    tool: one\n"
        "        \\x1b[2Jtwo\n"
        '        {"tool_call_id": "c1"}\n'
    )


def test_the_provider_view_is_shown_with_its_repairs(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """SE-02: what a model would be sent, before it refuses it."""
    with configured.write(now=NOON) as work:
        a_conversation(work, "k")
        workflows.append(work, "k", [said("x"), {"role": "tool", "tool_call_id": "c9", "content": "lost"}])

    text = shown(capsys, "show", "k", "--provider")
    view = as_json(capsys, "show", "k", "--provider")

    assert text.splitlines()[0] == "    user: x"
    assert text.splitlines()[-1].startswith("repairs: 1 (orphan results left out: 1,")
    assert list(view) == ["key", "messages", "repairs", "summary", "compacted_seq", "last_seq"]
    assert view["repairs"]["orphan_results"] == 1
    assert refused(capsys, "show", "k", "--provider", "--last", "2")[0] == 2


def test_a_turn_whose_json_does_not_decode_is_corrupt(
    configured: Database, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists go on; who reads the turn is told where it is, and a script that it will not get better."""
    family(configured)
    sql(path, "UPDATE turns SET messages = '[{' WHERE seq = 1")

    code, error = refused(capsys, "show", MAIN, "--messages")

    assert (code, error["error"], error["seq"]) == (6, "TurnUnreadable", 1)
    assert "fork point" in shown(capsys, "show", MAIN)
    assert shown(capsys).startswith("Conversations (3)")


# --- fork ---


def test_a_person_forks_to_go_on_from_here(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """A branch, whose key is free by -2, -3 when two are made in one second."""
    family(configured)

    text = shown(capsys, "fork", MAIN, "try", "sqlite")
    others = [as_json(capsys, "fork", MAIN) for _ in range(3)]

    (first,) = re.findall(rf"^Forked conversation\n  parent: main\n  child:  ({MAIN}:fork:\d{{8}}T\d{{6}})\n$", text)
    with configured.read() as work:
        made = Conversations(work).get(first)
        kept = [Conversations(work).get(other["child"]) for other in others]
    assert (made.label, made.parent_key, made.inherited_seq) == ("try sqlite", MAIN, 7)
    assert [list(other) for other in others] == [["parent", "child", "fork_turn_id", "inherited_seq"]] * 3
    assert [(other["fork_turn_id"], other["inherited_seq"]) for other in others] == [
        (row.fork_turn_id, row.inherited_seq) for row in kept
    ]
    assert {row.label for row in kept} == {"fork"}


def test_keys_of_one_second_are_numbered(database: Database) -> None:
    """The same second twice is no accident: a script forks three times at once."""
    with database.write(now=NOON) as work:
        a_conversation(work, "k")
        made = [workflows.fork_to_free_key(work, "k").key for _ in range(3)]

    assert made == ["k:fork:20261129T120000", "k:fork:20261129T120000-2", "k:fork:20261129T120000-3"]


def test_an_empty_child_under_a_key_of_ones_own(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """`--empty` starts without the history, `--key` names it; a key that is taken changes nothing."""
    family(configured)

    facts = as_json(capsys, "fork", MAIN, "--key", "mine", "--empty")
    before = everything(configured)
    code, error = refused(capsys, "fork", MAIN, "--key", "mine")

    assert (facts["child"], facts["inherited_seq"]) == ("mine", None)
    assert texts(configured, "mine") == []
    assert (code, error["error"], error["key"]) == (1, "ConversationExists", "mine")
    assert everything(configured) == before


# --- compact ---


def test_turns_are_compacted_up_to_one(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary from the command line, and what was done."""
    with configured.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=5)

    facts = as_json(capsys, "compact", MAIN, "--up-to", "2", "--summary", "first", "--expect", "0")
    text = shown(capsys, "compact", MAIN, "--keep-last", "1", "--summary", "second")

    assert facts == {"key": MAIN, "requested_seq": 2, "up_to_seq": 2, "turns": 2, "deleted": 2}
    assert text == f"compacted {MAIN} up to turn 4: 2 turns hidden, 2 deleted\n"
    with configured.read() as work:
        row = Conversations(work).get(MAIN)
    assert (row.compacted_seq, row.summary) == (4, "first\n\nsecond")


def test_a_summary_comes_from_a_file_or_from_stdin(
    configured: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summaries are longer than a command line; the line end that an editor adds is none of it."""
    with configured.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=3)
    (tmp_path / "summary.txt").write_bytes("\ufeffÜber\nalles\n".encode())
    (tmp_path / "latin.txt").write_bytes(b"\xff")

    shown(capsys, "compact", MAIN, "--up-to", "1", "--summary-file", str(tmp_path / "summary.txt"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"and more")))
    shown(capsys, "compact", MAIN, "--up-to", "2", "--summary-file", "-")
    latin = refused(capsys, "compact", MAIN, "--up-to", "3", "--summary-file", str(tmp_path / "latin.txt"))
    missing = refused(capsys, "compact", MAIN, "--up-to", "3", "--summary-file", str(tmp_path / "none.txt"))

    with configured.read() as work:
        assert Conversations(work).get(MAIN).summary == "Über\nalles\n\nand more"
    assert (latin[0], latin[1]["field"]) == (1, "summary")
    assert missing[0] == 2


def test_where_nothing_can_be_compacted_nothing_is_changed(
    configured: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1: a script must not take it for done. The summary would stand for nothing, and is not kept."""
    with configured.write(now=NOON) as work:
        a_conversation(work, MAIN)
        workflows.append(work, MAIN, [said("go"), {"role": "assistant", "tool_calls": [{"id": "c1"}]}])
    before = everything(configured)

    by_seq = call(capsys, "compact", MAIN, "--up-to", "1", "--summary", "s")
    by_count = call(capsys, "compact", MAIN, "--keep-last", "9", "--summary", "s")
    facts = as_json(capsys, "compact", MAIN, "--up-to", "1", "--summary", "s", code=1)
    counted = as_json(capsys, "compact", MAIN, "--keep-last", "9", "--summary", "s", code=1)

    for code, output, error in (by_seq, by_count):
        assert (code, output) == (1, "")
        assert error == f"agentstate: nothing of {MAIN} can be compacted so far; nothing was changed\n"
    assert facts == {"key": MAIN, "requested_seq": 1, "up_to_seq": 0, "turns": 0, "deleted": 0}
    assert counted == {"key": MAIN, "requested_seq": 0, "up_to_seq": 0, "turns": 0, "deleted": 0}
    assert everything(configured) == before


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("--up-to", "2", "--summary", ""), 1, "EmptySummary"),
        (("--keep-last", "1", "--summary", " "), 1, "EmptySummary"),
        (("--up-to", "4", "--summary", "s"), 1, "InvalidValue"),
        (("--up-to", "99999999999999999999", "--summary", "s"), 1, "InvalidValue"),
        (("--up-to", "1", "--summary", "s"), 1, "StaleCompaction"),
        (("--up-to", "2", "--summary", "s", "--expect", "0"), 1, "StaleCompaction"),
        (("--keep-last", "1", "--summary", "s", "--expect", "0"), 1, "StaleCompaction"),
        (("--keep-last", "9", "--summary", "s", "--expect", "0"), 1, "StaleCompaction"),
        (("--up-to", "2", "--summary", "a\ud800"), 1, "InvalidValue"),
        (("--summary", "s"), 2, "UsageError"),
        (("--up-to", "2"), 2, "UsageError"),
        (("--up-to", "2", "--keep-last", "1", "--summary", "s"), 2, "UsageError"),
        (("--up-to", "2", "--summary", "s", "--summary-file", "-"), 2, "UsageError"),
        (("--keep-last", "-1", "--summary", "s"), 2, "BadParameter"),
        (("--up-to", "two", "--summary", "s"), 2, "BadParameter"),
    ],
)
def test_a_compaction_that_makes_no_sense_changes_nothing(
    configured: Database, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, name: str
) -> None:
    """SE-04, SE-05: refused by what is stored or by a value is 1, a command line that cannot be meant is 2."""
    with configured.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=3)
        history.compact(work, MAIN, 1, "before")
    before = everything(configured)

    found, error = refused(capsys, "compact", MAIN, *arguments)

    assert (found, error["error"]) == (code, name)
    assert everything(configured) == before


# --- status and delete ---


def test_the_status_is_set_whatever_it_was(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """The way out of an end, too."""
    family(configured)

    assert shown(capsys, "status", MAIN, "review") == f"{MAIN} is review\n"
    assert as_json(capsys, "status", MAIN, "active") == {"key": MAIN, "status": "active"}
    code, error = refused(capsys, "status", MAIN, " ")

    assert (code, error["field"]) == (1, "status")
    with configured.read() as work:
        assert Conversations(work).get(MAIN).status == "active"


def test_a_deletion_says_what_went_and_what_became_a_root(
    configured: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """RT-04: never a branch's history with it, unless that is asked for."""
    family(configured)

    code, error = refused(capsys, "delete", MAIN)
    text = shown(capsys, "delete", MAIN, "--children", "keep")
    facts = as_json(capsys, "delete", f"{MAIN}:branch", "--children", "cascade")

    assert (code, error["error"], error["inheriting"]) == (1, "ConversationHasChildren", [f"{MAIN}:branch"])
    assert text.splitlines() == [
        f"deleted {MAIN}",
        f"{MAIN}:branch is a root now",
        "subagent:scout-1 is a root now",
    ]
    assert facts == {"deleted": [f"{MAIN}:branch"], "detached": []}
    assert refused(capsys, "delete", MAIN)[1]["error"] == "ConversationNotFound"


@pytest.mark.parametrize(
    "arguments",
    [
        ("fork", "agent:ada"),
        ("compact", "agent:ada", "--up-to", "1", "--summary", "s"),
        ("compact", "agent:ada", "--keep-last", "0", "--summary", "s"),
        ("status", "agent:ada", "completed"),
        ("delete", "agent:ada"),
    ],
)
def test_commands_that_write_take_the_whole_key(
    configured: Database, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """ID-07: a unique beginning is no key where something would be changed."""
    with configured.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=1)
    before = everything(configured)

    code, error = refused(capsys, *arguments)

    assert (code, error["error"], error["key"]) == (1, "ConversationNotFound", "agent:ada")
    assert everything(configured) == before


@pytest.mark.parametrize("command", [("show",), ("export",), ("graph", "--root")])
def test_commands_that_look_take_the_beginning_of_a_key(
    configured: Database, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """ID-07: an exact key wins, several are named, none is none."""
    family(configured)

    code, ambiguous = refused(capsys, *command, "agent")
    unknown = refused(capsys, *command, "nobody")

    assert shown(capsys, *command, MAIN)
    assert shown(capsys, *command, "subagent:")
    assert (code, ambiguous["error"], ambiguous["candidates"]) == (1, "AmbiguousKey", [MAIN, f"{MAIN}:branch"])
    assert (unknown[0], unknown[1]["error"]) == (1, "ConversationNotFound")


# --- prune, import, export ---


def test_what_nobody_uses_is_pruned(configured: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """The rehearsal says the same and deletes nothing; the fixed NOON may be in the future, so one is made old."""
    with configured.write() as work:
        a_conversation(work, "fresh", turns=1)
        for key in ("old", "older"):
            Conversations(work).add(
                Conversation(key=key, created_at=NOON.replace(year=2020), updated_at=NOON.replace(year=2020))
            )
        workflows.spawn(work, "fresh", "busy")

    rehearsed = as_json(capsys, "prune", "--dry-run")
    still = as_json(capsys, "list", "--prefix", "old")
    text = shown(capsys, "prune", "--older-than", "30m")
    nothing = as_json(capsys, "prune", "--older-than", "12h", "--include-imported")

    assert list(rehearsed) == ["dry_run", "cutoff", "candidates", "deleted", "deleted_turns", "kept", "roots"]
    assert (rehearsed["dry_run"], rehearsed["deleted"], rehearsed["roots"]) == (True, 2, {"deleted": ["old", "older"]})
    assert re.fullmatch(UTC_TEXT, rehearsed["cutoff"])
    assert len(still["conversations"]) == 2
    assert re.fullmatch(
        rf"deleted 2 of 2 unused since {UTC_TEXT}, with 0 turns\n  deleted: old\n  deleted: older\n", text
    )
    assert (nothing["deleted"], nothing["candidates"]) == (0, 0)


@pytest.mark.parametrize("age", ["7", "7w", "-1d", "", "1.5h", "7 d", "9999999999d", "\u0667d"])
def test_an_age_is_a_number_and_a_unit(configured: Database, capsys: pytest.CaptureFixture[str], age: str) -> None:
    """`prune --older-than 7` deleted what was seven seconds old."""
    code, error = refused(capsys, "prune", "--older-than", age)

    assert code == 2
    assert "7d, 12h, 30m or 90s" in error["message"]


@pytest.mark.parametrize("age", ["999999999d", "999999999s", "90s", "0d"])
def test_every_age_that_is_one_is_understood(
    configured: Database, capsys: pytest.CaptureFixture[str], age: str
) -> None:
    """Also one longer than there have been computers."""
    assert as_json(capsys, "prune", "--older-than", age)["deleted"] == 0


def test_session_files_are_imported(configured: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 8 while something is left to look at, 0 when it is not."""
    files = tmp_path / "sessions"
    put(files, "good.json", a_document("telegram:1"))
    put(files, "bad.json", b"")

    rehearsed = as_json(capsys, "import", str(files), "--dry-run", code=8)
    text = shown(capsys, "import", str(files), code=8)
    (files / "bad.json").unlink()
    put(files, "good.json", a_document("telegram:1"))
    again = as_json(capsys, "import", str(files), "--no-rename")

    counts = ("dry_run", "imported", "already", "skipped", "conflicts", "failed", "not_renamed", "complete", "entries")
    assert tuple(rehearsed) == counts
    assert [rehearsed[name] for name in counts[:-1]] == [True, 1, 0, 0, 0, 1, 0, False]
    assert text.splitlines() == [
        "failed bad.json: empty_file",
        "imported good.json (telegram:1, 1 turns, 2 messages)",
        "1 imported, 0 already, 0 skipped, 0 conflicts, 1 failed, 0 not renamed",
    ]
    assert (again["already"], again["complete"], again["entries"][0]["renamed"]) == (1, True, None)
    assert {entry.name for entry in files.iterdir()} == {"good.json", "good.json.migrated"}


def test_a_conflict_is_done_in_part(configured: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """IM-04, IM-06: nothing stored is replaced, and the script hears of it."""
    with configured.write(now=NOON) as work:
        a_conversation(work, "telegram:1", turns=1)
    put(tmp_path / "sessions", "good.json", a_document("telegram:1"))

    report = as_json(capsys, "import", str(tmp_path / "sessions"), code=8)

    assert (report["conflicts"], report["entries"][0]["outcome"]) == (1, "conflict")


def test_the_original_s_database_is_imported(
    configured: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is a database; one that is none says so."""
    with OriginalStore(tmp_path / "sessions.db") as store:
        store.session(MAIN)
        store.turn(MAIN, 1, [said("hello")])
    (tmp_path / "other.db").write_bytes(b"no database")

    report = as_json(capsys, "import", str(tmp_path / "sessions.db"))
    other = refused(capsys, "import", str(tmp_path / "other.db"))
    missing = refused(capsys, "import", str(tmp_path / "none"))

    assert (report["imported"], report["entries"][0]["key"]) == (1, MAIN)
    assert texts(configured, MAIN) == ["hello"]
    for code, error in (other, missing):
        assert (code, error["error"]) == (1, "NotASessionStore")


def test_a_conversation_is_exported_and_imported_elsewhere(
    configured: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """IM-11: to stdout, a file or a directory, which only the owner can read."""
    family(configured)
    (tmp_path / "out").mkdir()

    document = json.loads(shown(capsys, "export", MAIN))
    same = as_json(capsys, "export", MAIN)
    to_file = shown(capsys, "export", MAIN, "--output", str(tmp_path / "main.json"))
    in_directory = as_json(capsys, "export", MAIN, "--output", str(tmp_path / "out"))
    refusal = refused(capsys, "export", MAIN, "--output", str(tmp_path / "none" / "main.json"))

    (file,) = (tmp_path / "out").iterdir()
    assert document == same == json.loads(file.read_text(encoding="utf-8"))
    assert [message["content"] for message in document["messages"]] == ["1", "2", "3", "found it"]
    assert to_file == f"exported {MAIN} to {tmp_path / 'main.json'}\n"
    assert in_directory == {"key": MAIN, "path": str(file)}
    assert {stat.S_IMODE(found.stat().st_mode) for found in (file, tmp_path / "main.json")} == {0o600}
    assert (refusal[0], refusal[1]["field"]) == (1, "output")
    with Database.open(tmp_path / "other.db", "rwc"):
        pass
    run(["upgrade", "--database", str(tmp_path / "other.db")])
    capsys.readouterr()
    assert as_json(capsys, "import", str(tmp_path / "out"), "--database", str(tmp_path / "other.db"))["imported"] == 1
    with Database.open(tmp_path / "other.db") as other:
        assert texts(other, MAIN) == texts(configured, MAIN)


def test_progress_is_for_terminals(configured: Database, path: Path, tmp_path: Path) -> None:
    """A person sees that something happens, a pipe gets none of it."""
    for number in range(3):
        put(tmp_path / "sessions", f"{number}.json", a_document(f"telegram:{number}"))
    ours, theirs = pty.openpty()

    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", "conversations", "import", str(tmp_path / "sessions")],
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    output, _ = process.communicate(timeout=60)
    progress = os.read(ours, 65_536)
    os.close(ours)

    assert process.returncode == 0
    assert output.decode().splitlines()[-1].startswith("3 imported")
    assert b"importing" in progress
    quiet = agentstate("conversations", "prune", AGENT_DB_PATH=str(path))
    assert (quiet.returncode, quiet.stderr) == (0, "")


# --- exit codes, and errors as JSON ---


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("show",),
        ("--bogus",),
        ("--limit", "0"),
        ("--limit", "1001"),
        ("--sort", "messages"),
        ("--roots", "--parent", "k"),
        ("delete", "k", "--children", "drown"),
        ("show", "k", "--last", "-1"),
        ("status", "k"),
        ("import",),
        ("--database", ""),
    ],
)
def test_wrong_usage_is_2(configured: Database, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """What no database could answer."""
    code, error = refused(capsys, *arguments)

    assert code == 2
    assert error["message"]


@pytest.mark.parametrize("arguments", [("--cursor", "x"), ("--parent", " "), ("show", ""), ("fork", "k" * 513)])
def test_a_refused_value_is_1(
    configured: Database, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Section 14: in this group a refused value is an answer. The error says which field it was."""
    code, error = refused(capsys, *arguments)

    assert code == 1
    assert {"field", "reason"} <= set(error)


def test_states_of_the_database_have_the_codes_of_every_command(
    tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that restarts roles must know whether trying again can help."""
    frozen.load("0003", tmp_path / "behind.db")
    frozen.load("0004", tmp_path / "ahead.db")
    sql(tmp_path / "ahead.db", "UPDATE alembic_version SET version_num = 'r999'")
    sql(tmp_path / "foreign.db", "CREATE TABLE songs (title TEXT)")
    (tmp_path / "zeros.db").write_bytes(bytes(8_192))
    (tmp_path / "empty.db").touch()
    places = {
        name: str(tmp_path / f"{name}.db") for name in ("behind", "foreign", "zeros", "empty", "missing", "ahead")
    }

    wrote = {name: refused(capsys, "status", "k", "x", "--database", place) for name, place in places.items()}
    newer = places.pop("ahead")  # which is read as far as it is known
    looked = {name: refused(capsys, "list", "--database", place) for name, place in places.items()}

    assert shown(capsys, "list", "--database", newer).startswith("Conversations (5)")
    assert {name: code for name, (code, _) in wrote.items()} == {
        "behind": 3,
        "ahead": 4,
        "foreign": 5,
        "zeros": 6,
        "empty": 7,
        "missing": 7,
    }
    assert [looked[name][0] for name in places] == [wrote[name][0] for name in places]
    assert looked["missing"][1] == {
        "error": "DatabaseMissing",
        "message": looked["missing"][1]["message"],
        "database": str(tmp_path / "missing.db"),
    }
    assert refused(capsys)[1]["error"] == "DatabaseNotConfigured"
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "soon")
    assert refused(capsys, "--database", str(path))[0] == 2


def test_a_locked_database_is_worth_trying_again(
    configured: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-08: 9, with the seconds waited."""
    with configured.write() as work:
        a_conversation(work, "k")
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "0.05")

    with configured.write():
        code, error = refused(capsys, "status", "k", "completed")

    assert (code, error["error"], error["seconds"]) == (9, "DatabaseBusy", 0.05)


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (["upgrade", "--to", "9999"], 2, {"error": "InvalidValue", "field": "revision"}),
        (
            ["approvals", "--database", "/nowhere/x.db"],
            9,
            {"error": "DatabaseUnavailable", "database": "/nowhere/x.db"},
        ),
        (["approvals", "show"], 2, {"error": "MissingParameter"}),
        (["bogus"], 2, {}),
    ],
)
def test_errors_of_every_command_are_json_where_json_was_asked_for(
    configured: Database, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, facts: dict[str, Any]
) -> None:
    """A script that reads JSON had to parse a sentence when the answer was no."""
    found = run([*arguments, "--json"])

    output, error = capsys.readouterr()
    assert (found, output, error.count("\n")) == (code, "", 1)
    assert facts.items() <= json.loads(error).items()


def test_an_output_that_cannot_be_written_is_json_too(configured: Database, path: Path) -> None:
    """A full disk behind a redirection."""
    family(configured)

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agentstate.cli.main", "conversations", "--json"],
            env={**os.environ, "AGENT_DB_PATH": str(path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 9
    assert json.loads(done.stderr)["message"] == "the output could not be written: No space left on device"


def test_the_group_works_on_a_server(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same commands on the other engine."""
    with Database.open(server_url) as database:
        family(database)
    place = ("--database", server_url)

    listed = as_json(capsys, "list", "--prefix", "agent", *place)
    forked = as_json(capsys, "fork", MAIN, *place)
    compacted = as_json(capsys, "compact", MAIN, "--keep-last", "1", "--summary", "s", *place)
    deleted = as_json(capsys, "delete", MAIN, "--children", "cascade", *place)

    assert [row["short_key"] for row in listed["conversations"]] == ["main", "main:branch"]
    assert forked["inherited_seq"] == 7
    assert compacted["turns"] > 0
    assert set(deleted["deleted"]) == {MAIN, f"{MAIN}:branch", forked["child"], "subagent:scout-1"}
    assert shown(capsys, "graph", *place) == "No conversations.\n"
    with Database.open(server_url) as database, database.read() as work:
        assert Turns(work).count(MAIN) == 0


@pytest.mark.parametrize(
    "command",
    ["list", "graph", "show", "fork", "compact", "prune", "import", "export", "status", "delete"],
)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """With its options, and --database and --json as in the other groups."""
    text = shown(capsys, command, "--help")

    assert text.startswith(f"Usage: agentstate conversations {command} ")
    assert "--database" in text
    assert "--json" in text
    assert f"  {command} " in shown(capsys, "--help")
