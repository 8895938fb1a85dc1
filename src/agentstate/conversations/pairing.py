"""Tool calls and their results: which belongs to which, what a model may be sent, and where history may be cut.

A *call* is an entry of `tool_calls`, a list, in an `assistant` message: an object with a non-empty string `id` that
does not repeat an earlier one of the same message. A *result* is a message with role `tool`. It belongs to the nearest
earlier assistant message that has a call with its `tool_call_id`, because ids like `call_1` are used again; when that
call has its result already, the new one belongs to nobody, not to an older call of the same id.

Every other shape (`tool_calls` that is no list, on other roles, or empty) is none of our business and passes through.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from agentstate.conversations.records import Message, Repairs

ABORTED = "[aborted] No result was recorded for this tool call."
"""What a model is told in place of a result that was never stored."""


@dataclass(slots=True)
class _Calls:
    """The calls of one assistant message by id, and the positions of their results by the same ids.

    `entries` is in the order of the calls, `results` in the order of arrival.
    """

    entries: dict[str, Any]
    results: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Pairs:
    """Who belongs to whom in a list of messages, all by position.

    `calls` has the assistant messages with calls, `callers` the caller of each result; an orphan is not in it.
    """

    calls: dict[int, _Calls] = field(default_factory=dict)
    callers: dict[int, int] = field(default_factory=dict)


def _entries(message: Message) -> list[Any]:
    """Return what stands in `tool_calls`, well-formed or not; `[]` where there can be no calls."""
    entries = message.get("tool_calls")
    return entries if message.get("role") == "assistant" and isinstance(entries, list) else []


def _calls(message: Message) -> dict[str, Any]:
    """Return the message's calls by id, in their order."""
    found: dict[str, Any] = {}
    for entry in _entries(message):
        call_id = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(call_id, str) and call_id:
            found.setdefault(call_id, entry)
    return found


def _find_pairs(messages: Sequence[Message]) -> _Pairs:
    pairs = _Pairs()
    nearest: dict[str, int] = {}
    for position, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if isinstance(call_id, str) and call_id in nearest:
                caller = nearest[call_id]
                # A second result of one call is an orphan: the first keeps its place.
                if pairs.calls[caller].results.setdefault(call_id, position) == position:
                    pairs.callers[position] = caller
        elif calls := _calls(message):
            pairs.calls[position] = _Calls(calls)
            nearest.update(dict.fromkeys(calls, position))
    return pairs


def _is_blank(content: object) -> bool:
    return content is None or content == [] or (isinstance(content, str) and not content.strip())


def _without_dropped(message: Message, kept: list[Any]) -> Message | None:
    """Return a copy of the message with only the kept calls, or None if nothing is left to say."""
    if kept:
        return {**message, "tool_calls": kept}
    if _is_blank(message.get("content")):
        return None
    return {key: value for key, value in message.items() if key != "tool_calls"}


def pair(messages: Sequence[Message]) -> tuple[list[Message], Repairs]:
    """Return the messages such that every call has one result, directly behind its message, and what that took.

    Providers refuse a list with a call without a result, or the other way round, and so every later request with it
    (SE-02, IM-13). A well-formed list comes out as the same objects, message for message; a message that has to change
    is a shallow copy. The argument is never modified. The repairs:

    - `dropped_calls`: entries of `tool_calls` that are no calls (see above) are left out. A message left without calls
      loses `tool_calls`, and is left out itself if its content is None, missing, blank text or an empty list.
    - `orphan_results`: results that belong to no call, or whose `tool_call_id` is no string, are left out.
    - `moved_results`: results behind another message than their call's are moved to the end of its results. What was
      left out and other results do not count as in between: what follows them arrived in time.
    - `aborted_calls`: each call without a result is given one that says so, behind the results that there are.
    """
    if not any("tool_calls" in message or message.get("role") == "tool" for message in messages):
        return list(messages), Repairs()  # most histories of chats: there is nothing to pair
    pairs = _find_pairs(messages)
    paired: list[Message] = []
    orphans = moved = aborted = dropped = 0
    last_said: int | None = None  # the position of the last message kept that is no result
    for position, message in enumerate(messages):
        if message.get("role") == "tool":
            caller = pairs.callers.get(position)
            orphans += caller is None
            moved += caller is not None and caller != last_said
            continue  # those that stay were put behind their caller

        calls = pairs.calls.get(position)
        surplus = len(_entries(message)) - (len(calls.entries) if calls else 0)
        dropped += surplus
        said = _without_dropped(message, list(calls.entries.values()) if calls else []) if surplus else message
        if said is None:
            continue

        last_said = position
        paired.append(said)
        if calls:
            paired += [messages[result] for result in calls.results.values()]
            missing = [call_id for call_id in calls.entries if call_id not in calls.results]
            paired += [{"role": "tool", "tool_call_id": call_id, "content": ABORTED} for call_id in missing]
            aborted += len(missing)
    return paired, Repairs(orphans, moved, aborted, dropped)


