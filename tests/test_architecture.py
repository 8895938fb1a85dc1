"""The laws of the house, each with the accident that it comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentstate import errors, metadata
from agentstate.db.base import Base
from agentstate.db.schema import migrations_directory, script_directory
from builders import ROOT

SOURCE = ROOT / "src" / "agentstate"
FILES = sorted(SOURCE.rglob("*.py"))
REVISION_FILES = sorted((ROOT / "migrations" / "versions").glob("*.py"))

BOTTOM = {"errors", "clock", "settings", "_lazy", "identity"}
AREAS = {"roles", "approvals", "conversations"}
ENTRANCES = {"adapter", "cli"}
OVER_AREAS = {"metadata", "doctor", "retention"}


def layer(path: Path) -> str:
    """Return the first part of a module's name below agentstate."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports anywhere, `agentstate.` ones and others."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def ours(path: Path) -> set[str]:
    """Return the layers of agentstate that a file imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("agentstate.")}


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name of every function or method called, and its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute | ast.Name):
                yield called.attr if isinstance(called, ast.Attribute) else called.id, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    """Files grew until nobody read them whole, and rules were written a second time elsewhere."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    """Areas that know each other can be changed only together, and a script of one area loaded them all."""
    here = layer(path)
    if here in BOTTOM:
        allowed = BOTTOM
    elif here == "db":
        allowed = BOTTOM | {"db"}
    elif here in AREAS:
        allowed = BOTTOM | {"db", here}
    elif here in OVER_AREAS:
        allowed = BOTTOM | {"db"} | AREAS | OVER_AREAS
    elif here in ENTRANCES:
        allowed = BOTTOM | {"db"} | AREAS | OVER_AREAS | {here}
    else:
        assert here == "__init__", f"{path} is in no layer"
        allowed = BOTTOM | {"db"}

    assert ours(path) <= allowed


def test_errors_import_nothing_of_ours() -> None:
    """Whoever catches an error must be able to import it without the rest."""
    assert {name for path in (SOURCE / "errors").glob("*.py") for name in ours(path)} == {"errors"}


def test_only_units_of_work_begin_commit_and_roll_back() -> None:
    """A commit in the middle of somebody's transaction left half a record (AP-09)."""
    found = {
        str(path.relative_to(SOURCE))
        for path in FILES
        for name, _ in calls(path)
        if name in {"begin", "commit", "rollback", "begin_nested"}
    }

    assert found <= {"db/uow.py", "db/database.py"}
    assert [name for name, _ in calls(SOURCE / "db" / "database.py") if name in {"commit", "rollback"}] == []


def test_only_the_engine_module_creates_engines() -> None:
    """An engine made elsewhere ran without foreign keys and timeouts (CN-05)."""
    found = {
        str(path.relative_to(SOURCE)) for path in FILES for name, _ in calls(path) if name.startswith("create_engine")
    }

    assert found == {"db/engine.py"}


def test_only_settings_read_the_environment() -> None:
    """A variable read in two places was trimmed in one of them."""
    found = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if re.search(r"os\.environ|getenv", path.read_text(encoding="utf-8"))
    }

    assert found == {"settings.py"}


def test_only_the_clock_reads_clocks() -> None:
    """A naive local time was compared with UTC (TM-02)."""
    pattern = r"\btime\.(time|monotonic|sleep)\(|datetime\.(now|utcnow|today)\(|date\.today\("
    # Advice in a message is not a call.
    found = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if re.search(pattern, path.read_text(encoding="utf-8").replace("such as datetime.now(UTC)", ""))
    }

    assert found == {"clock.py"}


def test_only_the_schema_module_knows_alembic() -> None:
    """Alembic on the way to a normal call cost every script 50 ms."""
    found = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if any(name == "alembic" or name.startswith("alembic.") for name in imports(path))
    }

    assert found == {"db/schema.py"}


def test_no_foreign_key_and_no_relationship_leaves_its_area() -> None:
    """Areas that refer to each other's rows cannot be pruned apart."""
    area_of = {
        mapper.local_table.name: mapper.class_.__module__.split(".")[1]  # type: ignore[attr-defined]
        for mapper in Base.registry.mappers
    }

    crossing = [
        f"{table.name} → {key.column.table.name}"
        for table in Base.metadata.tables.values()
        for key in table.foreign_keys
        if area_of[table.name] != area_of[key.column.table.name]
    ]

    assert crossing == []
    assert [mapper.relationships.keys() for mapper in Base.registry.mappers if mapper.relationships.keys()] == []


def test_the_metadata_module_knows_every_area() -> None:
    """A table that is not in the one list is never compared with the migrations."""
    with_models = {path.parent.name for path in SOURCE.glob("*/models.py")}

    assert with_models == AREAS
    assert {area.__name__.split(".")[1] for area in metadata.AREAS} == AREAS


def test_every_column_says_its_own_name_and_uses_our_types() -> None:
    """A value refused under another field's name sends a person to the wrong place."""
    columns = [column for table in Base.metadata.tables.values() for column in table.columns]

    assert [str(column) for column in columns if not type(column.type).__module__.startswith("agentstate.db")] == []
    assert [str(column) for column in columns if getattr(column.type, "field", None) != column.name] == []


def test_constraint_names_come_from_the_convention() -> None:
    """MG-02: an unnamed constraint is lost in a rebuild."""
    names = [str(constraint.name) for table in Base.metadata.tables.values() for constraint in table.constraints]

    assert [name for name in names if not re.match(r"(pk|fk|uq|ix|ck)_", name)] == []
    for path in (SOURCE / area / "models.py" for area in AREAS):
        assert "name=" not in path.read_text(encoding="utf-8")


def test_there_is_one_line_of_history() -> None:
    """MG-09: two branches with one parent stopped every install at its start."""
    script = script_directory()

    assert len(script.get_heads()) == 1
    assert len(script.get_bases()) == 1
    assert migrations_directory() == ROOT / "migrations"


@pytest.mark.parametrize("path", REVISION_FILES, ids=lambda path: path.stem)
def test_a_revision_is_frozen_and_named_by_its_number(path: Path) -> None:
    """A revision that imported a model did something else a year later."""
    module = ast.parse(path.read_text(encoding="utf-8"))

    assert re.fullmatch(r"\d{4}_[a-z0-9_]+", path.stem)
    assert f'revision = "{path.stem[:4]}"' in path.read_text(encoding="utf-8")
    assert [name for name in imports(path) if name.startswith("agentstate")] == []
    assert (ast.get_docstring(module) or "").partition("\n")[0].endswith(".")


def test_every_public_function_says_its_outcome_first() -> None:
    """A caller should not have to read the body."""
    silent = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not _first_line_is_a_sentence(node)
        and not _local(path, node)
    ]

    assert silent == []


def test_every_error_is_in_the_tree() -> None:
    """An error that is drawn nowhere is caught nowhere."""
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    defined = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert drawn == defined - {"AgentStateError"}


def _first_line_is_a_sentence(node: ast.FunctionDef | ast.ClassDef) -> bool:
    text = ast.get_docstring(node) or ""
    return bool(text) and text.partition("\n\n")[0].rstrip().endswith((".", ":"))


def _local(path: Path, node: ast.AST) -> bool:
    """Return whether the definition lies inside a function, where nobody else can call it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(outer, ast.FunctionDef) and outer.lineno < node.lineno <= (outer.end_lineno or 0)  # type: ignore[attr-defined]
        for outer in ast.walk(tree)
    )
