"""What tests of the schema on a server look at: every row, the catalog in one normal form, rows of each revision."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
from psycopg import sql

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.db.state import VERSION_TABLE
from agentstate.settings import Settings

Rows = dict[str, list[tuple[Any, ...]]]
Shape = dict[str, list[str]]

_COLUMNS = """
SELECT 'column ' || relname || '.' || attname, format_type(atttypid, atttypmod), collname, attnotnull,
       pg_get_expr(adbin, adrelid), attidentity::text, attgenerated::text
FROM pg_class
JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'alembic_version'
"""
_OTHERS = """
SELECT 'constraint ' || conname, conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> coalesce(to_regclass('alembic_version'), 0)
UNION ALL SELECT 'index ' || indexname, tablename, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename <> 'alembic_version'
UNION ALL SELECT 'relation ' || relname, relkind::text, '' FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind NOT IN ('i', 'I') AND relname <> 'alembic_version'
UNION ALL SELECT 'trigger ' || tgname, tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger
WHERE NOT tgisinternal
UNION ALL SELECT 'function ' || proname, '', pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'type ' || typname, typtype::text, '' FROM pg_type
WHERE typnamespace = 'public'::regnamespace AND typtype NOT IN ('c', 'b')
"""


def schema(url: str) -> list[tuple[Any, ...]]:
    """Return the whole schema but the version table, sorted: columns in whichever order they were added."""
    with psycopg.connect(url) as connection:
        return sorted(connection.execute(_COLUMNS).fetchall()) + sorted(connection.execute(_OTHERS).fetchall())


def shape(url: str) -> Shape:
    """Return the columns of every table but the version's."""
    found: Shape = {}
    for kind, *_ in schema(url):
        if kind.startswith("column "):
            table, column = kind.removeprefix("column ").split(".")
            found.setdefault(table, []).append(column)
    return found


def contents(url: str, known: Shape | None = None) -> Rows:
    """Return every row of every table but the version's, in a fixed order.

    `known` limits it to the tables and columns of an earlier shape: what an upgrade may not change.
    """
    found: Rows = {}
    with psycopg.connect(url) as connection:
        for table, columns in (shape(url) if known is None else known).items():
            statement = sql.SQL("SELECT {} FROM {}").format(
                sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table)
            )
            found[table] = sorted(connection.execute(statement).fetchall(), key=repr)
    return found


def version(url: str) -> list[str]:
    """Return the rows of the version table, or none when there is no such table."""
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass(%s)", (VERSION_TABLE,)).fetchone() == (None,):
            return []
        return [row[0] for row in connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()]


def state_of(url: str) -> tuple[list[tuple[Any, ...]], Rows, list[str]]:
    """Return all that may not change when a database is left alone."""
    return schema(url), contents(url), version(url)


def filled_at(url: str, revision: str) -> str:
    """Bring an empty database to a revision, put the rows of its frozen dump into it, and return the URL."""
    with Database.open(url, settings=Settings(busy_timeout=60)) as database:
        upgrade(database, revision)
    with closing(sqlite3.connect(":memory:")) as dump, psycopg.connect(url) as connection:
        dump.executescript((frozen.DIRECTORY / f"{revision}.sql").read_text(encoding="utf-8"))
        for table in sorted(shape(url)):
            rows = dump.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, names)),
                sql.SQL(", ").join([sql.Placeholder()] * len(names)),
            )
            with connection.cursor() as cursor:
                cursor.executemany(statement, rows.fetchall())
    return url
