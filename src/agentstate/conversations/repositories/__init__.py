"""Statements and queries on conversations and their turns."""

from __future__ import annotations

from agentstate.conversations.repositories.conversations import CHUNK, Conversations, chunks
from agentstate.conversations.repositories.turns import Turns

__all__ = ["CHUNK", "Conversations", "Turns", "chunks"]
