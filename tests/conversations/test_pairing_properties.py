"""Pairing on sequences that nobody thought of, beside a slow reading of the rules."""

from __future__ import annotations

from copy import deepcopy
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from agentstate.conversations.pairing import blocking_turn, pair, safe_boundary, turn_starts
from agentstate.conversations.records import Message, Repairs

# Few ids, so that they are used again, answered twice, and late.
IDS = st.sampled_from(["a", "b", "c"])
ENTRIES = st.one_of(IDS.map(lambda id_: {"id": id_}), st.sampled_from([{"id": ""}, {"id": None}, {}, None, "a"]))
CONTENTS: st.SearchStrategy[object] = st.sampled_from(["text", "", " ", None, []])


def calling(entries: list[object], content: object = "") -> Message:
    """Return an assistant message with these entries of `tool_calls`."""
    return {"role": "assistant", "content": content, "tool_calls": entries}


def result(call_id: str | None) -> Message:
    """Return the result of a call."""
    return {"role": "tool", "content": "ok", "tool_call_id": call_id}


SPOKEN = st.sampled_from(["user", "assistant", "system"]).map(lambda role: [{"role": role, "content": "text"}])
ROUNDS = st.tuples(st.lists(IDS, min_size=1, unique=True), st.lists(IDS, max_size=3)).map(
    lambda ids: [calling([{"id": id_} for id_ in ids[0]]), *map(result, ids[1])]
)
MALFORMED = st.builds(lambda entries, content: [calling(entries, content)], st.lists(ENTRIES, max_size=4), CONTENTS)
STRAYS = st.one_of(IDS, IDS, st.none()).map(lambda call_id: [result(call_id)])
PIECES = st.one_of(SPOKEN, ROUNDS, ROUNDS, STRAYS, MALFORMED)


def numbered(pieces: list[list[Message]]) -> list[Message]:
    """Return the pieces as one list; each message has its position, by which it is known in any other list."""
    messages = [message for piece in pieces for message in piece]
    return [{**message, "n": position} for position, message in enumerate(messages)]


# Lists tend to be as short as they may be, and much of what goes wrong needs a dozen messages.
TRANSCRIPTS = st.lists(PIECES, min_size=4, max_size=12).map(numbered)
Turns = list[tuple[int, list[Message]]]


@st.composite
def histories(draw: st.DrawFn) -> Turns:
    """Return a history of some turns, a few of them without messages, with gaps between their seqs."""
    messages = draw(TRANSCRIPTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(messages)), min_size=2, max_size=10)))
    bodies = [messages[start:end] for start, end in zip([0, *cuts], [*cuts, len(messages)], strict=True)]
    steps = draw(st.lists(st.sampled_from([1, 1, 2, 5]), min_size=len(bodies), max_size=len(bodies)))
    return list(zip(accumulate(steps), bodies, strict=True))


def joined(turns: Turns) -> list[Message]:
    """Return the messages of the turns as one list."""
    return [message for _, messages in turns for message in messages]


def call_ids(message: Message) -> list[str]:
    """Return the ids of the message's calls, read slowly from the rules."""
    if message["role"] != "assistant" or "tool_calls" not in message:
        return []
    found = [entry["id"] for entry in message["tool_calls"] if isinstance(entry, dict) and entry.get("id")]
    return sorted(set(found), key=found.index)


def callers(messages: list[Message]) -> dict[int, int]:
    """Return the number of each result's assistant message, read slowly from the rules."""
    found: dict[int, int] = {}
    for position, message in enumerate(messages):
        if message["role"] != "tool":
            continue
        call_id = message["tool_call_id"]
        for earlier in reversed(messages[:position]):
            if earlier["role"] == "tool" and earlier["tool_call_id"] == call_id:
                break  # the call before it has its result already, or there is none
            if call_id in call_ids(earlier):
                found[message["n"]] = earlier["n"]
                break
    return found


def speaks(message: Message) -> bool:
    """Return whether the message says that nobody waits for an earlier call."""
    return message["role"] in ("user", "assistant")


@given(TRANSCRIPTS)
def test_every_call_has_one_result_directly_behind_its_message(messages: list[Message]) -> None:
    """SE-01, SE-02, IM-13: what a provider accepts."""
    paired, _ = pair(messages)

    position = 0
    while position < len(paired):
        message = paired[position]
        assert message["role"] != "tool"
        ids = call_ids(message)
        assert len(ids) == len(message.get("tool_calls", []))
        answers = paired[position + 1 : position + 1 + len(ids)]
        assert [answer["role"] for answer in answers] == ["tool"] * len(ids)
        assert sorted(answer["tool_call_id"] for answer in answers) == sorted(ids)
        position += 1 + len(ids)


@given(TRANSCRIPTS)
def test_what_is_paired_needs_no_repair(messages: list[Message]) -> None:
    """A view that is stored or sent on must not change a second time."""
    paired, _ = pair(messages)

    again, repairs = pair(paired)

    assert repairs == Repairs()
    assert [id(message) for message in again] == [id(message) for message in paired]


