"""Tool calls and their results: what a model may be sent, and where history may be cut."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from agentstate.conversations.pairing import ABORTED, blocking_turn, pair, safe_boundary, turn_starts
from agentstate.conversations.records import Message, Repairs

USER: Message = {"role": "user", "content": "go on"}
ANSWER: Message = {"role": "assistant", "content": "done"}
SYSTEM: Message = {"role": "system", "content": "be brief"}


def calling(*ids: object, content: object = "") -> Message:
    """Return an assistant message that calls a tool once per id."""
    return {"role": "assistant", "content": content, "tool_calls": [{"id": id_, "type": "function"} for id_ in ids]}


def result(call_id: object, content: str = "ok") -> Message:
    """Return the result of a call."""
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def aborted(call_id: str) -> Message:
    """Return what stands for the result of a call that has none."""
    return {"role": "tool", "tool_call_id": call_id, "content": ABORTED}


def in_turns(*turns: list[Message]) -> list[tuple[int, list[Message]]]:
    """Return the turns with seqs from 1."""
    return list(enumerate(turns, 1))


LATE_RESULTS = in_turns([USER, calling("a", "b")], [result("a")], [USER], [result("b"), ANSWER])


def test_a_well_formed_list_comes_out_message_for_message() -> None:
    """A repair of what was not broken changes what the model remembers, and the cache of its provider."""
    messages = [
        SYSTEM,
        USER,
        {**calling("a", "b"), "x_vendor": {"n": 2**70}},
        result("b"),
        result("a"),
        calling("a", content=None),
        result("a"),
        ANSWER,
        {"role": "developer"},
        {"role": "assistant", "content": None},
    ]

    paired, repairs = pair(messages)

    assert repairs == Repairs()
    assert [id(message) for message in paired] == [id(message) for message in messages]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": "call_1"},
        {"role": "assistant", "tool_calls": {"id": "a"}},
        {"role": "user", "tool_calls": [{"id": "a"}, None]},
        {"role": "system", "tool_call_id": "a"},
        {"role": "function", "content": "ok", "tool_call_id": "a"},
    ],
)
def test_other_shapes_are_not_ours_to_repair(message: Message) -> None:
    """Providers have shapes that we do not know; only a list of an assistant holds calls, only a tool gives results."""
    paired, repairs = pair([message])

    assert paired[0] is message
    assert (len(paired), repairs) == (1, Repairs())


@pytest.mark.parametrize(
    "orphan",
    [*(result(call_id) for call_id in ("z", "", None, 7, ["a"])), {"role": "tool", "content": "ok"}],
)
def test_a_result_without_a_call_is_left_out(orphan: Message) -> None:
    """IM-13: histories were trimmed between call and result, and providers refused every later request."""
    paired, repairs = pair([orphan, calling("a", "b"), result("a"), orphan, result("b"), ANSWER])

    assert paired == [calling("a", "b"), result("a"), result("b"), ANSWER]
    assert repairs == Repairs(orphan_results=2)


def test_a_number_is_no_id() -> None:
    """IM-13: 7 and "7" are different answers to a provider, and an id that is no text answers nothing."""
    paired, repairs = pair([calling("7"), result(7)])

    assert paired == [calling("7"), aborted("7")]
    assert repairs == Repairs(orphan_results=1, aborted_calls=1)


def test_a_result_before_its_call_is_no_result_of_it() -> None:
    """A call is answered by what comes after it."""
    paired, repairs = pair([result("a"), calling("a")])

    assert paired == [calling("a"), aborted("a")]
    assert repairs == Repairs(orphan_results=1, aborted_calls=1)


def test_a_call_without_a_result_is_answered() -> None:
    """SE-02: the process died while the tool ran, and the conversation could not be continued."""
    paired, repairs = pair([USER, calling("a", "b", "c"), result("b"), USER, calling("d")])

    assert paired == [
        *(USER, calling("a", "b", "c"), result("b"), aborted("a"), aborted("c")),
        *(USER, calling("d"), aborted("d")),
    ]
    assert repairs == Repairs(aborted_calls=3)


def test_a_late_result_replaces_the_answer_that_stood_for_it() -> None:
    """SE-07: a fork in mid-turn sees the call answered; its parent stores the result and sees that."""
    seen_by_branch = [USER, calling("a")]
    late = [USER, result("a", "late")]

    branch, _ = pair(seen_by_branch)
    parent, repairs = pair(seen_by_branch + late)

    assert branch == [USER, calling("a"), aborted("a")]
    assert parent == [USER, calling("a"), result("a", "late"), USER]
    assert repairs == Repairs(moved_results=1)


def test_a_result_belongs_to_the_nearest_call_of_its_id() -> None:
    """Some models count their calls from call_1 in every message."""
    paired, repairs = pair([calling("a"), calling("a", "b"), result("b"), result("a", "nearer"), ANSWER])

    assert paired == [calling("a"), aborted("a"), calling("a", "b"), result("b"), result("a", "nearer"), ANSWER]
    assert repairs == Repairs(aborted_calls=1)


def test_a_second_result_is_left_out_and_does_not_fall_to_an_older_call() -> None:
    """A result stored twice would otherwise answer a call of last week."""
    paired, repairs = pair([calling("a"), USER, calling("a"), result("a", "first"), result("a", "second")])

    assert paired == [calling("a"), aborted("a"), USER, calling("a"), result("a", "first")]
    assert repairs == Repairs(orphan_results=1, aborted_calls=1)


def test_results_behind_other_messages_are_moved_to_their_call() -> None:
    """A person wrote while tools ran: providers want the results first, in the order in which they arrived."""
    messages = [calling("a", "b", "c"), result("c"), USER, result("b"), ANSWER, result("a")]

    paired, repairs = pair(messages)

    assert paired == [calling("a", "b", "c"), result("c"), result("b"), result("a"), USER, ANSWER]
    assert repairs == Repairs(moved_results=2)


@pytest.mark.parametrize(
    ("between", "repairs"),
    [
        (result("z"), Repairs(orphan_results=1)),
        (calling(None, content=" "), Repairs(dropped_calls=1)),
        (result("old"), Repairs(moved_results=1)),
    ],
)
def test_a_result_is_not_moved_past_what_does_not_stay_in_between(between: Message, repairs: Repairs) -> None:
    """What was repaired is told to people: one fault must not count as two."""
    paired, found = pair([calling("old"), USER, calling("a"), between, result("a")])

    assert paired[-2:] == [calling("a"), result("a")]
    assert found.aborted_calls == (between != result("old"))
    assert (found.orphan_results, found.moved_results, found.dropped_calls) == (
        repairs.orphan_results,
        repairs.moved_results,
        repairs.dropped_calls,
    )


@pytest.mark.parametrize("entry", [None, "a", [], {}, {"id": None}, {"id": ""}, {"id": 7}, {"id": ["a"]}, {"id": "a"}])
def test_an_entry_that_is_no_call_of_its_own_is_left_out(entry: object) -> None:
    """Nothing can answer a call without an id, and one id cannot have two answers; the first of them stays."""
    first, second = {"id": "a", "n": 1}, {"id": "b", "n": 2}
    message = {"role": "assistant", "tool_calls": [first, entry, second], "content": "", "x": 1}

    paired, repairs = pair([message, result("a"), result("b")])

    assert paired == [{**message, "tool_calls": [first, second]}, result("a"), result("b")]
    assert list(paired[0]) == list(message)
    assert repairs == Repairs(dropped_calls=1)


def test_a_message_left_without_calls_says_only_its_text() -> None:
    """An empty list of calls is refused by providers."""
    paired, repairs = pair([USER, {**calling("", None, content="let me see"), "x": 1}, ANSWER])

    assert paired == [USER, {"role": "assistant", "content": "let me see", "x": 1}, ANSWER]
    assert repairs == Repairs(dropped_calls=2)


@pytest.mark.parametrize("said", [{}, {"content": None}, {"content": ""}, {"content": " \n\u3000"}, {"content": []}])
def test_a_message_left_without_calls_and_text_is_left_out(said: dict[str, Any]) -> None:
    """An assistant message that says nothing is refused too."""
    paired, repairs = pair([USER, {"role": "assistant", **said, "tool_calls": [{}]}, result("a"), ANSWER])

    assert paired == [USER, ANSWER]
    assert repairs == Repairs(orphan_results=1, dropped_calls=1)


@pytest.mark.parametrize("content", [0, False, {}, [{"type": "text", "text": ""}]])
def test_content_that_is_not_known_to_be_blank_is_kept(content: object) -> None:
    """Blocks of a provider's own must not vanish because we cannot read them."""
    paired, _ = pair([calling(None, content=content)])

    assert paired == [{"role": "assistant", "content": content}]


