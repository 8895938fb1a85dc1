"""Times as the original program wrote them: RFC 3339 with nine digits, and a year 1 that means 'never'."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

TIME_GUESSED = "time_guessed"
"""The flag of what was imported with a time that is not its own."""

_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, after which there is no datetime; file systems go on."""


def read_time(value: object) -> datetime | None:
    """Return the instant that an RFC 3339 text means, in UTC, cut to milliseconds (IM-08).

    Any offset and any number of digits of a second are understood. None for what is no such text, and for the year 1,
    which the original wrote where it had no time.
    """
    found = _RFC_3339.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    fraction, sign, hours, minutes = found.groups()[6:]
    microsecond = int((fraction or "")[:3].ljust(3, "0")) * 1000
    try:
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        zone = timezone(-offset if sign == "-" else offset)
        instant = datetime(year, month, day, hour, minute, second, microsecond, zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return None if instant.year == 1 else instant


def lifetime(created: datetime | None, updated: datetime | None, mtime: float) -> tuple[datetime, datetime, bool]:
    """Return when something was made and last used, and whether that was guessed.

    A time that is missing (None) is taken from the other one, and if both are, from the file's `mtime` (seconds since
    1970); never from the present, which would make the oldest history the newest. The last use is not before the first.
    """
    first = created or updated or from_seconds(min(mtime, _LAST_SECOND))
    return first, max(first, updated or first), created is None or updated is None


def from_seconds(seconds: float) -> datetime:
    """Return the instant so many seconds after 1970, cut to milliseconds; raises ValueError or OverflowError."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=seconds * 1000 // 1)
