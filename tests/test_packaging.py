"""What is built is whole: installed into a clean environment, without a checkout, it makes and shows a database."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builders import ROOT, sql
from migration_helpers import REVISION_NUMBERS, version

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

# An environment on another machine, and pip's own resolving of dependencies over a network, are left to the release.

NAMES = [path.name for path in sorted((ROOT / "migrations" / "versions").glob("*.py"))]


def ran(*command: str | Path, cwd: Path | str = "/", **environment: str) -> str:
    """Run a command without HOME, in the root directory unless told otherwise; return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it and so from nothing else; no network is used."""
    target = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, ROOT, cwd=target)
    (wheel,) = target.glob("*.whl")
    (sdist,) = target.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def needed(name: str, found: dict[str, Distribution]) -> None:
    """Collect what a distribution declares that it needs, and what that needs."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        canonical = canonicalize_name(requirement.name)
        if canonical not in found:
            found[canonical] = distribution(canonical)
            needed(canonical, found)


def clean_environment(at: Path) -> Path:
    """Make an environment that holds the declared dependencies, linked, and nothing else; return its site-packages."""
    venv.create(at, with_pip=False, symlinks=True)
    (packages,) = at.glob("lib/python*/site-packages")
    dependencies: dict[str, Distribution] = {}
    needed("agentstate-db", dependencies)
    for dependency in dependencies.values():
        for entry in {file.parts[0] for file in dependency.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            (packages / entry).symlink_to(Path(str(dependency.locate_file(entry))))
    return packages


def snapshot(directory: Path) -> dict[str, int]:
    """Return every path of ours in site-packages with its time of change."""
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for ours in directory.glob("agentstate*")
        for path in [ours, *ours.rglob("*")]
    }


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_installed_package_upgrades_and_shows_a_database_anywhere(
    kind: str, built: dict[str, Path], tmp_path: Path
) -> None:
    """MG-08, foundation acceptance 2: cwd is /, HOME is unset, site-packages is read-only, there is no checkout."""
    packages = clean_environment(tmp_path / "env")
    interpreter = tmp_path / "env" / "bin" / "python"
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    build_tools = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))}
    ran(
        sys.executable,
        *("-m", "pip", "--python", interpreter, "install", *offline, built[kind]),
        **(build_tools if kind == "sdist" else {}),
    )
    before = snapshot(packages)
    for name in ["", *before]:
        (packages / name).chmod((packages / name).stat().st_mode & ~0o222)
    command, database = tmp_path / "env" / "bin" / "agentstate", tmp_path / "state" / "agent.db"
    database.parent.mkdir(mode=0o700)

    where = ran(interpreter, "-c", "import agentstate; print(agentstate.__file__)")
    upgraded = ran(command, "upgrade", AGENT_DB_PATH=str(database))
    shown = ran(command, "status", AGENT_DB_PATH=str(database))
    found = ran(command, "doctor", AGENT_DB_PATH=str(database))
    printed = ran(command, "upgrade", "--sql", AGENT_DB_PATH=str(tmp_path / "none.db"))
    after = snapshot(packages)
    for name in ["", *before]:
        (packages / name).chmod(0o700)  # so that the directory can be removed again

    assert where.startswith(str(packages))
    assert f"to {REVISION_NUMBERS[-1]}" in upgraded
    assert "at head" in shown
    assert found == ""
    assert "CREATE TABLE sessions" in printed
    assert version(database) == [REVISION_NUMBERS[-1]]
    assert sql(database, "SELECT count(*) FROM sessions") == [(0,)]
    assert after == before


def test_the_wheel_lists_every_revision_and_nothing_that_is_not_ours(built: dict[str, Path]) -> None:
    """MG-08: the version files were missing; what the builder's machine had compiled or written was not."""
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()

    versions = [name.rpartition("/")[2] for name in names if name.startswith("agentstate/migrations/versions/")]
    assert sorted(versions) == NAMES
    assert {name.partition("/")[0] for name in names} == {"agentstate", f"{built['wheel'].name[:-17]}.dist-info"}
    assert not [name for name in names if name.endswith((".pyc", ".db")) or "__pycache__" in name]
    assert {"agentstate/py.typed", "agentstate/migrations/env.py"} <= set(names)


def test_the_sdist_holds_what_a_maintainer_needs_to_build_and_test(built: dict[str, Path]) -> None:
    """MG-08: a distribution's packager runs the tests from the sdist, frozen databases included."""
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {f"migrations/versions/{name}" for name in NAMES} <= names
    assert {f"tests/migrations/frozen/{revision}.sql" for revision in REVISION_NUMBERS} <= names
    assert {"alembic.ini", "pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".db"))]
