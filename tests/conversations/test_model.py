"""Thousands of steps nobody thought of: the database and a plain model of the rules must never differ.

2,000 steps in every run; `make soak` runs many more, other ones each time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentstate import errors
from agentstate.conversations import history, workflows
from agentstate.conversations.importer import import_sessions
from agentstate.conversations.prune import prune
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from builders import NOON
from conversation_model import INFINITE, Message, Model, ModelConversation, ModelTurn, Refused

KEYS = st.sampled_from("abcdefgh")
POLICIES = ["refuse", "keep", "keep", "cascade"]
CALLS = ["call_1", "call_2"]
STATUSES = st.sampled_from(["active", "active", "active", "completed", "executing", "paused-by-v9"])


def messages() -> st.SearchStrategy[list[Message]]:
    """Return turns as agents make them: words, calls, results in time and late."""
    words = st.sampled_from(["user", "assistant"]).map(lambda role: {"role": role, "content": "x"})
    calls = st.lists(st.sampled_from([*CALLS, ""]), min_size=1, max_size=2).map(
        lambda ids: {"role": "assistant", "content": "", "tool_calls": [{"id": id_, "n": 2**70} for id_ in ids]}
    )
    results = st.sampled_from(CALLS).map(lambda id_: {"role": "tool", "content": "14 °C", "tool_call_id": id_})
    return st.lists(st.one_of(words, words, words, calls, results), min_size=1, max_size=4)


class Conversing(RuleBasedStateMachine):
    """Does the same to a database and to the model; after every step both must hold the same."""

    def __init__(self) -> None:
        """Begin with an empty database."""
        super().__init__()
        self.database = Database.memory()
        self.model = Model()
        self.now = NOON
        self.turn = 0
        self.directory = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        """Look at everything once more, and close."""
        with self.database.read() as work:
            for key in self.model.all:
                self.compare_reading(work, key)
        self.database.close()
        self.directory.cleanup()

    def same(self, ours: Callable[[UnitOfWork], Any], theirs: Callable[[], Any]) -> Any:
        """Do it to both: the same answer, or the same refusal and nothing changed."""
        try:
            expected: Any = theirs()
        except Refused as refused:
            kind: type[Exception] = getattr(errors, refused.args[0])
            with pytest.raises(kind), self.database.write(now=self.now) as work:
                ours(work)
            return None
        with self.database.write(now=self.now) as work:
            assert ours(work) == expected
        return expected

    def new_turn(self, said: list[Message], kind: int = 0, origin: str | None = None) -> ModelTurn:
        """Return a turn under an id of its own."""
        self.turn += 1
        return ModelTurn(f"turn-{self.turn}", kind, said, origin)

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(hours=st.integers(-2, 60))
    def time_passes(self, hours: int) -> None:
        """And sometimes the clock is set back."""
        self.now += timedelta(hours=hours)

    @rule(key=KEYS)
    def create(self, key: str) -> None:
        """A conversation is made, or is there."""
        self.same(lambda work: workflows.create(work, key).key, lambda: self.model.create(key, self.now))

    @initialize(turns=st.lists(st.tuples(KEYS, messages()), min_size=8, max_size=20))
    def begin(self, turns: list[tuple[str, list[Message]]]) -> None:
        """There is something already: most steps on nothing do nothing."""
        for key in "abc":
            self.create(key)
        for key, said in turns:
            self.append_turn(key, self.new_turn(said))

    @rule(key=KEYS, several=st.lists(messages(), min_size=1, max_size=3))
    def append(self, key: str, several: list[list[Message]]) -> None:
        """Turns come."""
        for said in several:
            self.append_turn(key, self.new_turn(said))

    def append_turn(self, key: str, turn: ModelTurn) -> None:
        """A turn comes to both."""
        self.same(
            lambda work: (
                workflows.append(work, key, turn.messages, turn_id=turn.id, kind=turn.kind, origin_key=turn.origin).seq
            ),
            lambda: self.model.append(key, turn, self.now),
        )

    @precondition(lambda self: self.turn)
    @rule(key=KEYS, data=st.data(), said=messages())
    def append_again(self, key: str, data: st.DataObject, said: list[Message]) -> None:
        """A turn comes a second time, or another under its id."""
        wanted = f"turn-{data.draw(st.integers(1, self.turn))}"
        stored = [t for c in self.model.all.values() for t in c.own.values() if t.id == wanted and t.kind != 2]
        same = bool(stored) and data.draw(st.booleans())
        self.append_turn(key, stored[0] if same else ModelTurn(wanted, 0, said))

    @rule(key=KEYS, origin=KEYS, kind=st.sampled_from([1, 10, 11]))
    def report(self, key: str, origin: str, kind: int) -> None:
        """Somebody reports, asks or plans."""
        turn = self.new_turn([{"role": "user", "content": "found it"}], kind, origin)
        self.append_turn(key, turn)

    @rule(parent=KEYS, child=KEYS, inherit=st.booleans(), back=st.none() | st.integers(-1, 9))
    def fork(self, parent: str, child: str, inherit: bool, back: int | None) -> None:
        """A conversation forks, here or some turns ago."""
        source = self.model.all.get(parent)
        at_seq = None if back is None or not inherit or source is None else source.next_seq - 1 - back

        def ours(work: UnitOfWork) -> None:
            made = workflows.fork(work, parent, child, inherit=inherit, at_seq=at_seq)
            self.model.all[child].fork_turn = made.fork_turn_id
            points = self.model.all[parent].own
            points[max(points)].id = str(made.fork_turn_id)

        self.same(ours, lambda: self.model.fork(parent, child, inherit, at_seq, "?", self.now))

    @rule(start=KEYS, steps=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9), messages()), max_size=4))
    def branch_again_and_again(self, start: str, steps: list[tuple[str, int | None, list[Message]]]) -> None:
        """Branches of branches, some from before their parent began."""
        here = start
        for child, back, said in steps:
            if here in self.model.all and child not in self.model.all:
                self.fork(here, child, True, back)
                if child in self.model.all:
                    self.append_turn(child, self.new_turn(said))
                    here = child

    @rule(key=KEYS, status=STATUSES)
    def set_status(self, key: str, status: str) -> None:
        """A status is set."""
        self.same(
            lambda work: workflows.set_status(work, key, status),
            lambda: self.model.change(key, self.now, status=status),
        )

    @rule(key=KEYS, summary=st.sampled_from(["", "the weather"]))
    def set_summary(self, key: str, summary: str) -> None:
        """A summary is set."""
        self.same(
            lambda work: workflows.set_summary(work, key, summary),
            lambda: self.model.change(key, self.now, summary=summary),
        )

    @rule(key=KEYS, back=st.integers(-1, 8), seen=st.none() | st.booleans(), contains=st.booleans())
    def compact(self, key: str, back: int, seen: bool | None, contains: bool) -> None:
        """A history is compacted up to some turn, by somebody who has seen the summary, or not, or another one."""
        conversation = self.model.all.get(key)
        before = self.model.effective(key) if conversation else ""
        up_to = (conversation.next_seq if conversation else 1) - 1 - back
        supersedes = None if seen is None else before if seen else f"{before}?"
        text = f"summary {self.turn} of {before}" if contains else f"summary {self.turn}"
        self.same(
            lambda work: history.compact(work, key, up_to, text, supersedes=supersedes).up_to_seq,
            lambda: self.model.compact(key, up_to, text, supersedes, self.now),
        )

    @rule(key=KEYS, keep=st.integers(0, 6))
    def compact_old_turns(self, key: str, keep: int) -> None:
        """All but the newest messages are compacted."""
        text = f"old {self.turn}"
        self.same(
            lambda work: history.compact_old_turns(work, key, keep, text).up_to_seq,
            lambda: self.model.compact_old(key, keep, text, self.now),
        )

    @rule(key=KEYS, keep=st.integers(0, 4), between=st.booleans())
    def plan_and_apply(self, key: str, keep: int, between: bool) -> None:
        """A compaction is planned, a turn comes, the plan is applied."""
        if key not in self.model.all:
            return
        with self.database.read() as work:
            plan = history.plan_compaction(work, key, keep)
        cut, hidden = self.model.cut(key, keep), self.model.all[key].compacted
        said = [m for seq, turn in self.model.history(key) if seq <= cut for m in turn.messages]
        assert (plan is None) == (cut == hidden or not said)
        if plan is None:
            return
        assert (plan.up_to_seq, plan.summary) == (cut, self.model.effective(key))
        if between:
            self.append_turn(key, self.new_turn([{"role": "user", "content": "meanwhile"}]))
        text = f"planned {self.turn}"
        self.same(
            lambda work: history.compact_plan(work, plan, text).up_to_seq,
            lambda: self.model.compact(key, cut, text, plan.summary, self.now),
        )

    @rule(key=KEYS, said=messages() | st.just([]), off=st.sampled_from([0, 1, 1, 1]))
    def replace_history(self, key: str, said: list[Message], off: int) -> None:
        """A whole history is replaced, by somebody who read it last, or did not."""
        expected = (self.model.all[key].next_seq if key in self.model.all else 1) - off
        turn = self.new_turn(said) if said else None
        self.same(
            lambda work: history.replace_history(
                work, key, said, expected_next_seq=expected, turn_id=turn.id if turn else None
            ),
            lambda: self.model.replace(key, turn, expected, self.now),
        )

    @rule(data=st.data(), backs=st.lists(st.sampled_from([0, 0, 1, 3]), max_size=3))
    def hide_and_delete(self, data: st.DataObject, backs: list[int]) -> None:
        """Histories are compacted while others still see them, and then one of these is deleted."""
        branches = [key for key, conversation in self.model.all.items() if conversation.inherited is not None]
        parents = [str(self.model.all[key].parent) for key in branches]
        key = data.draw(st.sampled_from([*branches, *branches, *parents]) if branches else KEYS)
        children: Any = data.draw(st.sampled_from(POLICIES))
        if key not in self.model.all:
            return
        family: list[str] = [*(owner for owner, _ in self.model.line(key)), *sorted(self.model.below(key))]
        for back, hidden in zip(cycle(backs), family, strict=False):
            self.compact(hidden, back, None, False)
        for at_work in sorted(self.model.below(key)):
            self.set_status(at_work, "completed")
        self.same(
            lambda work: bool(workflows.delete_conversation(work, key, children=children)),
            lambda: self.model.delete(key, children),
        )

    @rule(days=st.integers(0, 9), include=st.booleans(), dry_run=st.booleans())
    def prune(self, days: int, include: bool, dry_run: bool) -> None:
        """Whole stale trees go."""
        options: dict[str, Any] = {
            "older_than": timedelta(days=days),
            "include_imported": include,
            "now": self.now,
        }
        rehearsed = prune(self.database, dry_run=True, **options)
        if dry_run:
            return
        expected = self.model.prune(self.now, timedelta(days=days), include)
        done = prune(self.database, **options)

        assert {"deleted": done.deleted} | done.kept == {"deleted": 0} | expected
        assert (rehearsed.kept, rehearsed.deleted, rehearsed.deleted_turns) == (
            done.kept,
            done.deleted,
            done.deleted_turns,
        )

    @rule(key=KEYS, said=st.lists(messages(), max_size=3))
    def import_file(self, key: str, said: list[list[Message]]) -> None:
        """An old session file comes in, if nothing is stored under its key."""
        file = Path(self.directory.name) / f"{key}.json"
        document = {
            "key": key,
            "messages": [message for turn in said for message in turn],
            "created": "2026-11-20T09:00:00+09:00",
            "updated": "2026-11-21T09:00:00.5+09:00",
        }
        file.write_text(json.dumps(document), encoding="utf-8")
        there = self.model.all.get(key)
        before = [m for _, t in self.model.history(key) for m in t.messages] if there else None

        entry = import_sessions(self.database, self.directory.name, rename=False).entries[-1]

        file.unlink()
        if there is None or (there.next_seq == 1 and not there.summary and document["messages"]):
            assert entry.outcome == "imported"
            self.adopt_import(key)
        else:
            assert entry.outcome == ("already" if before == document["messages"] else "conflict") or (
                entry.outcome == "already" and there.imported is not None
            )

    def adopt_import(self, key: str) -> None:
        """Take over into the model what an import brought, once it is known to hold every message."""
        with self.database.read() as work:
            row = Conversations(work).get(key)
            turns = Turns(work).list_turns(key)
        fresh = ModelConversation(row.created_at, row.updated_at)
        there = self.model.all.get(key, fresh)
        there.created, there.updated, there.imported = row.created_at, row.updated_at, row.imported_at
        there.next_seq = len(turns) + 1
        there.own = {turn.seq: ModelTurn(turn.id, 0, turn.messages) for turn in turns}
        self.model.all[key] = there

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_database_holds_what_the_model_holds(self) -> None:
        """Every row of both tables, and every reading of one conversation that was touched."""
        with self.database.read() as work:
            rows = work.connection.exec_driver_sql(
                "SELECT key, parent_key, fork_turn_id, status, summary, next_seq, compacted_seq, inherited_seq, "
                "inherited_summary, updated_at FROM conversations"
            ).all()
            turns = work.connection.exec_driver_sql(
                "SELECT conversation_key, seq, kind, messages, message_count, origin_key FROM turns"
            ).all()
            expected = {
                key: (
                    *(c.parent, c.fork_turn, c.status, c.summary, c.next_seq, c.compacted, c.inherited),
                    *(c.inherited_summary, c.updated.isoformat(timespec="milliseconds")[:23] + "Z"),
                )
                for key, c in self.model.all.items()
            }
            assert {row[0]: tuple(row[1:]) for row in rows} == expected
            assert {(row[0], row[1]): (row[2], json.loads(row[3]), row[4], row[5]) for row in turns} == {
                (key, seq): (turn.kind, turn.messages, len(turn.messages), turn.origin)
                for key, conversation in self.model.all.items()
                for seq, turn in conversation.own.items()
            }
            for key in sorted(self.model.all)[self.turn % 3 :: 3]:
                self.compare_reading(work, key)

    def compare_reading(self, work: UnitOfWork, key: str) -> None:
        """Compare every way to read one conversation."""
        expected = self.model.history(key)
        turns = Turns(work)
        own = [seq for seq in sorted(self.model.all[key].own) if seq > self.model.all[key].compacted]
        view = history.provider_messages(work, key)

        assert [(turn.seq, turn.messages) for turn in turns.list_history(key)] == [(s, t.messages) for s, t in expected]
        assert [turn.seq for turn in turns.list_history(key, last=3)] == [seq for seq, _ in expected][-3:]
        assert [turn.seq for turn in turns.list_history(key, limit=2)] == [seq for seq, _ in expected][:2]
        assert [turn.seq for turn in turns.list_turns(key)] == own
        assert turns.count(key) == len(own)
        assert history.messages(work, key) == self.model.messages(key)
        assert view.messages == self.model.view(key)
        assert set(turns.line(key)) == {
            (owner, upper if upper < INFINITE else 2**62) for owner, upper in self.model.line(key)
        }


def test_the_database_never_differs_from_a_plain_model_of_the_rules() -> None:
    """SE-01 … SE-13, RT-03, RT-04: what each of them found was one order of steps that nobody had tried."""
    profile = settings(settings(), max_examples=max(40, settings().max_examples // 5), stateful_step_count=50)

    run_state_machine_as_test(Conversing, settings=profile)
