"""Stores to test with: every test that asks for one runs on each kind, and leaves behind runs that obey the law."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import pytest

from perdure.journal.projection import fold
from perdure.store.base import Store
from perdure.store.opening import open_store
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
async def store(url: str) -> AsyncIterator[Store]:
    """A store that holds the workflow to which runs refer."""
    store = await open_store(url)
    await save_workflow(store)
    yield store
    await verify_runs(store)
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
