"""How commands show things: tables to a person, tab-separated lines to a pipe, JSON when asked for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from agentstate.clock import utc_now
from agentstate.identity import UNSAFE_TO_SHOW
from agentstate.settings import configured_target

Function = TypeVar("Function", bound=Callable[..., Any])

_UNITS = ((86_400, "day", "days"), (3_600, "h", "h"), (60, "min", "min"))


class WithDefault(click.Group):
    """A group that lists when no command is named: `sessions --json` is `sessions list --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` before anything that is neither a command nor a call for help."""
        if not args or (
            args[0] not in self.commands and args[0] not in ctx.help_option_names and args[0].startswith("-")
        ):
            args.insert(0, "list")
        return super().parse_args(ctx, args)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print text to stdout or stderr in the encoding that they have; click would write UTF-8 to one of ASCII."""
    click.echo(text, file=sys.stderr if err else sys.stdout)


def say(text: str, *, err: bool = False) -> None:
    """Print a sentence in which names and paths may hold anything, on one line and safe to look at."""
    echo(UNSAFE_TO_SHOW.sub(lambda found: repr(found[0])[1:-1], text), err=err)


def target(database: str | None) -> str:
    """Return the database that the option names, or the configured one if the option is not there."""
    return configured_target() if database is None else database


def database_option(function: Function) -> Function:
    """Add `--database PATH_OR_URL` to a command."""
    text = "The database: a path or a URL. Without it: AGENT_DB_PATH or AGENT_DB_URL."
    return click.option("--database", metavar="PATH", default=None, help=text)(function)


def json_option(function: Function) -> Function:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(function)


def plain(value: object) -> Any:
    """Return a value as JSON knows it: records as objects, instants as 24-character UTC text."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def print_json(value: object) -> None:
    """Print a value as JSON, indented; non-ASCII is kept, what is not UTF-8 (a file's name) is escaped."""
    print_json_text(json.dumps(plain(value), ensure_ascii=False, indent=2))


def print_json_text(text: str) -> None:
    """Print JSON; where the output's encoding lacks a character, all beyond ASCII are escaped, as JSON allows."""
    escaped = re.compile("[\ud800-\udfff]" if _can_show(text) else "[^\x00-\x7f]")
    echo(escaped.sub(lambda found: json.dumps(found[0])[1:-1], text))


def print_json_error(name: str, message: str, facts: Mapping[str, object]) -> None:
    """Print an error as one JSON object in one line on stderr; facts that JSON lacks are told as text."""
    echo(json.dumps({"error": name, "message": message, **plain(facts)}, default=str), err=True)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows: a table on a terminal (`empty` when there are none), tab-separated lines in a pipe.

    On a terminal instants become ages, such as `3 min ago`; in a pipe they are 24-character UTC text, and a tab or
    newline within a value is written `\\t` or `\\n`, so that a line stays a row.
    """
    found = list(rows)
    if not sys.stdout.isatty():
        for row in found:
            echo("\t".join(_one_line(value) for value in row))
        return
    if not found:
        echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, header_style="bold", box=None, pad_edge=False)
    now = utc_now()
    for row in found:
        table.add_row(*(Text(ago(value, now) if isinstance(value, datetime) else _one_line(value)) for value in row))
    Console().print(table)


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values: aligned, texts on their lines and instants with their age on a terminal.

    In a pipe each is one line, name and value separated by a tab, escaped as in `print_rows`.
    """
    found = list(pairs)
    if not sys.stdout.isatty():
        for name, value in found:
            echo(f"{name}\t{_one_line(value)}")
        return
    width = max(len(name) for name, _ in found) + 2
    now = utc_now()
    for name, value in found:
        lines = [_one_line(line) for line in value.splitlines()] if isinstance(value, str) else [_one_line(value)]
        if isinstance(value, datetime):
            lines = [f"{lines[0]}  ({ago(value, now)})"]
        for number, line in enumerate(lines or [""]):
            echo(f"{'' if number else name:<{width}}{line}".rstrip())


def ago(moment: datetime, now: datetime) -> str:
    """Return an age as people say it: `just now`, `3 min ago`, `2 h ago`, `5 days ago`; `in 2 h` for the future."""
    seconds = int((now - moment) / timedelta(seconds=1))
    for size, one, many in _UNITS:
        count = abs(seconds) // size
        if count:
            words = f"{count} {one if count == 1 else many}"
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "just now"


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii", "surrogatepass")
    except UnicodeEncodeError:
        return False
    return True


def _one_line(value: object) -> str:
    if value is None:
        return "-"
    text = str(plain(value))
    return UNSAFE_TO_SHOW.sub(lambda found: repr(found[0])[1:-1], text.replace("\\", "\\\\"))
