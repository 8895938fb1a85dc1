"""Conversations as trees, a root and everything forked from it, and the portions in which trees are deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from agentstate.conversations.repositories.ages import Age

BATCH_CONVERSATIONS = 200


@dataclass(frozen=True, slots=True)
class Tree:
    """A root and everything below it; `candidates` of its members are stale or of unknown time."""

    root: Age
    members: list[Age]
    candidates: int
    turns: int


def stale_trees(ages: Iterable[Age], cutoff: datetime) -> list[Tree]:
    """Return the trees in which anything is stale or of unknown time, by the keys of their roots."""
    by_key = {age.key: age for age in ages}
    members: dict[str, list[Age]] = {}
    for key, root in _roots(by_key).items():
        members.setdefault(root, []).append(by_key[key])
    trees: list[Tree] = []
    for root, those in sorted(members.items()):
        candidates = sum(age.updated_at is None or age.is_stale(cutoff) for age in those)
        if candidates:
            trees.append(Tree(by_key[root], those, candidates, sum(age.turns for age in those)))
    return trees


def _roots(by_key: dict[str, Age]) -> dict[str, str]:
    """Return for every key the key of its tree's root.

    A conversation whose parent is not there is a root; of a circle, which only raw SQL can make, the smallest key is.
    """
    roots: dict[str, str] = {}
    for start in by_key:
        path: dict[str, None] = {}
        key = start
        while key not in roots and key not in path:
            path[key] = None
            parent = by_key[key].parent_key
            if parent in by_key:
                key = parent
            else:
                roots[key] = key
        if key in roots:
            root = roots[key]
        else:
            walked = list(path)
            root = min(walked[walked.index(key) :])
        roots.update(dict.fromkeys(path, root))
    return roots


def in_batches(trees: Iterable[Tree], batch_turns: int) -> Iterator[list[Tree]]:
    """Yield trees in groups that one transaction may take, by conversations and by turns; a bigger tree comes alone."""
    most = min(BATCH_CONVERSATIONS, batch_turns)
    batch: list[Tree] = []
    conversations = turns = 0
    for tree in trees:
        conversations += len(tree.members)
        turns += tree.turns
        if batch and (conversations > most or turns > batch_turns):
            yield batch
            batch, conversations, turns = [], len(tree.members), tree.turns
        batch.append(tree)
    if batch:
        yield batch
