"""Archived runs: finding them, reading them where they are, bringing them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure.clock import Clock
from perdure.engine.keeping.archiving import discard
from perdure.engine.keeping.importing import Source, import_run, violations_in
from perdure.errors import ArchiveMissing, BundleDamaged, BundleError, ImportConflict, RunIdAmbiguous, RunNotFound
from perdure.ids import DEFAULT_PROJECT, RunId
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.bundles import ANY_SIZE
from perdure.store.opening import default_blobs_url, open_store
from perdure.store.shapes import ArchivedRun

LEFTOVER_ROWS = 10_000
PAGE = 500
CANDIDATES = 10
"""How many runs are named when a prefix means several."""


async def find_archived(store: Store, text: str) -> ArchivedRun | None:
    """Return the archived run whose id is `text`, or the only one whose id begins with it. Raises RunIdAmbiguous."""
    found = await store.list_archives(id_prefix=text, before=None, limit=CANDIDATES)
    exact = await store.load_archive(RunId(text))
    if exact is not None or not found:
        return exact
    if len(found) > 1:
        raise RunIdAmbiguous(text, [archived.run_id for archived in found])
    return found[0]


async def all_archived(store: Store) -> AsyncGenerator[ArchivedRun]:
    """Yield every archived run, newest first."""
    before: tuple[int, str] | None = None
    while page := await store.list_archives(id_prefix=None, before=before, limit=PAGE):
        for archived in page:
            yield archived
        before = (page[-1].created_at, page[-1].run_id)


async def restore(
    store: Store, blobs: BlobStore, folder: Path, run_id: RunId, *, project_id: str, clock: Clock
) -> RunId:
    """Bring a run back into the database. One that is there is left as it is. Raises RunNotFound."""
    while True:
        archived = await store.load_archive(run_id)
        if archived is None:
            match await store.where_is(run_id):
                case None:
                    raise RunNotFound(run_id)
                case "database":
                    return run_id
                case "archive":
                    continue  # it has left between the two looks
        while await store.remove_leftovers(limit=LEFTOVER_ROWS):
            pass
        try:
            async with _opened(folder, archived) as source:
                await import_run(
                    store,
                    blobs,
                    source,
                    project_id=project_id,
                    clock=clock,
                    paused=False,
                    verify=False,
                    from_archive=archived,
                )
        except (ArchiveMissing, ImportConflict):
            # Somebody else may have brought it back meanwhile, and it may have gone on, and have left once more.
            if await store.load_archive(run_id) == archived:
                raise
            continue
        await discard(store, folder, archived.file)
        return run_id


@asynccontextmanager
async def opened_archive(folder: Path, archived: ArchivedRun, *, clock: Clock) -> AsyncGenerator[Store]:
    """Give a store that holds nothing but an archived run, as long as the block lasts. The archive is not touched."""
    with TemporaryDirectory(prefix="perdure-") as name:
        store = await open_store(f"sqlite:///{Path(name) / 'archived.db'}", clock=clock)
        blobs = open_blobs(default_blobs_url(store.url))
        try:
            async with _opened(folder, archived) as source:
                await import_run(
                    store, blobs, source, project_id=DEFAULT_PROJECT, clock=clock, paused=False, verify=False
                )
            yield store
        finally:
            await blobs.close()
            await store.close()


async def verify_archived(folder: Path, archived: ArchivedRun) -> list[Violation]:
    """Return everything that is wrong with an archived run, nothing if it is whole. It stays where it is."""
    try:
        async with _opened(folder, archived) as source:
            return await asyncio.to_thread(violations_in, source)
    except (ArchiveMissing, BundleError) as error:
        return [Violation(invariant="I4", problem=str(error))]


@asynccontextmanager
async def _opened(folder: Path, archived: ArchivedRun) -> AsyncGenerator[Source]:
    path = folder / archived.file
    # What a database says is not trusted with paths.
    if Path(archived.file).name != archived.file:
        raise ArchiveMissing(archived.run_id, str(path))
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise ArchiveMissing(archived.run_id, str(path)) from error
    with file:
        source = Source(file=file, place=str(path), position=archived.position, is_alone=False, most_bytes=ANY_SIZE)
        head = await asyncio.to_thread(lambda: source.reader().head)
        if head.run_id != archived.run_id:
            raise BundleDamaged(str(path), f"it holds run {head.run_id!r} where {archived.run_id!r} should be")
        yield source
