"""Every operation beside its floor: the same statements on the standard library's sqlite3, in one process run.

    make bench
    PYTHONPATH=benchmarks python -m bench roles --rounds 200 --json

Each other file here is one area. It has `ROUNDS`, how often each of its operations runs, and `operations(bench)`, which
returns triples (name, ours, floor): `ours` does the thing through the adapter, `floor` as cheaply as it can be done.
The two take turns, so that what disturbs the machine disturbs both: ratios hold where times alone do not. A file may
also have `facts(bench)`, pairs of a name and what was seen: what is counted and not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeAlias

import sqlalchemy

from agentstate.db.database import Database
from agentstate.db.schema import upgrade

Operation: TypeAlias = "tuple[str, Callable[[], object], Callable[[], object]]"

CHECKOUT = Path(__file__).resolve().parents[1]
AREAS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "bench"))
COLUMNS = ("area", "operation", "ours ms", "floor ms", "ratio", "rounds")


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of both sides in milliseconds, and how many times the floor ours takes."""

    area: str
    operation: str
    ours_ms: float
    floor_ms: float
    ratio: float
    rounds: int


class Floor:
    """One connection of the standard library, prepared as ours are; transactions are written out, as ours are."""

    def __init__(self, path: Path) -> None:
        """Connect to a database at head, which is in WAL mode already."""
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.execute = self._connection.execute
        self.executemany = self._connection.executemany
        self.execute("PRAGMA foreign_keys = ON")
        self.execute("PRAGMA synchronous = FULL")
        if self.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            raise SystemExit(f"{path} is not in WAL mode: the floor would measure something else")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Begin a writing transaction and commit it."""
        self.execute("BEGIN IMMEDIATE")
        yield
        self.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Begin a reading transaction and end it."""
        self.execute("BEGIN")
        yield
        self.execute("ROLLBACK")

    @staticmethod
    def now() -> str:
        """Return the stored form of the current time: a row that does not change would not be written at all."""
        return datetime.now(UTC).isoformat(timespec="milliseconds")[:23] + "Z"

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Bench:
    """What an area is given: a directory of its own on the disk that is measured, and databases in it."""

    def __init__(self, directory: Path) -> None:
        """Work in an existing, empty directory."""
        self.directory = directory
        self._endings: list[Callable[[], object]] = []

    def at_the_end(self, ending: Callable[[], object]) -> None:
        """Have something called when the area is measured, the last one first."""
        self._endings.append(ending)

    def database(self, name: str = "ours.db") -> Path:
        """Make a database at head, name it to the adapter as scripts do (AGENT_DB_PATH), and return its path."""
        path = self.directory / name
        with Database.open(path, "rwc") as database:
            upgrade(database)
        os.environ["AGENT_DB_PATH"] = str(path)
        return path

    def floor(self) -> Floor:
        """Make a second database of the same kind and return a connection to it."""
        named = os.environ.get("AGENT_DB_PATH")
        floor = Floor(self.database("floor.db"))
        self.at_the_end(floor.close)
        if named is not None:
            os.environ["AGENT_DB_PATH"] = named
        return floor

    def close(self) -> None:
        """End what was begun for the area."""
        for ending in reversed(self._endings):
            ending()


def measure(area: str, operation: Operation, rounds: int) -> Result:
    """Run both sides in turn, another one first in every round, and return their medians.

    Each side runs once before the clock does; both must then have answered the same.
    """
    name, *sides = operation
    ours, floor = (side() for side in sides)
    if ours != floor:
        raise SystemExit(f"{name}: ours answers {ours!r} and the floor {floor!r}, so they do not do the same")
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        if number % max(1, rounds // 20) == 0:
            show_progress(f"{area}: {name} … {number * 100 // rounds} %")
        for side in (number % 2, 1 - number % 2):
            start = perf_counter()
            sides[side]()
            times[side].append(perf_counter() - start)
    show_progress("")
    one, other = (median(found) * 1_000 for found in times)
    return Result(area, name, round(one, 4), round(other, 4), round(one / other, 3), rounds)


def show_progress(text: str) -> None:
    """Say on a terminal what is being measured, in place of what was said before; say nothing in a pipe."""
    if sys.stderr.isatty():
        print(f"\r{text[:78]:78}\r", end="", file=sys.stderr, flush=True)


def file_system(directory: Path) -> str:
    """Return the kind of file system that a directory lies on, "unknown" where the kernel does not list its mounts."""
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return kind
    for _, point, found, *_ in map(str.split, lines):
        if directory.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def run(areas: Sequence[str], directory: Path, rounds: int | None) -> tuple[list[Result], dict[str, str]]:
    """Measure the operations of the areas, each area in a directory of its own; `rounds` None: as the areas say.

    Returns the results, and the facts by name.
    """
    results: list[Result] = []
    facts: dict[str, str] = {}
    for area in areas:
        module = import_module(area)
        place = directory / area
        place.mkdir()
        bench = Bench(place)
        results += [measure(area, operation, rounds or module.ROUNDS) for operation in module.operations(bench)]
        facts |= dict(module.facts(bench) if hasattr(module, "facts") else [])
        bench.close()
    return results, facts


def print_table(results: Sequence[Result]) -> None:
    """Print the results: aligned columns on a terminal, tab-separated lines in a pipe."""
    rows = [COLUMNS] + [
        (r.area, r.operation, f"{r.ours_ms:.3f}", f"{r.floor_ms:.3f}", f"{r.ratio:.2f}", str(r.rounds)) for r in results
    ]
    if not sys.stdout.isatty():
        print(*("\t".join(row) for row in rows), sep="\n")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [f"{cell:{'<' if n < 2 else '>'}{widths[n]}}" for n, cell in enumerate(row)]
        print("  ".join(padded).rstrip())


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure every operation beside its floor.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"some of {', '.join(AREAS)}; without: all")
    parser.add_argument("--rounds", type=int, help="how often each operation runs; without: as its area says")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument("--directory", type=Path, default=CHECKOUT, help="where the databases are; without: here")
    options = parser.parse_args()
    unknown = sorted(set(options.areas) - set(AREAS))
    if unknown:
        parser.error(f"no area is called {', '.join(unknown)}; there are {', '.join(AREAS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not options.directory.is_dir():
        parser.error(f"--directory: {options.directory} is not a directory")
    for name in [name for name in os.environ if name.startswith("AGENT")]:
        del os.environ[name]  # both sides run with the defaults
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory.resolve()) as directory:
        conditions = {
            "databases in": f"{directory} ({file_system(Path(directory))})",
            "versions": f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
            f"SQLAlchemy {sqlalchemy.__version__}",
        }
        results, facts = run(options.areas or AREAS, Path(directory), options.rounds)
    if options.json:
        print(
            json.dumps({**conditions, "facts": facts, "operations": [asdict(result) for result in results]}, indent=2)
        )
        return
    print_table(results)
    print(*(f"{key}: {value}" for key, value in (facts | conditions).items()), sep="\n")


if __name__ == "__main__":
    main()
