"""The one reader of clocks: everything else is given its time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_SHORTEST_REST = 0.005
_LONGEST_REST = 0.1


def utc_now() -> datetime:
    """Return the current instant as aware UTC, cut to the milliseconds that are stored.

    Cut here, so that the value in hand equals the one read back later.
    """
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def monotonic() -> float:
    """Return seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Wait for that many seconds, outside any transaction."""
    time.sleep(seconds)


def rest_after(work: float) -> None:
    """Wait as long as a piece of work took, in seconds, but 5 to 100 ms: others take their turn before the next piece.

    Outside any transaction. SQLite queues nobody: who waits for the lock asks for it again and again, and must find it
    free (LK-07).
    """
    pause(min(max(work, _SHORTEST_REST), _LONGEST_REST))


def earlier(instant: datetime, age: timedelta) -> datetime:
    """Return the instant that lies `age` before an aware one, or the first there is where that would be before all."""
    try:
        return instant - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
