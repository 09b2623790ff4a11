"""Looking for a run, and why it is not in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.errors import RunArchived, RunNotFound, StoreLocked
from perdure.ids import RunId
from perdure.store.base import Store

T = TypeVar("T")

MOST_LOOKS = 10


async def look_for(store: Store, run_id: RunId, look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `look` finds of a run, which is None if the run is not in the database.

    Raises RunNotFound if there is none, and RunArchived if it is in the archive, from where it can be brought back. One that
    comes back from there just then is looked for again.
    """
    for _ in range(MOST_LOOKS):
        if (found := await look()) is not None:
            return found
        match await store.where_is(run_id):
            case None:
                raise RunNotFound(run_id)
            case "archive":
                raise RunArchived(run_id)
            case "database":
                pass
    raise StoreLocked(f"Run {run_id!r} leaves for the archive and comes back, again and again. Try again.")
