"""Stores and places for blobs: every test that asks for one runs on each kind, and leaves behind runs that obey the law."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.journal.projection import fold
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, FolderBlobs, open_blobs
from perdure.store.opening import open_store
from perdure.store.postgres.store import PostgresStore, open_postgres
from perdure.store.shapes import RunFilter
from tests.servers import Server
from tests.store.builders import save_workflow

OpenStore = Callable[..., Awaitable[Store]]


@pytest.fixture(params=["sqlite", "postgres", pytest.param("serializable", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind. `serializable` is PostgreSQL with that isolation as its default."""
    if request.param != "serializable":
        return request.getfixturevalue(f"{request.param}_url")
    url: str = request.getfixturevalue("postgres_url")
    server: Server = request.getfixturevalue("postgres_server")
    database = urlsplit(url).path.removeprefix("/")
    server.psql(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    return url


@pytest.fixture
async def open_another(url: str) -> AsyncIterator[OpenStore]:
    """Opens stores on the same database, as other processes would. They are closed at the end."""
    opened: list[Store] = []

    async def open_one(**options: str) -> Store:
        opened.append(await open_store(url, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def unverified_store(open_another: OpenStore) -> Store:
    """A store that holds the workflow to which runs refer."""
    store = await open_another()
    await save_workflow(store)
    return store


@pytest.fixture
async def store(unverified_store: Store) -> AsyncIterator[Store]:
    """A store that holds the workflow to which runs refer, and whose runs are verified in the end."""
    yield unverified_store
    await verify_runs(unverified_store)


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """As `store`, on PostgreSQL alone."""
    store = await open_postgres(postgres_url)
    await save_workflow(store)
    yield store
    await verify_runs(store)
    await store.close()


@asynccontextmanager
async def session_on(postgres_url: str) -> AsyncGenerator[Any]:
    session: Any = await asyncpg.connect(postgres_url)
    try:
        yield session
    finally:
        await session.close()


@pytest.fixture
async def raw(postgres_url: str) -> AsyncIterator[Any]:
    """A session of somebody else."""
    async with session_on(postgres_url) as session:
        yield session


@pytest.fixture(params=["folder", "objects"])
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    """Every kind of place for blobs, empty."""
    store = open_blobs((tmp_path / "blobs").as_uri() if request.param == "folder" else "memory:///")
    yield store
    await store.close()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[FolderBlobs]:
    """A folder for blobs, empty."""
    store = FolderBlobs(tmp_path / "blobs")
    yield store
    await store.close()


async def verify_runs(store: Store) -> None:
    """Every run that is left behind, unless its log is written on the side: it has no gaps and adds up to its rows, column by
    column."""
    for summary in await store.list_runs(RunFilter(), before=None, limit=10_000):
        dump = await store.dump_run(summary.run_id)
        assert dump is not None
        if dump.stored.run.audit is not None:
            continue  # its log may have gaps
        assert [entry.seq for entry in dump.events] == list(range(1, dump.stored.run.last_seq + 1))
        projection = fold(summary.run_id, dump.events)
        assert projection.run == dump.stored.run
        assert projection.nodes == {node.node_id: node for node in dump.stored.nodes}
        assert projection.steps == {(s.node_id, s.name, s.occurrence): s.result for s in dump.stored.steps}
