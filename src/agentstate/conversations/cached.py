"""What a `LegacySessions` knows of one conversation and has not stored yet; there is no database in here."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass

from agentstate.clock import utc_now
from agentstate.conversations.models import new_turn_id
from agentstate.conversations.records import Message, TurnRecord
from agentstate.conversations.repositories.turns import History
from agentstate.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are stored as one turn under that id; `replaces`: in place of everything before them."""

    turn_id: str
    messages: list[Message]
    replaces: bool


class CachedConversation:
    """One conversation as this instance saw it last, and what it adds to it.

    Unsaved messages can still change. A batch whose commit was tried is frozen: nobody knows whether it is stored until
    it is tried again, same id and same messages, or is met in the database (LK-09).

    `gone`: there is no such conversation, or it has not been looked at. `next_seq` is what the conversation had when
    this instance last saw all of it: a replacement is stored only if that is still so (LK-04).
    """

    __slots__ = (
        "_awaited",
        "_compacted_seq",
        "_ids",
        "_last",
        "_messages",
        "_replaces",
        "_unclaimed",
        "_unsaved",
        "frozen",
        "gone",
        "next_seq",
    )

    def __init__(self) -> None:
        """Know nothing yet."""
        self.gone = True
        self.next_seq = 1
        self.frozen: Batch | None = None
        self._unsaved: list[Message] = []
        self._replaces = False
        self._awaited: list[Message] = []
        self._start_over()

    def _start_over(self) -> None:
        """Forget what is stored; what is not stored yet is kept."""
        self._messages: list[Message] = []
        self._compacted_seq = 0
        self._last: tuple[int, str] | None = None
        self._ids: set[str] = set()
        self._unclaimed: list[tuple[str, Message]] = []

    @property
    def replaced(self) -> bool:
        """Whether something unsaved replaces what is stored."""
        return self._replaces or (self.frozen is not None and self.frozen.replaces)

    @property
    def dirty(self) -> bool:
        """Whether there is anything to save."""
        return self._replaces or bool(self._unsaved) or self.frozen is not None

    def view(self) -> list[Message]:
        """Return a copy of all messages, stored and unsaved ones."""
        seen = self._messages
        if self.frozen is not None:
            seen = self.frozen.messages if self.frozen.replaces else seen + self.frozen.messages
        seen = self._unsaved if self._replaces else seen + self._unsaved
        copy: list[Message] = json.loads(json.dumps(seen))
        return copy

    # --- what is stored ----------------------------------------------------------------------------------------------

    @property
    def since(self) -> int:
        """The seq after which to read: the last turn known is read again, to see that it is still the same."""
        return 0 if self._last is None else self._last[0] - 1

    def follows(self, found: History[TurnRecord]) -> bool:
        """Return whether appends alone explain what was found after `since`; if not, all of it must be read.

        The last turn known must still be there: somebody may have deleted the conversation and begun another one.
        """
        if self.gone or self.replaced:
            return True
        same = self._last is None or (bool(found.turns) and found.turns[0].id == self._last[1])
        return same and found.compacted_seq == self._compacted_seq

    def knows(self, found: History[TurnRecord] | None) -> bool:
        """Return whether the conversation is the one known, and not another that others began under its key."""
        if found is None or self._last is None or found.compacted_seq >= self._last[0]:
            return found is not None
        return bool(found.turns) and found.turns[0].id == self._last[1]

    def forget(self) -> None:
        """Forget what is stored; a replacement is refused until all of it has been read."""
        self._start_over()
        self.next_seq = 0

    def take(self, found: History[TurnRecord] | None, *, whole: bool = False) -> None:
        """Learn what is stored now; `found` holds the turns after `since`, or `whole`, all of them.

        While something unsaved replaces all of it, nothing is learnt: the replacement was made from what was seen, and
        must not hide what was not.
        """
        if found is None:
            self._start_over()
            self.gone = True
            return
        if self.replaced:
            if found.next_seq == 1:  # made anew since, and nobody has written to it
                self._start_over()
                self.next_seq = 1
            self.gone = False
            return
        if whole:
            self._reread(found)
        else:
            self._meet(turn for turn in found.turns if self._last is None or turn.seq > self._last[0])
        if found.turns:
            self._last = (found.turns[-1].seq, found.turns[-1].id)
        self.next_seq, self._compacted_seq, self.gone = found.next_seq, found.compacted_seq, False

    def _reread(self, found: History[TurnRecord]) -> None:
        """Start over with all that is visible; what was known or claimed before stays so."""
        visible = {turn.id for turn in found.turns}
        unclaimed, known = [entry for entry in self._unclaimed if entry[0] in visible], self._ids
        self._start_over()
        self._unclaimed, self._ids = unclaimed, known & visible
        self._meet(found.turns)

    def _meet(self, turns: Iterable[TurnRecord]) -> None:
        for turn in turns:
            if self.frozen is not None and turn.id == self.frozen.turn_id:
                self.frozen = None
            elif turn.id not in self._ids:
                self._unclaimed += [(turn.id, message) for message in turn.messages]
            self._ids.add(turn.id)
            self._messages += turn.messages

    # --- what is not stored yet --------------------------------------------------------------------------------------

    def add(self, message: Message) -> None:
        """Add a message that is the cache's own, unless it is one that was claimed and is awaited."""
        if message in self._awaited:
            self._awaited.remove(message)
        else:
            self._unsaved.append(message)

    def replace(self, messages: list[Message]) -> None:
        """Put these messages, which are the cache's own, in place of all others."""
        self._unsaved, self._replaces = messages, True
        self._awaited.clear()

    def claim(self, count: int, direct: Container[str]) -> None:
        """Note that `count` messages of other writers are the caller's own, appended directly.

        The newest in the turns `direct` (ids) come first, then the newest of all. Each that is among the unsaved ones
        is not unsaved any more; the others are awaited, until the next save. Raises `InvalidValue` when others wrote
        fewer.
        """
        if count > len(self._unclaimed):
            raise InvalidValue(
                "n", f"{count} messages cannot have been appended directly, there are {len(self._unclaimed)} of others"
            )
        for _ in range(count):
            newest = max(range(len(self._unclaimed)), key=lambda at: (self._unclaimed[at][0] in direct, at))
            message = self._unclaimed.pop(newest)[1]
            places = [place for place, unsaved in enumerate(self._unsaved) if unsaved == message]
            if places:
                del self._unsaved[places[-1]]
            else:
                self._awaited.append(message)

    def next_batch(self, most: int | None) -> Batch | None:
        """Return what to store next, at most that many messages, or None when everything is stored."""
        if self.frozen is not None:
            return self.frozen
        if not self.dirty:
            return None
        return Batch(new_turn_id(utc_now()), self._unsaved[:most], self._replaces)

    def freeze(self, batch: Batch) -> None:
        """Keep the batch as it is from now on: its commit follows."""
        if self.frozen is None:
            self.frozen = batch
            self._unsaved, self._replaces = self._unsaved[len(batch.messages) :], False

    def settle(self, batch: Batch, seq: int | None) -> None:
        """Note that the batch is stored, as the turn `seq` (None: nothing but a replacement by nothing)."""
        self.frozen = None
        self._awaited.clear()
        if batch.replaces:
            self._start_over()
            self._compacted_seq = self.next_seq - 1
        if seq is None:
            return
        self._ids.add(batch.turn_id)
        if seq == self.next_seq:  # otherwise others were quicker, and the next look finds both
            self._messages += batch.messages
            self._last = (seq, batch.turn_id)
            self.next_seq = seq + 1
