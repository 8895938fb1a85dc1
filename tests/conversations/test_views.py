"""What people see of conversations: the graph and its tree, the list's lines, one conversation, and keys cut short."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.models import Conversation, TurnKind
from agentstate.conversations.records import ConversationInfo
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.repositories.line import CONVERSATIONS
from agentstate.conversations.views import (
    Edge,
    Graph,
    conversation_graph,
    conversation_list,
    conversation_tree,
    list_conversations,
    one_line,
    resolve_key,
    show,
)
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import AmbiguousKey, ConversationNotFound, InvalidIdentifier, UnreadableValue
from builders import LATER, MAIN, NOON, a_conversation, a_turn, sql
from conversation_helpers import statements


def add(work: UnitOfWork, key: str, parent: str | None = None, **columns: object) -> None:
    """Insert a conversation's row as it is."""
    Conversations(work).add(Conversation(key=key, parent_key=parent, **columns))


def family(database: Database) -> None:
    """Store the conversations of section 14's examples."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=6)
    with database.write(now=NOON + timedelta(minutes=1)) as work:
        work.connection.execute(
            CONVERSATIONS.insert(),
            {
                "key": "subagent:scout-1",
                "parent_key": MAIN,
                "fork_turn_id": "019a-1",
                "label": "scout-1",
                "created_at": work.now,
                "updated_at": work.now,
            },
        )
        for number in range(3):
            a_turn(work, "subagent:scout-1", str(number))
        workflows.set_summary(work, "subagent:scout-1", "JWT is enough.")
        workflows.set_status(work, "subagent:scout-1", "completed")
    with database.write(now=NOON + timedelta(minutes=2)) as work:
        workflows.fork(work, MAIN, f"{MAIN}:fork:1", label="try redis", inherit=True)
        a_turn(work, f"{MAIN}:fork:1")
        a_turn(work, f"{MAIN}:fork:1")
    with database.write(now=NOON + timedelta(minutes=3)) as work:
        a_conversation(work, "subagent:coder-1", turns=1, status="failed")
    with database.write(now=NOON + timedelta(hours=2)) as work:
        for number in range(5):
            a_turn(work, MAIN, str(number))


TREE = """\
Conversations
├── ● main (turns=12)
│   ├── ✓ scout-1 (turns=3)
│   └── ● try redis (turns=2, from=7)
└── ✗ subagent:coder-1 (turns=1)"""

ASCII_TREE = """\
Conversations
|-- * main (turns=12)
|   |-- v scout-1 (turns=3)
|   `-- * try redis (turns=2, from=7)
`-- x subagent:coder-1 (turns=1)"""


# --- the graph ---


def test_the_graph_is_the_original_s_payload(database: Database) -> None:
    """Programs that drew the original's graph draw this one: the same keys in the same order, nothing empty."""
    family(database)

    with database.read() as work, statements(database) as log:
        graph = conversation_graph(work).as_dict()
        (branch,) = [info for info in conversation_graph(work).nodes if info.label == "try redis"]

    assert json.dumps(graph["nodes"][:2]) == json.dumps(
        [
            {
                "key": "agent:ada:main",
                "short_key": "main",
                "label": "main",
                "status": "active",
                "turn_count": 12,
                "created_at": "2026-11-29T12:00:00Z",
                "updated_at": "2026-11-29T14:00:00Z",
            },
            {
                "key": "subagent:scout-1",
                "short_key": "subagent:scout-1",
                "label": "scout-1",
                "status": "completed",
                "turn_count": 3,
                "created_at": "2026-11-29T12:01:00Z",
                "updated_at": "2026-11-29T12:01:00Z",
                "summary": "JWT is enough.",
                "fork_turn_id": "019a-1",
            },
        ]
    )
    assert json.dumps(graph["edges"]) == json.dumps(
        [
            {"from": "agent:ada:main", "to": "subagent:scout-1", "fork_turn_id": "019a-1"},
            {"from": "agent:ada:main", "to": "agent:ada:main:fork:1", "fork_turn_id": branch.fork_turn_id},
        ]
    )
    assert list(graph) == ["nodes", "edges"]
    assert [node["key"] for node in graph["nodes"][2:]] == [f"{MAIN}:fork:1", "subagent:coder-1"]
    assert len([statement for statement in log if "turns" in statement]) == 2
    assert not any("messages" in statement for statement in log)


def test_a_store_without_conversations_has_two_empty_lists(database: Database) -> None:
    """A program that reads `nodes` must find it."""
    with database.read() as work:
        graph = conversation_graph(work)
        page = list_conversations(work)

    assert graph.as_dict() == {"nodes": [], "edges": []}
    assert conversation_tree(graph) == "No conversations."
    assert conversation_list(page.items, NOON) == "No conversations."


