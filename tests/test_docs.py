"""What the documents say is run: every command of a console block, with its output, and every Python block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.cli.main import COMMANDS
from agentstate.metadata import metadata
from builders import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUNNABLE = [page for page in PAGES if re.search(r"^```console$", page.read_text(encoding="utf-8"), re.MULTILINE)]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "migrations" / "README.md"]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the page's code blocks in order, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def steps(page: Path) -> list[tuple[str, str | None]]:
    """Return what a reader types, in order, each with the output promised (None: nothing is said about it)."""
    found: list[tuple[str, str | None]] = []
    for language, text in blocks(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
        elif language == "python":
            found.append((f"python - <<'PYTHON'\n{text}PYTHON", None))
    return found


def sqlite3_for(folder: Path) -> Path:
    """Return a folder with a stand-in for sqlite3, last on PATH: a machine may have only Python's module."""
    stand_in = folder / "bin" / "sqlite3"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "for row in connection.execute(sys.argv[2]):\n"
        "    print('|'.join('' if value is None else str(value) for value in row))\n"
        "connection.commit()\n"
        "connection.close()\n"
    )
    stand_in.chmod(0o755)
    return stand_in.parent


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_every_command_of_a_page_does_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """A newcomer who types what is written must see what is written."""
    expected = steps(page)
    script = "\n".join(f"echo '<<<{number}>>>'\n{command}" for number, (command, _) in enumerate(expected))

    place = tmp_path / "place"
    place.mkdir()

    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{sqlite3_for(tmp_path)}",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )

    parts = re.split(r"^<<<\d+>>>\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(expected), done.stderr
    for (command, promised), shown in zip(expected, parts, strict=True):
        if promised is None:
            continue
        pattern = ".*?".join(re.escape(piece) for piece in promised.rstrip("\n").split("…"))
        assert re.fullmatch(pattern, shown.rstrip("\n"), re.DOTALL), f"$ {command}\n{shown}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


def test_the_readme_names_every_table() -> None:
    """A table that the map does not show is found by nobody."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert [name for name in metadata.tables if f"`{name}`" not in text] == []


def test_every_adapter_function_is_documented() -> None:
    """What scripts call is looked up in the area's page."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    public = [
        name
        for name, value in vars(adapter).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == adapter.__name__
    ]

    assert len(public) >= 18
    assert [name for name in public if f"{name}(" not in text] == []


def test_every_command_is_documented() -> None:
    """An operator reads before typing."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert [name for name in COMMANDS if f"agentstate {name}" not in text] == []


def test_the_make_targets_of_the_readme_exist() -> None:
    """The two commands are the first thing that anybody types."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?m)(?:^|`)make (\w+)", "".join(page.read_text(encoding="utf-8") for page in LINKED)))

    assert {"demo", "test"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_every_link_leads_to_a_file() -> None:
    """A moved page leaves dead links behind."""
    dead = [
        f"{page.name}: {target}"
        for page in LINKED
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert dead == []


def test_every_make_target_says_what_it_does() -> None:
    """`make` alone is how a newcomer looks around."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]

    described = set(re.findall(r"^(\w+):.*## ", makefile, re.MULTILINE))

    assert targets == described
