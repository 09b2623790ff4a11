"""Opening the store to look at runs, without becoming an engine that drives them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perdure.cli.options import Place
from perdure.errors import StoreUnavailable
from perdure.store.base import Store
from perdure.store.opening import is_there, open_store


def require(place: Place) -> None:
    """Refuse a store that does not exist: looking must not create one."""
    if not is_there(place.url):
        raise StoreUnavailable(
            f"There is no store at {place.url}: nothing has been run with it yet. `perdure run` creates it; "
            "--store or PERDURE_STORE name another."
        )


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[Store]:
    """Open an existing store."""
    require(place)
    store = await open_store(place.url)
    try:
        yield store
    finally:
        await store.close()
