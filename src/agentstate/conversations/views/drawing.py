"""How conversations look: the graph as a payload and as a tree, and the list as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate.conversations.models import CANCELED, COMPLETED, FAILED, short_key
from agentstate.conversations.records import ConversationInfo
from agentstate.identity import UNSAFE_TO_SHOW

_NOTHING = "No conversations."
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class _Signs:
    """What a tree is drawn with."""

    branch: str
    last: str
    line: str
    done: str
    broken: str
    other: str

    def of(self, status: str) -> str:
        """Return the sign of a conversation of that status."""
        return self.done if status == COMPLETED else self.broken if status in (FAILED, CANCELED) else self.other


_SIGNS = _Signs("├── ", "└── ", "│   ", "✓", "✗", "●")
_ASCII = _Signs("|-- ", "`-- ", "|   ", "v", "x", "*")


@dataclass(frozen=True, slots=True)
class Edge:
    """Which conversation another one was forked from, and the id of the turn that says so."""

    parent: str
    child: str
    fork_turn_id: str | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Conversations, by time of creation and key, and the forks between them."""

    nodes: tuple[ConversationInfo, ...]
    edges: tuple[Edge, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the graph as the original's programs exchange it: what is empty is left out, times are whole seconds.

        {"nodes": [{"key", "short_key", "label", "status", "turn_count", "created_at", "updated_at", "summary"?,
        "fork_turn_id"?}], "edges": [{"from", "to", "fork_turn_id"?}]}
        """
        return {"nodes": [_node(info) for info in self.nodes], "edges": [_edge(edge) for edge in self.edges]}


def conversation_tree(graph: Graph, *, encoding: str | None = "utf-8") -> str:
    """Return the graph drawn as a tree, a line for each conversation, children by time of creation and key.

    `encoding` is that of the output (None: unknown): one without the signs gets them in ASCII. A conversation whose
    parent is not in the graph is a root. Control characters are shown as U+FFFD.
    """
    if not graph.nodes:
        return _NOTHING
    signs = _SIGNS if _can_show(encoding) else _ASCII
    children = _children(graph)
    roots = _roots(graph, children)
    lines = ["Conversations"]
    drawn: set[str] = set()
    waiting = [(info, "", info is roots[-1]) for info in reversed(roots)]
    while waiting:  # not by calling itself: a tree may be deeper than Python's stack
        info, before, is_last = waiting.pop()
        drawn.add(info.key)
        lines.append(f"{before}{signs.last if is_last else signs.branch}{signs.of(info.status)} {_described(info)}")
        below = [child for child in children.get(info.key, ()) if child.key not in drawn]
        indent = before + ("    " if is_last else signs.line)
        waiting += [(child, indent, child is below[-1]) for child in reversed(below)]
    return "\n".join(lines)


def conversation_list(items: Sequence[ConversationInfo], now: datetime) -> str:
    """Return the conversations as lines of text: name, status, time since the last use, turns, and where it is from."""
    if not items:
        return _NOTHING
    lines = [f"Conversations ({len(items)})"]
    for info in items:
        words = [f"- {_name(info)} [{one_line(info.status)}] ({_age(info.updated_at, now)}) turns={info.turn_count}"]
        if info.parent_key is not None:
            words.append(f"parent={one_line(short_key(info.parent_key))}")
        if info.inherited_seq is not None:
            words.append(f"from={info.inherited_seq}")
        lines.append(" ".join(words))
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return a text as it may be shown within a line: what would end the line or command the terminal is U+FFFD."""
    return UNSAFE_TO_SHOW.sub("\ufffd", text)


def _children(graph: Graph) -> dict[str, list[ConversationInfo]]:
    parents = {edge.child: edge.parent for edge in graph.edges}
    found: dict[str, list[ConversationInfo]] = {}
    for info in graph.nodes:
        if info.key in parents:
            found.setdefault(parents[info.key], []).append(info)
    return found


def _roots(graph: Graph, children: dict[str, list[ConversationInfo]]) -> list[ConversationInfo]:
    """Return what the tree begins with: nodes without a parent in it, and of a circle (raw SQL) its oldest member."""
    forked = {edge.child for edge in graph.edges}
    roots: list[ConversationInfo] = []
    reached: set[str] = set()
    for info in sorted(graph.nodes, key=lambda info: info.key in forked):
        if info.key in reached:
            continue
        roots.append(info)
        waiting = [info.key]
        while waiting:
            key = waiting.pop()
            if key not in reached:
                reached.add(key)
                waiting += [child.key for child in children.get(key, ())]
    return roots


def _described(info: ConversationInfo) -> str:
    inherited = "" if info.inherited_seq is None else f", from={info.inherited_seq}"
    return f"{_name(info)} (turns={info.turn_count}{inherited})"


def _name(info: ConversationInfo) -> str:
    return one_line(info.label or info.short_key)


def _age(moment: datetime, now: datetime) -> str:
    """Return the time since a moment in its two largest units, such as `2m 5s`; `0s` for one that is yet to come."""
    seconds = max(0, int((now - moment).total_seconds()))
    first = next((place for place, (_, size) in enumerate(_UNITS) if seconds >= size), len(_UNITS) - 1)
    words = []
    for name, size in _UNITS[first : first + 2]:
        words.append(f"{seconds // size}{name}")
        seconds %= size
    return " ".join(words)


def _node(info: ConversationInfo) -> dict[str, Any]:
    return {
        "key": info.key,
        "short_key": info.short_key,
        "label": info.label or info.short_key,
        "status": info.status,
        "turn_count": info.turn_count,
        "created_at": _whole_seconds(info.created_at),
        "updated_at": _whole_seconds(info.updated_at),
    } | _unless_empty(summary=info.summary, fork_turn_id=info.fork_turn_id)


def _edge(edge: Edge) -> dict[str, Any]:
    return {"from": edge.parent, "to": edge.child} | _unless_empty(fork_turn_id=edge.fork_turn_id)


def _unless_empty(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _whole_seconds(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _can_show(encoding: str | None) -> bool:
    try:
        "├└│─✓✗●".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
