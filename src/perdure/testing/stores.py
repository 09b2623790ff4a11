"""Stores for tests: opened on a virtual loop, and a place of its own for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from perdure.errors import StoreUnavailable
from perdure.ids import new_id
from perdure.store.base import Store
from perdure.testing.loop import VirtualClock, VirtualLoop
from perdure.testing.proxy import OutsideStore

T = TypeVar("T")

SQLITE = "sqlite"


@asynccontextmanager
async def opened_store(url: str) -> AsyncGenerator[Store]:
    """Open a store for a virtual loop: SQLite does everything on the spot, PostgreSQL in its own time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with loop.outside():
        store = await _open(url)
    try:
        yield store
    finally:
        await store.close()


async def _open(url: str) -> Store:
    if url.startswith("sqlite:"):
        from perdure.store.sqlite.store import open_sqlite

        # What is lost without a sync is lost when the power fails, and here only processes die.
        return await open_sqlite(f"{url}?synchronous=normal", clock=VirtualClock(), inline=True)
    from perdure.store.postgres.store import open_postgres

    store = await open_postgres(url, clock=VirtualClock())
    # Doors of a world do not wait for news, and the loop would not know that a task of the store's is waiting for the server.
    news: Any = store
    news._news = None
    return OutsideStore(store).as_store


@contextmanager
def scratch_store(where: str, folder: Path) -> Generator[str]:
    """Give the URL of an empty store: `sqlite` is a file in the folder, the URL of a PostgreSQL a schema of its own there.

    The schema is gone afterwards. Raises StoreUnavailable if it is neither.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if where == SQLITE:
        yield f"sqlite:///{folder / 'perdure.db'}"
        return
    if not where.startswith(("postgresql://", "postgres://")):
        raise StoreUnavailable(
            f"{where!r} names no store for tests. Write {SQLITE}, or postgresql://user@host/database."
        )
    schema = f"perdure_test_{new_id().replace('-', '')}"
    in_own_loop(_execute(where, f'CREATE SCHEMA "{schema}"'))
    try:
        mark = "&" if "?" in where else "?"
        yield f"{where}{mark}options={quote(f'-csearch_path={schema}', safe='')}"
    finally:
        in_own_loop(_execute(where, f'DROP SCHEMA "{schema}" CASCADE'))


async def _execute(url: str, statement: str) -> None:
    driver: Any = import_module("asyncpg")
    connection: Any = await driver.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in real time, for callers that may themselves be called on a loop."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()
