"""agentstate: the durable memory of AI-agent roles.

Scripts import `agentstate.adapter`. Code that wants more than the adapter opens a `Database` and uses an area's
repositories and workflows. Importing this package loads nothing; its public names load at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstate.db.database import Database as Database
    from agentstate.db.uow import UnitOfWork as UnitOfWork
    from agentstate.errors import AgentStateError as AgentStateError

__all__ = ["AgentStateError", "Database", "UnitOfWork", "__version__"]

_HOMES = {
    "AgentStateError": "agentstate.errors",
    "Database": "agentstate.db.database",
    "UnitOfWork": "agentstate.db.uow",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home module (PEP 562)."""
    import importlib

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("agentstate-db")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
