"""How Alembic's own command reaches the database in a checkout; `agentstate upgrade` does the same without this file.

One transaction around everything, begun IMMEDIATE, foreign keys off: all of that is `Database.change_schema`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from alembic.util import CommandError
from sqlalchemy.types import TypeDecorator

from agentstate.db.database import Database
from agentstate.db.files import Mode
from agentstate.db.schema import MIGRATION_OPTIONS, guard_data
from agentstate.db.state import schema_revision
from agentstate.errors import AgentStateError
from agentstate.metadata import metadata
from agentstate.settings import configured_target

ARGUMENTS = context.get_x_argument(as_dictionary=True)


def render_item(kind: str, item: Any, autogen_context: AutogenContext) -> str | Literal[False]:
    """Write the stored types of both engines into a new revision: a frozen revision imports nothing of ours."""
    if kind != "type" or not isinstance(item, TypeDecorator) or not type(item).__module__.startswith("agentstate."):
        return False
    # Not a real dialect: those answer with types of their own, which sqlalchemy does not export.
    engines: list[Any] = [
        SimpleNamespace(name=name, type_descriptor=lambda kind: kind) for name in ("sqlite", "postgresql")
    ]
    stored, variant = (f"sa.{item.load_dialect_impl(engine)!r}" for engine in engines)
    return stored if stored == variant else f'{stored}.with_variant({variant}, "postgresql")'


def run_offline() -> None:
    """Print the statements instead of running them."""
    dialect = str(ARGUMENTS.get("dialect", "sqlite"))
    context.configure(
        dialect_name=dialect, target_metadata=metadata, literal_binds=True, render_item=render_item, **MIGRATION_OPTIONS
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run the command in one transaction on the configured database."""
    target = str(ARGUMENTS["database"]) if "database" in ARGUMENTS else configured_target()
    try:
        run_on(target)
    except AgentStateError as error:
        raise CommandError(str(error)) from error


def run_on(target: str) -> None:
    """Run the command on that database, which an upgrade creates if it is missing."""
    command = getattr(getattr(context.config.cmd_opts, "cmd", (None,))[0], "__name__", "upgrade")
    mode: Mode = "rwc" if command in ("upgrade", "stamp") else "rw"
    with Database.open(target, mode) as database, database.change_schema() as connection:
        schema_revision(connection, database.name)  # raises for a database that is not ours, or has no version
        context.configure(connection=connection, target_metadata=metadata, render_item=render_item, **MIGRATION_OPTIONS)
        guard_data(context.get_context(), force=ARGUMENTS.get("force") == "yes")
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