@given(TRANSCRIPTS)
def test_only_what_cannot_be_sent_is_left_out_and_the_rest_keeps_its_order(messages: list[Message]) -> None:
    """A repair must not make somebody say less, or earlier, and the counts must say what it did."""
    before = deepcopy(messages)

    paired, repairs = pair(messages)

    assert messages == before
    spoken = [message["n"] for message in paired if message["role"] != "tool"]
    empty = [
        message["n"]
        for message in messages
        if message.get("tool_calls") and not call_ids(message) and not (message["content"] or "").strip()
    ]
    assert spoken == [message["n"] for message in messages if message["role"] != "tool" and message["n"] not in empty]
    assert repairs.dropped_calls == sum(
        len(message.get("tool_calls", [])) - len(call_ids(message)) for message in messages
    )


@given(TRANSCRIPTS)
def test_a_result_stands_behind_the_nearest_call_of_its_id_in_order_of_arrival(messages: list[Message]) -> None:
    """Reused ids: an answer to another question is worse than none."""
    expected = callers(messages)

    paired, repairs = pair(messages)

    found: dict[int, int] = {}
    caller = -1
    for message in paired:
        if message["role"] != "tool":
            caller = message["n"]
        elif "n" in message:
            assert message["n"] > max((other for other in found if found[other] == caller), default=-1)
            found[message["n"]] = caller
    assert found == expected
    results = sum(message["role"] == "tool" for message in messages)
    calls = sum(len(call_ids(message)) for message in messages)
    assert (repairs.orphan_results, repairs.aborted_calls) == (results - len(expected), calls - len(expected))


@given(histories())
def test_a_turn_blocks_for_a_result_behind_the_boundary_or_a_call_that_may_run(turns: Turns) -> None:
    """SE-01: neither too little, which parts them, nor too much, which keeps old history for ever."""
    messages = joined(turns)
    seq_of = {message["n"]: seq for seq, of_turn in turns for message in of_turn}
    pairs = callers(messages)
    needs: list[tuple[int, float]] = [(seq_of[caller], seq_of[result]) for result, caller in pairs.items()]
    for position, message in enumerate(messages):
        unanswered = len(call_ids(message)) > list(pairs.values()).count(message["n"])
        if unanswered and not any(speaks(later) for later in messages[position + 1 :]):
            needs.append((seq_of[message["n"]], float("inf")))

    for boundary in range(turns[-1][0] + 2):
        expected = min((call for call, end in needs if call <= boundary < end), default=None)
        assert blocking_turn(turns, boundary) == expected


@given(histories())
def test_a_boundary_moves_back_turn_by_turn_until_nothing_blocks(turns: Turns) -> None:
    """SE-01, SE-03: the fast way comes to the same place."""
    for boundary in range(turns[-1][0] + 2):
        expected = boundary
        while (blocking := blocking_turn(turns, expected)) is not None:
            expected = max((seq for seq, _ in turns if seq < blocking), default=0)

        assert safe_boundary(turns, boundary, 0) == expected


@given(histories())
def test_behind_a_safe_boundary_every_result_still_has_its_call(turns: Turns) -> None:
    """SE-01: for every boundary; what was an orphan before may be one after."""
    whole = callers(joined(turns))
    for boundary in range(turns[-1][0] + 2):
        safe = safe_boundary(turns, boundary, 0)
        rest = joined([turn for turn in turns if turn[0] > safe])

        paired, _ = pair(rest)

        kept = {message.get("n") for message in paired}
        assert whole.keys() & kept == whole.keys() & {message["n"] for message in rest}


@given(histories())
def test_after_many_compactions_a_result_lost_its_call_only_if_somebody_spoke_between(turns: Turns) -> None:
    """SE-03: compaction after every turn, with results that come late."""
    whole = callers(joined(turns))
    floor = 0
    for end in range(1, len(turns) + 1):
        visible = [turn for turn in turns[:end] if turn[0] > floor]
        floor = safe_boundary(visible, turns[end - 1][0], floor)
        rest = joined([turn for turn in visible if turn[0] > floor])

        paired, _ = pair(rest)

        kept = {message.get("n") for message in paired}
        lost = [message["n"] for message in rest if message["n"] in whole.keys() - kept]
        assert all(any(speaks(said) for said in joined(turns)[whole[n] + 1 : n]) for n in lost)


@given(TRANSCRIPTS)
def test_turns_begin_at_every_user_message_that_parts_nothing(messages: list[Message]) -> None:
    """An imported list is cut as often as it may be, so that its old part can be compacted."""
    pairs = callers(messages)
    parting = {cut for result, caller in pairs.items() for cut in range(caller + 1, result + 1)}
    allowed = [message["n"] for message in messages if message["role"] == "user" and message["n"] not in parting]

    assert turn_starts(messages) == sorted({0, *allowed})
