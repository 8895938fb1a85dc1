"""Conversations: every turn of every conversation, how conversations fork, and what their forks report."""
