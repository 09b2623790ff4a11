"""Opening the store to look at runs, without becoming an engine that drives them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from perdure.cli.options import Place
from perdure.clock import SystemClock
from perdure.engine.inspect import find_run
from perdure.engine.keeping.archives import opened_archive
from perdure.errors import RunArchived, StoreUnavailable
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.opening import default_archive_folder, is_prepared, is_there, open_store


def require(place: Place) -> None:
    """Refuse a store that does not exist: looking must not create one."""
    if not is_there(place.url):
        raise StoreUnavailable(
            f"There is no store at {place.url}: nothing has been run with it yet. `perdure run` creates it; "
            "--store or PERDURE_STORE name another."
        )
    if not is_prepared(place.url):
        raise StoreUnavailable(
            f"There is no store in the file of {place.url}: it has no tables of perdure's. `perdure run` creates them in an "
            "empty file; --store or PERDURE_STORE name another."
        )


@asynccontextmanager
async def holding(place: Place, *texts: str) -> AsyncGenerator[tuple[Store, list[RunId]]]:
    """Open the store and find runs in it, each by its id or the beginning of that. One that is archived is read where it is, if
    no other is wanted: then the store is one that holds nothing else."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(place))
        found: list[RunId] | None = None
        while found is None:
            try:
                found = [await find_run(store, text) for text in texts]
            except RunArchived as archived:
                if len(texts) != 1:
                    raise
                row = await store.load_archive(RunId(archived.run_id))
                if row is None:
                    continue  # it has come back meanwhile
                folder = archive_folder(place)
                store = await stack.enter_async_context(opened_archive(folder, row, clock=SystemClock()))
                found = [row.run_id]
        yield store, found


def archive_folder(place: Place) -> Path:
    """Return where runs are archived: the folder that PERDURE_ARCHIVE names, else where engines put it by default."""
    named = os.environ.get("PERDURE_ARCHIVE")
    return Path(named) if named else default_archive_folder(place.url)


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[Store]:
    """Open an existing store."""
    require(place)
    store = await open_store(place.url)
    try:
        yield store
    finally:
        await store.close()