def test_an_edge_without_a_fork_point_says_no_more(database: Database) -> None:
    """Imported rows may have no turn that says where they left."""
    with database.write(now=NOON) as work:
        add(work, "a")
        add(work, "b", "a", fork_turn_id="")

    with database.read() as work:
        graph = conversation_graph(work).as_dict()

    assert graph["edges"] == [{"from": "a", "to": "b"}]
    assert "fork_turn_id" not in graph["nodes"][1]


def test_the_graph_below_a_root_holds_nothing_else(database: Database) -> None:
    """`graph --root`: one tree, or a part of one."""
    family(database)
    with database.write(now=LATER) as work:
        add(work, "deep", f"{MAIN}:fork:1")

    with database.read() as work:
        whole = conversation_graph(work, MAIN)
        part = conversation_graph(work, f"{MAIN}:fork:1")
        with pytest.raises(ConversationNotFound):
            conversation_graph(work, "nobody")

    assert {info.key for info in whole.nodes} == {MAIN, "subagent:scout-1", f"{MAIN}:fork:1", "deep"}
    assert [info.key for info in part.nodes] == [f"{MAIN}:fork:1", "deep"]
    assert part.edges == (Edge(f"{MAIN}:fork:1", "deep", None),)
    assert conversation_tree(part).splitlines()[1] == "└── ● try redis (turns=2, from=7)"


# --- the tree ---


def test_the_tree_is_drawn_as_it_is_written_down(database: Database) -> None:
    """Section 14's example, sign by sign."""
    family(database)

    with database.read() as work:
        graph = conversation_graph(work)

    assert conversation_tree(graph) == TREE


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1251", None, "no such encoding"])
def test_the_tree_is_drawn_in_ascii_where_the_signs_cannot_be_shown(
    file_database: Database, encoding: str | None
) -> None:
    """A terminal without UTF-8 got a traceback, or question marks."""
    family(file_database)

    with file_database.read() as work:
        graph = conversation_graph(work)

    assert conversation_tree(graph, encoding=encoding) == ASCII_TREE
    assert conversation_tree(graph, encoding="utf-16") == TREE


def test_children_come_by_time_and_key(database: Database) -> None:
    """The same tree is drawn the same way every time."""
    for now, key in ((LATER, "a"), (NOON, "z"), (NOON, "y"), (LATER, "b")):
        with database.write(now=NOON - timedelta(hours=1)) as work:
            if not Conversations(work).exists("root"):
                add(work, "root")
        with database.write(now=now) as work:
            add(work, key, "root")

    with database.read() as work:
        tree = conversation_tree(conversation_graph(work))

    assert [line.split()[-2] for line in tree.splitlines()[1:]] == ["root", "y", "z", "a", "b"]


@pytest.mark.parametrize(
    ("status", "sign"),
    [("completed", "✓"), ("failed", "✗"), ("canceled", "✗"), ("archived", "●"), ("review", "●"), ("neu", "●")],
)
def test_a_sign_says_how_it_ended(status: str, sign: str) -> None:
    """Two ends are told apart from everything else."""
    tree = conversation_tree(Graph((info("k", status=status),), ()))

    assert tree == f"Conversations\n└── {sign} k (turns=0)"


def info(key: str, parent: str | None = None, **facts: object) -> ConversationInfo:
    """Return a row of the list."""
    values: dict[str, object] = {
        "key": key,
        "short_key": key,
        "parent_key": parent,
        "fork_turn_id": None,
        "status": "active",
        "label": "",
        "summary": "",
        "created_at": NOON,
        "updated_at": NOON,
        "compacted_seq": 0,
        "inherited_seq": None,
        "inherited_summary": None,
        "imported_at": None,
        "turn_count": 0,
        **facts,
    }
    return ConversationInfo(**values)  # type: ignore[arg-type]


def test_an_orphan_is_a_root(file_database: Database, path: Path) -> None:
    """The original left out of its tree what it could not hang anywhere."""
    with file_database.write(now=NOON) as work:
        add(work, "a")
    sql(path, "UPDATE conversations SET parent_key = 'gone'")

    with file_database.read() as work:
        graph = conversation_graph(work)

    assert conversation_tree(graph) == "Conversations\n└── ● a (turns=0)"
    assert graph.edges == ()


