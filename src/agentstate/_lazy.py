"""Modules that load at their first use, until Python 3.15's `lazy import` is the floor.

A cold start is the product's cost: a script that imports the adapter and asks nothing must not pay for SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stand in for a module and import it when one of its names is first used."""

    def __init__(self, name: str) -> None:
        """Name the module, as in `import name`; nothing is imported yet."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return the module's attribute, importing the module if this is its first use."""
        value = getattr(importlib.import_module(self._name), attribute)
        # Kept on the instance: the next use is an ordinary attribute and does not come here again.
        setattr(self, attribute, value)
        return value
