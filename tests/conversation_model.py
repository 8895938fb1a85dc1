"""The rules of conversations a second time, in plain Python and as slowly as they are written.

Nothing here is shared with the code under test: histories are computed from the definitions of section 5, pairing and
boundaries message by message, and a prune looks at every tree. `test_model.py` runs both side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

ENDED = {"completed", "failed", "canceled", "archived"}
INFINITE = 10**9
Message = dict[str, Any]


@dataclass
class ModelTurn:
    """One stored turn."""

    id: str
    kind: int
    messages: list[Message]
    origin: str | None = None


@dataclass
class ModelConversation:
    """One conversation; `own` are its stored turns by seq, hidden ones too as long as somebody needs them."""

    created: datetime
    updated: datetime
    parent: str | None = None
    fork_turn: str | None = None
    status: str = "active"
    summary: str = ""
    next_seq: int = 1
    compacted: int = 0
    inherited: int | None = None
    inherited_summary: str | None = None
    imported: datetime | None = None
    own: dict[int, ModelTurn] = field(default_factory=dict)


class Refused(Exception):
    """The model refuses; its argument is the name of the error that agentstate must raise."""


class Model:
    """All conversations, and what may be done to them."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.all: dict[str, ModelConversation] = {}

    # --- what is seen ------------------------------------------------------------------------------------------------

    def line(self, key: str) -> list[tuple[str, int]]:
        """K₀ … Kₙ with u₀ … uₙ."""
        found = [(key, INFINITE)]
        while True:
            here, upper = found[-1]
            conversation = self.all[here]
            if conversation.inherited is None or conversation.parent is None:
                return found
            found.append((conversation.parent, min(upper, conversation.inherited)))

    def history(self, key: str) -> list[tuple[int, ModelTurn]]:
        """Every turn of every Kᵢ with compacted < seq ≤ uᵢ, by seq."""
        hidden = self.all[key].compacted
        turns = [
            (seq, turn)
            for owner, upper in self.line(key)
            for seq, turn in self.all[owner].own.items()
            if hidden < seq <= upper
        ]
        return sorted(turns, key=lambda pair: pair[0])

    def effective(self, key: str) -> str:
        """E(K)."""
        parts = [self.all[key].inherited_summary or "", self.all[key].summary]
        return "\n\n".join(part for part in parts if part.strip())

    def messages(self, key: str) -> list[Message]:
        """Everything said."""
        return [message for _, turn in self.history(key) for message in turn.messages]

    def view(self, key: str) -> list[Message]:
        """What a model may be sent."""
        summary = self.effective(key)
        heading = [{"role": "user", "content": f"[Summary of earlier turns]\n{summary}"}] if summary else []
        return heading + paired(self.messages(key))

    # --- what is written ---------------------------------------------------------------------------------------------

    def create(self, key: str, now: datetime) -> str:
        """Make an empty one."""
        if key in self.all:
            raise Refused("ConversationExists")
        self.all[key] = ModelConversation(now, now)
        return key

    def append(self, key: str, turn: ModelTurn, now: datetime) -> int:
        """Store a turn, or find it stored."""
        for owner, conversation in self.all.items():
            for seq, stored in conversation.own.items():
                if stored.id == turn.id:
                    if owner == key and stored == turn:
                        return seq
                    raise Refused("TurnConflict")
        self.need(key)
        if self.all[key].status in ENDED:
            raise Refused("ConversationEnded")
        return self.put(key, turn, now)

    def put(self, key: str, turn: ModelTurn, now: datetime) -> int:
        """Give out a seq and store the turn at it."""
        conversation = self.all[key]
        seq = conversation.next_seq
        conversation.own[seq] = turn
        conversation.next_seq += 1
        self.touch(key, now)
        return seq

    def touch(self, key: str, now: datetime) -> None:
        """Note the use; never decreasing."""
        self.all[key].updated = max(self.all[key].updated, now)

    def need(self, key: str) -> None:
        """Refuse an unknown key."""
        if key not in self.all:
            raise Refused("ConversationNotFound")

    def fork(self, parent: str, child: str, inherit: bool, at_seq: int | None, point: str, now: datetime) -> None:
        """Fork; `point` is the fork point's id."""
        self.need(parent)
        source = self.all[parent]
        if at_seq is not None and not source.compacted <= at_seq < source.next_seq:
            raise Refused("InvalidValue")
        if child in self.all:
            raise Refused("ConversationExists")
        made = ModelConversation(now, now, parent, point)
        if inherit:
            made.inherited = source.next_seq if at_seq is None else at_seq
            made.next_seq = made.inherited + 1
            made.compacted = source.compacted
            made.inherited_summary = self.effective(parent) or None
        self.all[child] = made
        self.put(parent, ModelTurn(point, 2, []), now)

    def change(self, key: str, now: datetime, **values: str) -> None:
        """Set status or summary."""
        self.need(key)
        for name, value in values.items():
            setattr(self.all[key], name, value)
        self.touch(key, now)

    def compact(self, key: str, up_to: int, summary: str, supersedes: str | None, now: datetime) -> int:
        """Compact; returns the boundary."""
        self.need(key)
        conversation = self.all[key]
        if up_to <= conversation.compacted:
            raise Refused("StaleCompaction")
        if up_to >= conversation.next_seq:
            raise Refused("InvalidValue")
        boundary = self.boundary(key, up_to)
        if boundary > conversation.compacted:
            if supersedes is not None and supersedes != self.effective(key):
                raise Refused("StaleCompaction")
            self.store_summary(key, boundary, summary, supersedes is not None, now)
        return boundary

    def compact_old(self, key: str, keep_last: int, summary: str, now: datetime) -> int:
        """Compact all but the newest messages, or store the summary alone."""
        self.need(key)
        cut = self.cut(key, keep_last)
        self.store_summary(key, cut, summary, False, now)
        return cut

    def cut(self, key: str, keep_last: int) -> int:
        """The last turn up to which the history has at most all but `keep_last` messages, moved back."""
        total, found, seen = len(self.messages(key)), self.all[key].compacted, 0
        for seq, turn in self.history(key):
            seen += len(turn.messages)
            if seen > total - keep_last:
                break
            found = seq
        return self.boundary(key, found)

    def boundary(self, key: str, up_to: int) -> int:
        """Move back while a call has its result behind the boundary, or may still run."""
        history = self.history(key)
        said = [(seq, message) for seq, turn in history for message in turn.messages]
        results = owners([message for _, message in said])
        while True:
            blocking = [seq for i, (seq, m) in enumerate(said) if seq <= up_to and blocks(said, results, i, m, up_to)]
            if not blocking:
                return max(up_to, self.all[key].compacted)
            before = [seq for seq, _ in history if seq < min(blocking)]
            up_to = before[-1] if before else self.all[key].compacted

    def store_summary(self, key: str, boundary: int, summary: str, replaces: bool, now: datetime) -> None:
        """Carry the old summary on, or replace it; release what nobody needs."""
        conversation, before = self.all[key], self.effective(key)
        if replaces or (before and before in summary):
            conversation.summary, conversation.inherited_summary = summary, None
        elif conversation.summary.strip():
            conversation.summary = f"{conversation.summary}\n\n{summary}"
        else:
            conversation.summary = summary
        moved = boundary > conversation.compacted
        conversation.compacted = boundary
        self.touch(key, now)
        if moved:
            self.release([owner for owner, _ in self.line(key)])

    def replace(self, key: str, turn: ModelTurn | None, expected: int, now: datetime) -> int | None:
        """Hide everything and start again."""
        self.need(key)
        conversation = self.all[key]
        if conversation.next_seq != expected:
            raise Refused("ConversationChanged")
        if conversation.status in ENDED:
            raise Refused("ConversationEnded")
        hidden = conversation.next_seq - 1
        seq = None if turn is None else self.put(key, turn, now)
        conversation.compacted = hidden
        self.touch(key, now)
        self.release([owner for owner, _ in self.line(key)])
        return seq

    def needed(self, owner: str, seq: int) -> bool:
        """Whether a turn must stay: visible, seen by a branch, or a living child's fork point."""
        if seq > self.all[owner].compacted:
            return True
        for viewer, conversation in self.all.items():
            for seen, upper in self.line(viewer)[1:]:
                if seen == owner and conversation.compacted < seq <= upper:
                    return True
            if conversation.parent == owner and conversation.fork_turn == self.all[owner].own[seq].id:
                return True
        return False

    def release(self, keys: list[str]) -> None:
        """Delete what of these conversations nobody needs."""
        for owner in keys:
            own = self.all[owner].own
            for seq in [seq for seq in own if not self.needed(owner, seq)]:
                del own[seq]

    # --- what is deleted ---------------------------------------------------------------------------------------------

    def below(self, key: str) -> set[str]:
        """Every conversation below one."""
        found: set[str] = set()
        while more := {k for k, c in self.all.items() if c.parent in found | {key}} - found:
            found |= more
        return found

    def running(self, key: str) -> bool:
        """Whether a child is at work."""
        conversation = self.all[key]
        idle = conversation.inherited is not None and conversation.status == "active"
        return conversation.status not in ENDED and not idle

    def delete(self, key: str, children: str) -> bool:
        """Delete; a branch that stays keeps its history as turns of its own, whose ids are new."""
        if key not in self.all:
            return False
        below = self.below(key)
        branches = sorted(k for k in below if self.all[k].parent == key and self.all[k].inherited is not None)
        if any(map(self.running, below)) or (children == "refuse" and branches):
            raise Refused("ConversationHasChildren")
        ancestors = [owner for owner, _ in self.line(key)[1:]]
        ancestors += [parent for parent in [self.all[key].parent] if parent is not None]
        gone = below | {key} if children == "cascade" else {key}
        if children == "keep":
            for branch in branches:
                self.detach(branch)
        for conversation in self.all.values():
            if conversation.parent in gone:
                conversation.parent = conversation.fork_turn = None
        for one in gone:
            del self.all[one]
        self.release(ancestors)
        return True

    def detach(self, branch: str) -> None:
        """Copy what the branch, or one below it, sees of what it inherits."""
        viewers = {viewer for viewer in self.all if branch in [owner for owner, _ in self.line(viewer)]}
        copies = {
            seq: turn
            for viewer in viewers
            for seq, turn in self.history(viewer)
            if seq <= (self.all[branch].inherited or 0) and seq not in self.all[branch].own
        }
        above = {owner for owner, _ in self.line(branch)[1:]}
        for seq, turn in copies.items():
            if any(turn is own for owner in above for own in self.all[owner].own.values()):
                self.all[branch].own[seq] = ModelTurn("", turn.kind, turn.messages, turn.origin)
        self.all[branch].inherited = None

    def prune(self, now: datetime, older_than: timedelta, include_imported: bool) -> dict[str, int]:
        """Delete whole stale trees; returns how many conversations were deleted or kept, by reason."""
        counts: dict[str, int] = {}
        for root in [key for key, conversation in self.all.items() if conversation.parent is None]:
            tree = {root} | self.below(root)
            stale = {key for key in tree if self.all[key].updated < now - older_than}
            at_work = any(map(self.running, tree - {root})) or (
                self.all[root].status != "active" and self.all[root].status not in ENDED
            )
            unused = any(c.imported is not None and c.imported >= c.updated for c in map(self.all.get, tree) if c)
            reason = "status" if at_work else "in_use" if stale != tree else "deleted"
            if reason == "deleted" and unused and not include_imported:
                reason = "imported"
            if stale:
                counts[reason] = counts.get(reason, 0) + len(stale)
            if reason == "deleted":
                for key in tree:
                    del self.all[key]
        return counts


