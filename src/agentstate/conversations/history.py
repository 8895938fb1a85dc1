"""What a conversation remembers: its messages, what of them a model may be sent, and how they are compacted.

Compaction hides whole turns behind a summary; stored turns never change, and a turn that a branch still sees stays
(sections 5 to 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentstate.conversations.messages import messages_text
from agentstate.conversations.models import AUTHORITATIVE, ENDED, HEARSAY, TurnKind, effective_summary, new_turn_id
from agentstate.conversations.pairing import pair, safe_boundary
from agentstate.conversations.records import Compaction, CompactionPlan, Message, ProviderView, TurnRecord
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.repositories.turns import History, Said
from agentstate.db.database import Database
from agentstate.db.types import plain_text
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    ConversationChanged,
    ConversationEnded,
    ConversationNotFound,
    EmptySummary,
    InvalidValue,
    StaleCompaction,
    TurnConflict,
)
from agentstate.identity import identifier

SUMMARY_HEADING = "[Summary of earlier turns]\n"


def messages(work: UnitOfWork, key: str) -> list[Message]:
    """Return the messages of the conversation's history as they were stored, without its summary.

    Raises `ConversationNotFound`: a conversation that was pruned must not look like one without memory.
    """
    return _concatenated(_read(work, key).turns)


def provider_messages(work: UnitOfWork, key: str) -> ProviderView:
    """Return the list of messages that may be sent to a model: the summary first, and every tool call paired.

    The summary speaks as a user: it is hearsay too. What other agents said does as well, whatever an import brought.
    Stored turns are not changed; `repairs` counts what was done (SE-02, IM-13). Raises `ConversationNotFound`.
    """
    found = _read(work, key)
    summary = effective_summary(found.inherited_summary, found.summary)
    paired, repairs = pair(_as_hearsay(found.turns))
    heading = [{"role": "user", "content": SUMMARY_HEADING + summary}] if summary else []
    last = found.turns[-1].seq if found.turns else 0
    return ProviderView(key, heading + paired, repairs, summary, found.compacted_seq, last)


def walk_history(database: Database, key: str, page: int = 200) -> Iterator[TurnRecord]:
    """Yield the turns of the conversation's history, by seq, holding no transaction while the caller works (FS-13).

    `page` turns are read at once. Turns that are appended meanwhile are met too. Raises `ConversationNotFound`.
    """
    if isinstance(page, bool) or not isinstance(page, int) or page < 1:
        raise InvalidValue("page", f"{page!r} is not a number of turns above 0")
    since = 0
    while True:
        with database.read() as work:
            found = Turns(work).read_history(identifier(key, "key"), since, page)
        if found is None:
            raise ConversationNotFound(key)
        turns = found.turns
        yield from turns
        if len(turns) < page:
            return
        since = turns[-1].seq


def plan_compaction(work: UnitOfWork, key: str, keep_last: int = 4) -> CompactionPlan | None:
    """Return what a summariser needs to compact all but the newest `keep_last` messages, or None if that is nothing.

    At least `keep_last` messages stay, and whole turns with all their tool results. No transaction needs to be open
    while the model thinks: `compact_plan` notices if somebody compacted meanwhile. Raises `ConversationNotFound`.
    """
    found = _read(work, key)
    cut = _cut(found, keep_last)
    planned = [turn for turn in found.turns if turn.seq <= cut]
    if not _concatenated(planned):
        return None
    summary = effective_summary(found.inherited_summary, found.summary)
    return CompactionPlan(key, cut, found.compacted_seq, summary, pair(_as_hearsay(planned))[0])


def compact_plan(work: UnitOfWork, plan: CompactionPlan, summary: str) -> Compaction:
    """Apply a plan: `summary` stands for its messages and for the earlier summary from now on; as `compact`."""
    return compact(
        work,
        plan.key,
        plan.up_to_seq,
        summary,
        expected_compacted_seq=plan.expected_compacted_seq,
        supersedes=plan.summary,
    )


def compact(
    work: UnitOfWork,
    key: str,
    up_to_seq: int,
    summary: str,
    *,
    expected_compacted_seq: int | None = None,
    supersedes: str | None = None,
) -> Compaction:
    """Hide the turns up to `up_to_seq` behind a summary, and delete those that no branch needs.

    The boundary moves back so that no tool call is parted from its result; `turns` 0 means that nothing could be
    hidden and nothing was written. The earlier summary is carried on before the new one, unless `supersedes` says (by
    being equal to it) that the summariser has seen it, or the new text contains it (SE-03). `expected_compacted_seq`
    is what the caller's snapshot said.

    Raises `EmptySummary` (SE-04), `ConversationNotFound`, `StaleCompaction` when somebody compacted or summarised since
    the snapshot, and `InvalidValue` for a boundary that nobody can have summarised. Turns appended since stay (SE-05).
    """
    _require_summary(summary)
    _require_seq(up_to_seq, "up_to_seq")
    if expected_compacted_seq is not None:
        _require_seq(expected_compacted_seq, "expected_compacted_seq")
    if supersedes is not None:
        plain_text(supersedes, "supersedes")
    found = _locked(work, key)
    if expected_compacted_seq is not None and expected_compacted_seq != found.compacted_seq:
        raise StaleCompaction(key, expected_compacted_seq, found.compacted_seq)
    if up_to_seq <= found.compacted_seq:
        raise StaleCompaction(key, up_to_seq, found.compacted_seq)
    if up_to_seq >= found.next_seq:
        raise InvalidValue("up_to_seq", f"{up_to_seq} is not below {found.next_seq}, the next turn's place")
    before = effective_summary(found.inherited_summary, found.summary)
    boundary = safe_boundary(_pairs(found.turns), up_to_seq, found.compacted_seq)
    if boundary <= found.compacted_seq:
        return Compaction(key, up_to_seq, found.compacted_seq, 0, 0, before)
    if supersedes is not None and supersedes != before:
        raise StaleCompaction(key, supersedes, before)
    return _store(work, found, up_to_seq, boundary, summary, replaces=supersedes is not None)


def compact_old_turns(work: UnitOfWork, key: str, keep_last: int, summary: str) -> Compaction:
    """Compact all but the newest `keep_last` messages with a summary made elsewhere, planned and applied at once.

    Where nothing can be hidden the summary alone is stored; the earlier one is carried on as in `compact`. Raises
    `EmptySummary`, `ConversationNotFound` and `InvalidValue`.
    """
    _require_summary(summary)
    found = _locked(work, key)
    cut = _cut(found, keep_last)
    return _store(work, found, cut, cut, summary, replaces=False)


def replace_history(
    work: UnitOfWork, key: str, messages: Sequence[Message], *, expected_next_seq: int, turn_id: str | None = None
) -> int | None:
    """Hide everything the conversation sees and start again with these messages as one turn; return its seq.

    Without messages nothing is stored and None returned. Summaries stay. `expected_next_seq` is the `next_seq` that the
    caller read: another one stored raises `ConversationChanged`, and nothing is changed (LK-04). `turn_id` makes the
    call safe to repeat. Raises `ConversationNotFound`, `ConversationEnded`, `InvalidMessage` and `TurnTooLarge`.
    """
    text = messages_text(messages)
    _require_seq(expected_next_seq, "expected_next_seq")
    if turn_id is not None:
        identifier(turn_id, "turn_id")
    found, turns = _locked(work, key), Turns(work)
    stored = None if turn_id is None else turns.find_stored(turn_id)
    # Above a visible turn it is a turn among others, and no replacement.
    replaced = stored is not None and stored.conversation_key == key and stored.seq <= found.compacted_seq + 1
    if stored is not None and replaced and stored.messages == text:
        return int(stored.seq)
    if stored is not None:
        raise TurnConflict(stored.id, stored.conversation_key)
    if found.next_seq != expected_next_seq:
        raise ConversationChanged(key, expected_next_seq, found.next_seq)
    if found.status in ENDED:
        raise ConversationEnded(key, found.status)

    conversations = Conversations(work)
    seq = conversations.take_seq(key) if messages else None
    if seq is not None:
        new_id = turn_id or new_turn_id(work.now)
        turn = {
            "id": new_id,
            "conversation_key": key,
            "seq": seq,
            "kind": int(TurnKind.NORMAL),
            "message_count": len(messages),
            "origin_key": None,
            "summary": None,
            "author": "",
            "created_at": work.now,
            "meta": None,
            "messages": text,
        }
        if not turns.add_if_new(turn):
            # Another conversation took the id between our look and now.
            conversations.give_back_seq(key)
            raise TurnConflict(new_id, turns.list_ids([new_id])[new_id])
    conversations.change(key, compacted_seq=found.next_seq - 1)
    _release(work, key)
    return seq


def _read(work: UnitOfWork, key: str) -> History[Said]:
    found = Turns(work).read_said(identifier(key, "key"))
    if found is None:
        raise ConversationNotFound(key)
    return found


def _locked(work: UnitOfWork, key: str) -> History[Said]:
    """Lock the conversation and those it inherits from, whose hidden turns may go, and read its history."""
    turns = Turns(work)
    line = turns.line(identifier(key, "key"))
    Conversations(work).lock(owner for owner, _ in line)
    now = turns.line(key)
    if set(now) != set(line):
        seen, found = (", ".join(sorted(owner for owner, _ in owners)) for owners in (line, now))
        raise ConversationChanged(key, seen, found)
    return _read(work, key)


def _store(
    work: UnitOfWork, found: History[Said], requested: int, boundary: int, summary: str, *, replaces: bool
) -> Compaction:
    before = effective_summary(found.inherited_summary, found.summary)
    if replaces or (before and before in summary):
        own, inherited = summary, None
    else:
        own, inherited = effective_summary(found.summary, summary), found.inherited_summary
    Conversations(work).change(found.key, compacted_seq=boundary, summary=own, inherited_summary=inherited)
    hidden = sum(turn.seq <= boundary for turn in found.turns)
    deleted = _release(work, found.key) if hidden else 0
    return Compaction(found.key, requested, boundary, hidden, deleted, effective_summary(inherited, own))


def _release(work: UnitOfWork, key: str) -> int:
    turns = Turns(work)
    return turns.release([owner for owner, _ in turns.line(key)])


def _cut(found: History[Said], keep_last: int) -> int:
    """Return the last turn that can be hidden so that at least `keep_last` messages stay, or the old boundary."""
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 0:
        raise InvalidValue("keep_last", f"{keep_last!r} is not a number of messages")
    spare = sum(len(turn.messages) for turn in found.turns) - keep_last
    cut = found.compacted_seq
    for turn in found.turns:
        spare -= len(turn.messages)
        if spare < 0:
            break
        cut = turn.seq
    return safe_boundary(_pairs(found.turns), cut, found.compacted_seq)


def _pairs(turns: Sequence[Said]) -> list[tuple[int, list[Message]]]:
    return [(turn.seq, turn.messages) for turn in turns]


def _concatenated(turns: Sequence[Said]) -> list[Message]:
    return [message for turn in turns for message in turn.messages]


def _as_hearsay(turns: Sequence[Said]) -> list[Message]:
    """Return the turns' messages; words of authority in a report, question or plan become a user's."""
    shown: list[Message] = []
    for turn in turns:
        shown += map(_as_user, turn.messages) if turn.kind in HEARSAY else turn.messages
    return shown


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message.get("role") in AUTHORITATIVE else message


def _require_summary(summary: object) -> None:
    if summary is None or (isinstance(summary, str) and not summary.strip()):
        raise EmptySummary
    plain_text(summary, "summary")


def _require_seq(value: object, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValue(field, f"must be a seq, a whole number, not {value!r}")
