"""Keeping connections out of forked child processes (CN-01).

SQLite remembers per process which locks it holds on a file. A child of `os.fork()` inherits that memory without the
locks: a connection that it opens to the same file seems locked and is not, and what it commits is lost when the parent
closes the database. So idle connections are closed before a fork. One that is in use at that moment stays the
parent's: in the child it does nothing, and its file cannot be opened there.

A connection to a server is a socket, and a word that the child says there, be it only a rollback or a farewell, is
taken for the parent's. In the child it leads nowhere; the child opens connections of its own.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import threading
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine

from agentstate.errors import DatabaseUnavailable

_guard = threading.RLock()
_connections: WeakSet[OwnConnection] = WeakSet()
_engines: WeakSet[Engine] = WeakSet()
_server_connections: WeakSet[Any] = WeakSet()
_left_to_parent: set[str] = set()


class OwnConnection(sqlite3.Connection):
    """A connection to the file at `path`, opened by this process."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        self.path = path
        with _guard:
            if path in _left_to_parent:
                raise refusal(path)
            _connections.add(self)
        try:
            super().__init__(*arguments, **options)
        except BaseException:
            _connections.discard(self)
            raise

    def close(self) -> None:
        """Close it, so that a fork need not think of it."""
        super().close()
        _connections.discard(self)


class _ParentsConnection(OwnConnection):
    """What a connection becomes in a child process that inherited it while it was in use."""

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """Raise `DatabaseUnavailable`: statements are the parent's."""
        raise refusal(self.path)

    def commit(self) -> None:
        """Raise `DatabaseUnavailable`: the transaction is the parent's."""
        raise refusal(self.path)

    def rollback(self) -> None:
        """Leave the transaction to the parent."""

    def close(self) -> None:
        """Leave the connection to the parent."""


def close_idle_before_fork(engine: Engine) -> None:
    """Have the engine's idle connections closed before every fork; it opens new ones as they are needed."""
    with _guard:
        _engines.add(engine)


def cut_off_in_children(connection: Any) -> None:
    """Have a connection to a server (of psycopg) lead nowhere in every child process."""
    with _guard:
        _server_connections.add(connection)


def refusal(path: str) -> DatabaseUnavailable:
    """Return the error for a child process that uses a connection of its parent."""
    return DatabaseUnavailable(
        path,
        "this process was forked while its parent had a unit of work open there; fork outside of units of work, "
        "or start the process anew (multiprocessing: 'spawn' or 'forkserver')",
    )


def _before() -> None:
    _guard.acquire()
    for engine in list(_engines):
        engine.pool.dispose()


def _after_in_parent() -> None:
    _guard.release()


def _after_in_child() -> None:
    global _guard
    _guard = threading.RLock()
    for connection in list(_connections):
        connection.__class__ = _ParentsConnection
        _left_to_parent.add(connection.path)
        if sys.implementation.name == "cpython":
            # Not even the end of the interpreter may close it: that would roll the parent's transaction back.
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _connections.clear()
    _cut_off()


def _cut_off() -> None:
    nowhere, other_end = socket.socketpair()
    other_end.close()
    for connection in list(_server_connections):
        if not connection.closed:
            os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)
    nowhere.close()
    _server_connections.clear()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
