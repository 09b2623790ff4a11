"""A whole database as data, read past the store: to see that nothing in it has changed."""

from __future__ import annotations

from typing import Any

import apsw
import asyncpg

Contents = dict[str, list[tuple[Any, ...]]]

_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
)
_POSTGRES_SCHEMA = (
    "SELECT table_name, ordinal_position, column_name, data_type, collation_name, is_nullable FROM information_schema.columns"
    " WHERE table_schema = 'public'",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
)
_SQLITE_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


async def contents_of(url: str) -> Contents:
    """Return the rows of every table."""
    return _of_sqlite(url) if url.startswith("sqlite") else await _of_postgres(url)


async def schema_of(url: str) -> set[tuple[Any, ...]]:
    """Return what the tables, views and indexes are made of."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return set(connection.execute("SELECT type, name, sql FROM sqlite_schema"))
        finally:
            connection.close()
    raw = await asyncpg.connect(url)
    try:
        return {tuple(row) for query in _POSTGRES_SCHEMA for row in await raw.fetch(query)}
    finally:
        await raw.close()


def _of_sqlite(url: str) -> Contents:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        with connection:
            names = sorted(name for (name,) in connection.execute(_SQLITE_TABLES))
            return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    finally:
        connection.close()


async def _of_postgres(url: str) -> Contents:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            names = sorted(row[0] for row in await connection.fetch(_POSTGRES_TABLES))
            found = {name: await connection.fetch(f"SELECT * FROM {name}") for name in names}
            return {name: sorted((tuple(row) for row in rows), key=repr) for name, rows in found.items()}
    finally:
        await connection.close()
