"""Why a run is not in the database."""

from __future__ import annotations

from perdure.errors import RunArchived, RunError, RunNotFound
from perdure.ids import RunId
from perdure.store.base import Store


async def missing(store: Store, run_id: RunId) -> RunError:
    """Return why a run is not in the database: there is none, or it is in the archive, from where it can be brought back."""
    return RunNotFound(run_id) if await store.load_archive(run_id) is None else RunArchived(run_id)