def test_pairing_changes_no_message_that_it_was_given() -> None:
    """SE-02: the stored messages are what was said, and their callers still hold them."""
    messages = [result("z"), calling("a", "a", None), USER, result("a"), calling("", content="hm"), calling("c")]
    before = deepcopy(messages)

    _, repairs = pair(messages)

    assert messages == before
    assert repairs == Repairs(orphan_results=1, moved_results=1, aborted_calls=1, dropped_calls=3)
    assert repairs.total == 6


def test_nothing_is_paired_as_nothing() -> None:
    """A new conversation has no messages."""
    assert pair([]) == ([], Repairs())
    assert blocking_turn([], 5) is None
    assert safe_boundary([], 5, 0) == 5
    assert turn_starts([]) == []


@pytest.mark.parametrize(
    ("boundary", "blocking", "safe"), [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, None, 4), (9, None, 9)]
)
def test_history_is_not_cut_between_a_call_and_its_result(boundary: int, blocking: int | None, safe: int) -> None:
    """SE-01: "No tool call found for function call output", on every retry again."""
    assert blocking_turn(LATE_RESULTS, boundary) == blocking
    assert safe_boundary(LATE_RESULTS, boundary, 0) == safe


@pytest.mark.parametrize(
    ("behind", "blocking"),
    [
        ([], 2),
        ([SYSTEM], 2),
        ([result("a")], 2),
        ([result("z")], 2),
        ([result("a"), result("b")], None),
        ([USER], None),
        ([SYSTEM, ANSWER], None),
        ([calling("b"), result("b")], None),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_a_call_blocks_while_it_may_still_run_and_not_once_it_is_abandoned(
    behind: list[Message], blocking: int | None, apart: bool
) -> None:
    """SE-03: the result of a running call is yet to come; a call that was given up would hold its history for ever."""
    first = [USER, calling("a", "b")]
    turns = in_turns([USER], first, behind) if apart else in_turns([USER], first + behind)
    end = len(turns)

    assert blocking_turn(turns, end) == blocking
    assert safe_boundary(turns, end, 0) == (end if blocking is None else 1)


def test_an_abandoned_call_blocks_again_when_its_result_comes_after_all() -> None:
    """SE-03: it is shown with its call, so it must not outlive it."""
    turns = in_turns([USER, calling("a")], [USER], [result("a")])

    assert blocking_turn(turns[:2], 2) is None
    assert blocking_turn(turns, 2) == 1
    assert blocking_turn(turns, 3) is None


def test_only_the_call_that_owns_a_result_blocks() -> None:
    """An id used again, a second result and an entry without an id hold nothing back."""
    reused = in_turns([calling("a"), result("a")], [USER, calling("a")], [result("a")], [result("a")])
    no_calls = in_turns([USER, calling("", None, content="hm")], [result("")])

    assert [blocking_turn(reused, boundary) for boundary in (1, 2, 3, 4)] == [None, 2, None, None]
    assert [blocking_turn(no_calls, boundary) for boundary in (1, 2)] == [None, None]


def test_of_several_calls_in_a_turn_the_one_answered_last_counts() -> None:
    """SE-01: a turn can hold several rounds of calls, and results do not come in their order."""
    turns = in_turns([calling("a"), calling("b", "c")], [result("b")], [result("a")], [result("c")], [USER])
    other = in_turns([calling("a"), calling("b")], [result("b")], [result("a")], [USER])

    assert [blocking_turn(turns, boundary) for boundary in (1, 2, 3, 4)] == [1, 1, 1, None]
    assert [blocking_turn(other, boundary) for boundary in (1, 2, 3)] == [1, 1, None]


def test_a_boundary_moves_back_until_nothing_blocks() -> None:
    """SE-03: in front of one open call another one can be open."""
    turns = [
        (3, [USER]),
        (5, [calling("a")]),
        (6, [calling("b")]),
        (8, [result("a")]),
        (9, []),
        (12, [result("b"), calling("c")]),
    ]

    assert [blocking_turn(turns, boundary) for boundary in (12, 11, 9, 8, 7, 6, 5, 4, 3)] == [
        *(12, 6, 6, 6, 5, 5, 5, None, None)
    ]
    assert [safe_boundary(turns, boundary, 0) for boundary in (12, 11, 9, 8, 7, 6, 5, 4, 3, 1)] == [
        *(3, 3, 3, 3, 3, 3, 3, 4, 3, 1)
    ]


def test_a_boundary_lies_at_the_turn_before_the_one_that_blocks() -> None:
    """Whole turns only: seqs may have gaps, and a fork point is a turn without messages."""
    turns: list[tuple[int, list[Message]]] = [(10, [ANSWER]), (14, []), (20, [calling("a")]), (21, [result("a")])]

    assert safe_boundary(turns, 20, 7) == 14


def test_a_boundary_is_never_below_the_floor() -> None:
    """What is compacted already stays so."""
    turns = [(6, [calling("a")]), (7, [result("a")])]

    assert safe_boundary(turns, 6, 5) == 5
    assert safe_boundary(turns, 2, 5) == 5
    assert safe_boundary(turns, 7, 8) == 8
    assert safe_boundary([(1, [USER]), *turns], 6, 5) == 5


@pytest.mark.parametrize(
    ("messages", "starts"),
    [
        ([USER, calling("a"), result("a"), ANSWER], [0]),
        ([result("z"), ANSWER, USER, calling("a")], [0, 2]),
        ([USER, USER, calling("a"), USER, result("a"), USER], [0, 1, 5]),
        ([USER, calling("a", "b"), result("a"), USER, ANSWER, USER, result("b")], [0]),
        ([calling("a"), USER, calling("a"), result("a"), USER, result("a"), USER], [0, 1, 4, 6]),
        ([calling("a"), calling("b"), result("b"), USER, result("a"), USER], [0, 5]),
        ([calling("a"), USER, SYSTEM, USER], [0, 1, 3]),
        ([{**USER, "tool_calls": [{"id": "a"}]}, USER, result("a")], [0, 1]),
    ],
)
def test_turns_begin_where_a_person_speaks_and_no_tool_runs(messages: list[Message], starts: list[int]) -> None:
    """A file's one list is stored as turns, so that its old part can be compacted (section 12)."""
    assert turn_starts(messages) == starts


class Counted(dict[str, Any]):
    """A message that counts how often any of its kind is looked into."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        """Look into the message."""
        Counted.reads += 1
        return super().get(key, default)


def reads_per_message(length: int, function: str) -> float:
    """Return how often each message is looked into, when every call's result comes after the next call."""
    first, *others = [Counted(calling(f"c{n}")) for n in range(length // 2)]
    messages: list[Message] = [first]
    for number, other in enumerate(others):
        messages += [other, Counted(result(f"c{number}"))]
    turns = [(seq, [message]) for seq, message in enumerate(messages, 1)]
    Counted.reads = 0
    if function == "pair":
        pair(messages)
    elif function == "turn_starts":
        turn_starts(messages)
    elif function == "blocking_turn":
        blocking_turn(turns, length)
    else:
        assert safe_boundary(turns, length, 0) == 0
    return Counted.reads / length


@pytest.mark.parametrize("function", ["pair", "turn_starts", "blocking_turn", "safe_boundary"])
def test_each_message_is_looked_into_a_few_times_however_long_the_history(function: str) -> None:
    """A boundary that goes back over 4,000 messages step by step must not pair them anew at each."""
    short, long = reads_per_message(40, function), reads_per_message(4000, function)

    assert long == pytest.approx(short, rel=0.1)