def test_children_of_a_row_that_cannot_be_read_are_roots(file_database: Database, path: Path) -> None:
    """VA-08: one damaged row must not hide what was forked from it."""
    with file_database.write(now=NOON) as work:
        add(work, "a")
        add(work, "b", "a")
        add(work, "c", "b")
    sql(path, "UPDATE conversations SET label = CAST(x'ff' AS TEXT) WHERE key = 'a'")

    with file_database.read() as work:
        tree = conversation_tree(conversation_graph(work))
        with pytest.raises(UnreadableValue):
            show(work, "a")

    assert tree == "Conversations\n└── ● b (turns=0)\n    └── ● c (turns=0)"


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a", "d": "b"}])
def test_a_circle_is_drawn_once_and_ends(file_database: Database, path: Path, parents: dict[str, str]) -> None:
    """Only raw SQL can make one; nothing in it is a root, and it must be seen to be mended."""
    with file_database.write(now=NOON) as work:
        for key in ("e", *parents):
            add(work, key, inherited_seq=1, next_seq=2)
    for key, parent in parents.items():
        sql(path, "UPDATE conversations SET parent_key = ? WHERE key = ?", (parent, key))

    with file_database.read() as work:
        tree = conversation_tree(conversation_graph(work))
        part = conversation_graph(work, "a")
        detail = show(work, "a")

    names = [line.split("(")[0].split()[-1] for line in tree.splitlines()[1:]]
    assert names[0] == "e"
    assert sorted(names[1:]) == sorted(parents)
    assert {node.key for node in part.nodes} == set(parents)
    assert set(detail.lineage) <= set(parents)


def test_a_tree_may_be_deeper_than_python_s_stack(database: Database) -> None:
    """A conversation forked from a fork, every day."""
    rows = [
        {"key": f"k{n:04}", "parent_key": f"k{n - 1:04}" if n else None, "created_at": NOON, "updated_at": NOON}
        for n in range(1_500)
    ]
    with database.write() as work:
        work.connection.execute(CONVERSATIONS.insert(), rows)

    with database.read() as work:
        tree = conversation_tree(conversation_graph(work, "k0001"))

    lines = tree.splitlines()
    assert len(lines) == 1_500
    assert lines[-1] == f"{'    ' * 1_498}└── ● k1499 (turns=0)"


def test_what_people_wrote_stays_within_its_line() -> None:
    """A label with newlines and escape sequences drew a tree of its own."""
    wild = "a\nb\r\x1b[2J\u202egnp\u2028c\x85\x00d\ud800"
    shown = "a\ufffdb\ufffd\ufffd[2J\ufffdgnp\ufffdc\ufffd\ufffdd\ufffd"
    rows = (info("k", label=wild, status="act\nive"), info("l", parent="x:y:\nz", label="\n"))

    tree = conversation_tree(Graph(rows, ()))
    lines = conversation_list(rows, NOON)

    assert tree.splitlines() == [
        "Conversations",
        f"├── ● {shown} (turns=0)",
        "└── ● \ufffd (turns=0)",
    ]
    assert lines.splitlines() == [
        "Conversations (2)",
        f"- {shown} [act\ufffdive] (0s) turns=0",
        "- \ufffd [active] (0s) turns=0 parent=\ufffdz",
    ]
    assert one_line("plain Ünï 田") == "plain Ünï 田"


# --- the list ---


def test_the_list_is_written_as_it_is_written_down(database: Database) -> None:
    """Section 14's example, word by word."""
    family(database)
    used = NOON + timedelta(hours=2)

    with database.read() as work:
        text = conversation_list(list_conversations(work).items, used + timedelta(seconds=125))

    assert text == (
        "Conversations (4)\n"
        "- main [active] (2m 5s) turns=12\n"
        "- scout-1 [completed] (2h 1m) turns=3 parent=main\n"
        "- try redis [active] (2h 0m) turns=2 parent=main from=7\n"
        "- subagent:coder-1 [failed] (1h 59m) turns=1"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0s"),
        (0, "0s"),
        (9.9, "9s"),
        (59, "59s"),
        (60, "1m 0s"),
        (125, "2m 5s"),
        (3_599, "59m 59s"),
        (3_600, "1h 0m"),
        (3_780, "1h 3m"),
        (86_399, "23h 59m"),
        (86_400, "1d 0h"),
        (400 * 86_400 + 7_300, "400d 2h"),
    ],
)
def test_an_age_is_in_its_two_largest_units(seconds: float, words: str) -> None:
    """Never negative: the clock of another machine may be ahead."""
    text = conversation_list([info("k")], NOON + timedelta(seconds=seconds))

    assert text == f"Conversations (1)\n- k [active] ({words}) turns=0"


# --- one conversation ---


