"""The one reader of clocks: everything else is given its time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


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
