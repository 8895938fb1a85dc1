"""What a look at a database finds, and how it is put into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentstate.errors import AgentStateError

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

_NAMED = 3
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know: which check found it, how bad it is, what it is, and what to do.

    An error is something that is damaged, exposed, or does not work now; a warning will become one, or is work that
    stands still; a note could be better.
    """

    check: str
    severity: Severity
    what: str
    do: str


def of_error(check: str, error: AgentStateError) -> Finding:
    """Return what an error says as a finding: our messages name the fact first, and then, after `; `, what to do."""
    what, _, do = str(error).partition("; ")
    return Finding(check, "error", what, do or "correct that, then run 'agentstate doctor' again")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings in the order of their severity, otherwise as they came."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def some(values: Sequence[object], total: int | None = None) -> str:
    """Return the first three of some values for a sentence, and how many more of the `total` (None: as many as given).

    Bytes are shown as the text that they are meant to be, and what is long is cut.
    """
    more = (len(values) if total is None else total) - len(values[:_NAMED])
    return ", ".join(map(_shown, values[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun, `1 row` or `1,234 rows`."""
    return f"{number:,} {one if number == 1 else many}"


def size(count: int) -> str:
    """Return a number of bytes as people say it: `512 bytes`, `20.5 KiB`, `1.2 MiB`, `3.0 GiB`."""
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_of:
            return f"{count / bytes_of:.1f} {unit}"
    return f"{count} bytes"


def _shown(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
