"""Conversations for a person to look at; everything here only reads."""

from __future__ import annotations

from agentstate.conversations.views.drawing import Edge, Graph, conversation_list, conversation_tree, one_line
from agentstate.conversations.views.reading import conversation_graph, list_conversations, resolve_key, show

__all__ = [
    "Edge",
    "Graph",
    "conversation_graph",
    "conversation_list",
    "conversation_tree",
    "list_conversations",
    "one_line",
    "resolve_key",
    "show",
]
