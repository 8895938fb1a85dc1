"""How far a long command is, shown on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Show: TypeAlias = Callable[[str, int | None, int | None], None]
"""Called with what is being done, how much of it is done, and how much it is in all (None: nobody knows)."""


@contextmanager
def progress(doing: str) -> Iterator[Show | None]:
    """Show on a terminal how far a command is, until the block ends; in a pipe there is nothing to show it to: None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(doing), total=None)

        def show(doing: str, done: int | None, total: int | None) -> None:
            bar.update(task, description=escape(doing), completed=done, total=total)

        yield show
