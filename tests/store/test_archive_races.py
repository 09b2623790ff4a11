"""A run that leaves for the archive is there or in the archive for everybody, also for who begins one with its id meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.postgres.store import PostgresStore, open_postgres
from perdure.store.records import Record
from perdure.store.shapes import ArchivedRun
from perdure.store.transitions import Committed, RunExists
from tests.store.builders import Draft, settle, started
from tests.store.conftest import OpenStore, session_on

COLUMNS = (
    "run_id, project_id, lease_epoch, version, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs,"
    " settings, source, reason, recoveries, created_at"
)
HELD = COLUMNS.replace("run_id", "'a-held'")


def in_file(draft: Draft) -> ArchivedRun:
    """A run as it is recorded when it has left for a file."""
    run = draft.projection.run
    assert run.ended_at is not None
    return ArchivedRun(
        run_id=run.run_id,
        workflow=run.workflow,
        version=run.version,
        status=run.status,
        created_at=run.created_at,
        ended_at=run.ended_at,
        last_seq=run.last_seq,
        archived_at=run.ended_at + 1,
        file="some.runs",
        position=0,
        size=1,
        digest="d",
    )


async def ended(store: Store, run_id: str) -> Draft:
    draft = started(run_id).complete_node("step0").end()
    assert await settle(store, [draft.transition()]) == [Committed()]
    return draft


async def pages_of(store: Store, run_id: RunId) -> list[Sequence[Record]]:
    async with aclosing(store.read_runs([run_id])) as pages:
        return [page async for page in pages]


async def test_who_begins_a_run_while_it_is_archived_is_told_that_it_is_there(
    store: Store, open_another: OpenStore
) -> None:
    another = await open_another()
    for number in range(30):
        draft = await ended(store, f"run-{number}")
        again = started(f"run-{number}").transition()

        outcomes, archived = await asyncio.gather(settle(another, [again]), store.archive_runs([in_file(draft)]))

        assert outcomes == [RunExists()]
        assert archived == {draft.run_id}
        assert await store.load_state(draft.run_id) is None


async def test_a_run_comes_back_only_from_where_it_is(store: Store) -> None:
    draft = await ended(store, "left-twice")
    pages = await pages_of(store, draft.run_id)
    before, now = in_file(draft), replace(in_file(draft), position=7)
    await store.archive_runs([now])

    assert await store.write_run(iter(pages), from_archive=before) is False
    assert await store.load_archive(draft.run_id) == now
    assert await store.load_state(draft.run_id) is None
    assert await store.write_run(iter(pages), from_archive=now) is True
    assert await store.load_archive(draft.run_id) is None


@pytest.fixture
async def watcher(postgres_url: str) -> AsyncIterator[Any]:
    """A session that looks at what others wait for."""
    async with session_on(postgres_url) as session:
        yield session


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
async def isolated(
    request: pytest.FixtureRequest, postgres_url: str, postgres_store: PostgresStore
) -> AsyncIterator[PostgresStore]:
    """Another store on the same database, which was told to isolate transactions so by default."""
    raw = await asyncpg.connect(postgres_url)
    name = await raw.fetchval("SELECT current_database()")
    await raw.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{request.param}'")
    await raw.close()
    store = await open_postgres(postgres_url)
    yield store
    await store.close()


async def until_waiting(watcher: Any, count: int) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while await watcher.fetchval(query) < count:
            await asyncio.sleep(0.005)


async def test_who_waits_for_the_row_of_a_run_that_leaves_does_not_begin_it_again(
    postgres_store: PostgresStore, isolated: PostgresStore, raw: Any, watcher: Any
) -> None:
    draft = await ended(postgres_store, "leaving")
    await isolated.commit([started("warm").transition()])

    async with raw.transaction():
        await raw.execute("LOCK TABLE run_archives IN SHARE MODE")
        archiving = asyncio.create_task(postgres_store.archive_runs([in_file(draft)]))
        await until_waiting(watcher, 1)  # its row is removed, and where it is now is not recorded
        beginning = asyncio.create_task(settle(isolated, [started("leaving").transition()]))
        await until_waiting(watcher, 2)

    assert await archiving == {draft.run_id}
    assert await beginning == [RunExists()]
    assert await postgres_store.load_state(draft.run_id) is None
    assert await raw.fetchval("SELECT count(*) FROM run_events WHERE run_id = 'leaving'") == 0


async def test_who_began_before_a_run_left_and_comes_to_it_later_does_not_begin_it_again(
    postgres_store: PostgresStore, isolated: PostgresStore, raw: Any, watcher: Any
) -> None:
    draft = await ended(postgres_store, "z-leaving")
    await isolated.commit([started("warm").transition()])
    others = [started("a-held").transition(), started("z-leaving").transition()]

    transaction = raw.transaction()
    await transaction.start()
    # Runs are begun in the order of their ids: who begins both has looked into the archive, and waits before the second.
    await raw.execute(f"INSERT INTO run_state ({COLUMNS}) SELECT {HELD} FROM run_state WHERE run_id = 'warm'")
    beginning = asyncio.create_task(settle(isolated, others))
    await until_waiting(watcher, 1)
    assert await postgres_store.archive_runs([in_file(draft)]) == {draft.run_id}
    await transaction.rollback()

    assert await beginning == [Committed(), RunExists()]
    assert await postgres_store.load_state(draft.run_id) is None


async def test_who_imports_a_run_that_leaves_does_not_bring_it_back(
    postgres_store: PostgresStore, isolated: PostgresStore, raw: Any, watcher: Any
) -> None:
    draft = await ended(postgres_store, "leaving")
    pages = await pages_of(postgres_store, draft.run_id)

    async with raw.transaction():
        await raw.execute("LOCK TABLE run_archives IN SHARE MODE")
        archiving = asyncio.create_task(postgres_store.archive_runs([in_file(draft)]))
        await until_waiting(watcher, 1)
        importing = asyncio.create_task(isolated.write_run(iter(pages)))
        await until_waiting(watcher, 2)

    assert await archiving == {draft.run_id}
    assert await importing is False
    assert await postgres_store.load_state(draft.run_id) is None
    assert await isolated.write_run(iter(pages), from_archive=in_file(draft)) is True
    assert await postgres_store.load_archive(draft.run_id) is None


async def test_of_who_restores_a_run_and_who_begins_it_only_the_first_counts(
    postgres_store: PostgresStore, isolated: PostgresStore
) -> None:
    draft = await ended(postgres_store, "leaving")
    pages = [[record] for page in await pages_of(postgres_store, draft.run_id) for record in page]
    await postgres_store.archive_runs([in_file(draft)])
    await isolated.commit([started("warm").transition()])

    has_begun, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly() -> Iterator[Sequence[Record]]:
        yield pages[0]
        loop.call_soon_threadsafe(has_begun.set)  # the run is back, and its log is not
        may_go_on.wait()
        yield from pages[1:]

    restoring = asyncio.create_task(postgres_store.write_run(slowly(), from_archive=in_file(draft)))
    await has_begun.wait()
    again = await settle(isolated, [started("leaving").transition()])
    may_go_on.set()

    assert await restoring is True
    assert again == [RunExists()]
    assert await postgres_store.load_state(draft.run_id) == draft.projection.run