def test_one_is_shown_with_its_lineage_and_every_turn_it_sees(database: Database) -> None:
    """SE-10: a report whose origin is gone stays readable, and says so."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=2)
        a_conversation(work, "subagent:here")
        a_turn(work, MAIN, "found it", kind=TurnKind.REPORT, origin_key="subagent:here")
        a_turn(work, MAIN, "lost it", kind=TurnKind.REPORT, origin_key="subagent:gone")
        workflows.fork(work, MAIN, "branch", inherit=True)
        workflows.fork(work, "branch", "twig", inherit=True, at_seq=5)
        a_turn(work, "twig", "own")

    with database.read() as work, statements(database) as log:
        detail = show(work, "twig")
    with database.read() as work:
        newest = show(work, "twig", last=2)
        parent = show(work, MAIN)

    assert detail.conversation.key == "twig"
    assert detail.lineage == ("twig", "branch", MAIN)
    assert [(turn.seq, int(turn.kind), turn.message_count) for turn in detail.turns] == [
        (1, 0, 1),
        (2, 0, 1),
        (3, 1, 1),
        (4, 1, 1),
        (5, 2, 0),
        (6, 0, 1),
    ]
    assert [(turn.origin_key, turn.origin_gone) for turn in detail.turns if turn.origin_key] == [
        ("subagent:here", False),
        ("subagent:gone", True),
    ]
    assert newest.turns == detail.turns[-2:]
    assert parent.lineage == (MAIN,)
    assert not any("messages" in statement for statement in log)


def test_the_lineage_of_a_sub_agent_is_its_own(database: Database) -> None:
    """It sees nothing of the conductor's, whatever its parent is."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=1)
        workflows.spawn(work, MAIN, "task-1")

    with database.read() as work:
        detail = show(work, "subagent:task-1")

    assert detail.lineage == ("subagent:task-1",)
    assert detail.turns == ()


def test_what_is_compacted_is_not_shown(database: Database) -> None:
    """As readers of the history see it."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=3)
        history.compact(work, MAIN, 2, "what was")

    with database.read() as work:
        detail = show(work, MAIN)

    assert [turn.seq for turn in detail.turns] == [3]
    assert (detail.conversation.compacted_seq, detail.conversation.summary) == (2, "what was")


def test_one_that_is_not_there_is_no_conversation_without_memory(database: Database) -> None:
    """Section 6: a pruned conversation must not look like an empty one."""
    with database.read() as work, pytest.raises(ConversationNotFound):
        show(work, "nobody")


# --- keys cut short ---


def test_a_key_may_be_cut_short_where_only_one_begins_so(database: Database) -> None:
    """ID-07: resuming by a short id picked the most recent of several, and wrote to the wrong session."""
    made = datetime.fromisoformat("2026-01-01T00:00:00Z")
    with database.write(now=made) as work:
        for key in (
            "agent:a",
            "agent:a:main",
            "agent:b:main",
            "agent_x",
            "Ägent",
            *(f"many:{n:02}" for n in range(12)),
        ):
            add(work, key)

    with database.read() as work:
        found = {text: resolve_key(work, text) for text in ("agent:a", "agent:a:", "agent:b", "agent_", "Ä", "many:07")}
        with pytest.raises(AmbiguousKey) as ambiguous:
            resolve_key(work, "agent:")
        with pytest.raises(AmbiguousKey) as many:
            resolve_key(work, "many")
        with pytest.raises(ConversationNotFound):
            resolve_key(work, "agent:c")
        for nothing in ("", " "):
            with pytest.raises(InvalidIdentifier):
                resolve_key(work, nothing)

    assert found == {
        "agent:a": "agent:a",
        "agent:a:": "agent:a:main",
        "agent:b": "agent:b:main",
        "agent_": "agent_x",
        "Ä": "Ägent",
        "many:07": "many:07",
    }
    assert (ambiguous.value.prefix, ambiguous.value.candidates) == (
        "agent:",
        ("agent:a", "agent:a:main", "agent:b:main"),
    )
    assert many.value.candidates == tuple(f"many:{n:02}" for n in range(10))


def test_calls_that_write_never_guess(database: Database) -> None:
    """ID-07: the beginning of a key is no key."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=1)

    for change in (
        lambda work: workflows.append(work, "agent:ada", [{"role": "user", "content": "x"}]),
        lambda work: workflows.set_status(work, "agent:ada", "completed"),
        lambda work: workflows.fork(work, "agent:ada", "child"),
        lambda work: history.compact(work, "agent:ada", 1, "summary"),
    ):
        with pytest.raises(ConversationNotFound), database.write() as work:
            change(work)

    with database.write() as work:
        assert not workflows.delete_conversation(work, "agent:ada")
        assert Conversations(work).get(MAIN).next_seq == 2
