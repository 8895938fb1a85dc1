"""Modules that load at their first use, until Python 3.15's `lazy import` is the floor.

A cold start is the product's cost: a script that imports the adapter and asks nothing must not pay for SQLAlchemy.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import Any


class LazyModule:
    """Stand in for a module and import it when one of its names is first used."""

    def __init__(self, name: str) -> None:
        """Name the module, as in `import name`; nothing is imported yet."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return the module's attribute, importing the module if this is its first use."""
        value = getattr(_imported(self._name), attribute)
        # Kept on the instance: the next use is an ordinary attribute and does not come here again.
        setattr(self, attribute, value)
        return value


def _imported(name: str) -> ModuleType:
    """Import a module without a garbage collection on the way: what a module makes stays, and looking at it is waste.

    Collecting 120 times while SQLAlchemy loads, and once over all of it soon after, takes a sixth of a cold start. What
    was made is moved to the oldest generation at the end, unless the host froze objects of its own there.
    """
    if not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