def _needed_ends(turns: Sequence[tuple[int, Sequence[Message]]]) -> list[int]:
    """Return for each turn the index of the last turn with a result of its calls, at least its own index.

    Of a turn with a call that may still run it is an index behind the last turn: the result is yet to come. That is a
    call without a result, with no `user` or `assistant` message behind it: any of them says that nobody waits for it.
    """
    turn_of: list[int] = []
    messages: list[Message] = []
    for index, (_, of_turn) in enumerate(turns):
        messages += of_turn
        turn_of += [index] * len(of_turn)
    speakers = [position for position, said in enumerate(messages) if said.get("role") in ("user", "assistant")]
    last_speaker = speakers[-1] if speakers else None

    ends = list(range(len(turns)))
    for position, calls in _find_pairs(messages).calls.items():
        index = turn_of[position]
        if position == last_speaker and len(calls.results) < len(calls.entries):
            ends[index] = len(turns)
        else:
            ends[index] = max([ends[index], *(turn_of[result] for result in calls.results.values())])
    return ends


def _last_up_to(turns: Sequence[tuple[int, Sequence[Message]]], boundary: int) -> int:
    """Return the index of the last turn with seq ≤ boundary, -1 if there is none."""
    return bisect_right(turns, boundary, key=lambda turn: turn[0]) - 1


def blocking_turn(turns: Sequence[tuple[int, Sequence[Message]]], boundary: int) -> int | None:
    """Return the seq of the earliest turn that keeps history from being cut behind `boundary`; None: it may be cut.

    `turns` are the visible ones, (seq, messages), ascending by seq. A turn up to the boundary blocks when a result of
    one of its calls is in a turn behind the boundary, or when one of its calls may still run: it has no result, and no
    `user` or `assistant` message follows it. A call abandoned in favour of such a message does not block (SE-01).
    """
    ends = _needed_ends(turns)
    last = _last_up_to(turns, boundary)
    return next((turns[index][0] for index in range(last + 1) if ends[index] > last), None)


def safe_boundary(turns: Sequence[tuple[int, Sequence[Message]]], boundary: int, floor: int) -> int:
    """Return the last seq up to `boundary` behind which history may be cut without parting a call from its result.

    That is `boundary` itself if nothing blocks it. Otherwise it moves to just before the turn that blocks, until
    nothing does (SE-01, SE-03): to the seq of the turn before, or to `floor` where `turns` begin. It is never below
    `floor`. `turns` as for `blocking_turn`.
    """
    last = _last_up_to(turns, boundary)
    # The furthest that any turn up to an index needs. Stepping back turn by turn ends where jumping from one blocking
    # turn to the next does: what blocks lies behind every earlier place that may be cut.
    furthest = list(accumulate(_needed_ends(turns), max))
    index = last
    while index >= 0 and furthest[index] > index:
        index -= 1
    if index == last:
        return max(boundary, floor)
    return max(turns[index][0], floor) if index >= 0 else floor


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the positions at which turns begin when a bare list of messages is stored as turns, `[]` for no messages.

    They are 0 and every `user` message, except where a call before it has its result behind it: so that old history
    can be compacted in part.
    """
    calls = _find_pairs(messages).calls
    starts: list[int] = []
    needed = -1  # the last position at which a call so far has its result
    for position, message in enumerate(messages):
        if position == 0 or (message.get("role") == "user" and needed < position):
            starts.append(position)
        if position in calls:
            needed = max([needed, *calls[position].results.values()])
    return starts