def call_ids(message: Message) -> list[str]:
    """The calls of a message: entries with an id that is a text and not there before."""
    found: list[str] = []
    if message.get("role") == "assistant" and isinstance(message.get("tool_calls"), list):
        for entry in message["tool_calls"]:
            if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"] not in ["", *found]:
                found.append(entry["id"])
    return found


def owners(messages: list[Message]) -> dict[tuple[int, str], int]:
    """For each answered call, by message and id, the position of its result."""
    found: dict[tuple[int, str], int] = {}
    for position, message in enumerate(messages):
        if message["role"] == "tool":
            for earlier in range(position - 1, -1, -1):
                if message.get("tool_call_id") in call_ids(messages[earlier]):
                    found.setdefault((earlier, message["tool_call_id"]), position)
                    break
    return found


def blocks(said: list[tuple[int, Message]], results: dict[Any, int], at: int, message: Message, up_to: int) -> bool:
    """Whether a call of this message keeps the boundary from lying behind it."""
    followed = any(later["role"] in ("user", "assistant") for _, later in said[at + 1 :])
    for call in call_ids(message):
        answer = results.get((at, call))
        if (answer is None and not followed) or (answer is not None and said[answer][0] > up_to):
            return True
    return False


def paired(messages: list[Message]) -> list[Message]:
    """Every call with one result directly behind its message."""
    results, shown = owners(messages), []
    for position, message in enumerate(messages):
        if message["role"] == "tool":
            continue
        calls = call_ids(message)
        entries = message.get("tool_calls")
        if isinstance(entries, list) and message["role"] == "assistant" and len(entries) != len(calls):
            kept = [next(e for e in entries if isinstance(e, dict) and e.get("id") == call) for call in calls]
            message = {**message, "tool_calls": kept}
            if not kept:
                del message["tool_calls"]
                if not str(message.get("content") or "").strip():
                    continue
        shown.append(message)
        answered = sorted((results[position, call], call) for call in calls if (position, call) in results)
        shown += [messages[at] for at, _ in answered]
        aborted = "[aborted] No result was recorded for this tool call."
        shown += [
            {"role": "tool", "tool_call_id": call, "content": aborted}
            for call in calls
            if (position, call) not in results
        ]
    return shown
