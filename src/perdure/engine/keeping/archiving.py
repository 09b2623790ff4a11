"""Archiving: runs that have ended long ago leave the database for files, while others go on.

    1  runs are written into a file, one bundle after the other, under a name that nobody looks at
    2  the file is synced and gets its own name, and so is the folder
    3  runs that are still what was written are removed, in the transaction that records where they are

Whenever this is stopped, a run is in the database or in a file that the database knows of, or both. What is left behind is
removed the next time: files without their names, files of this database that hold nothing but what it has elsewhere, and rows of
runs that are too large to be removed at once.

Everything is done in small portions with a rest after each, so that runs that go on are hardly slowed. One process at a time
archives into a folder: a lock on it decides who.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from perdure.clock import Clock
from perdure.engine.keeping.exporting import Packed, Packer, birth_of, for_owner, pack
from perdure.errors import BlobDamaged, BlobMissing, BundleError, StoreDamaged, StoreLocked
from perdure.ids import DEFAULT_PROJECT, RunId, digest_of, new_id
from perdure.store.base import Store
from perdure.store.blobs import BlobStore
from perdure.store.bundles import ANY_SIZE, BundleReader, Head
from perdure.store.files import sync_file, sync_folder, writing_to
from perdure.store.opening import place_of
from perdure.store.shapes import Archivable, ArchivedRun

DEFAULT_AGE: Final = timedelta(days=30)
RUNS_PER_FILE: Final = 500
MOST_FILE_BYTES: Final = 64 * 1024 * 1024
"""A file that has so many gets no further run."""
RUNS_AT_ONCE: Final = 10
"""How many runs are read, or removed, without a rest."""
ROWS_AT_ONCE: Final = 2_000
PAGES_AT_ONCE: Final = 100
MARK_SIZE: Final = 12
SUFFIX: Final = ".runs"
PARTIAL: Final = ".part"
_LOCK = ".lock"

log = logging.getLogger("perdure.archive")


class Archiving(msgspec.Struct, frozen=True, kw_only=True):
    """What was archived, or would be."""

    folder: str
    is_dry_run: bool
    runs: int = 0
    files: int = 0
    size: int = 0
    """Of what is in the files, in bytes."""
    skipped: tuple[RunId, ...] = ()
    """Runs that cannot be read whole, and stay where they are."""


class Archiver:
    """Archives the runs of a store into a folder."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        folder: Path,
        clock: Clock,
        *,
        rest: float,
        project_id: str = DEFAULT_PROJECT,
    ) -> None:
        """`rest` is how long to rest after each portion, by how long that took; `project_id` is that of the store."""
        self._store = store
        self._blobs = blobs
        self._folder = folder
        self._clock = clock
        self._rest = rest
        self._mark = digest_of(f"{place_of(store.url)}\n{project_id}".encode())[:MARK_SIZE] + "-"
        """With which the names of this database's files begin: several may share a folder, and may know the same runs."""
        self._skipped: list[RunId] = []

    async def archive(self, *, older_than: timedelta, limit: int | None, dry_run: bool) -> Archiving:
        """Archive runs that have ended longer ago than this, oldest first, and `limit` at most.

        Raises StoreLocked if another process is at it, StoreFull if there is no room for the files.
        """
        before = self._clock.now_micros() - older_than // timedelta(microseconds=1)
        done = Archiving(folder=str(self._folder), is_dry_run=dry_run)
        if dry_run:
            return await self._counted(before, limit, done)
        with writing_to(self._folder):
            async with self._alone():
                done = await self._archived(before, limit, done)
        return msgspec.structs.replace(done, skipped=tuple(self._skipped))

    async def _archived(self, before: int, limit: int | None, done: Archiving) -> Archiving:
        await self._clean_up()
        after: tuple[int, str] | None = None
        while page := await self._page(before, after, limit, done.runs):
            after = (page[-1].created_at, page[-1].run_id)
            done = await self._archive_page(page, done)
        await self._remove_leftovers()
        await self._give_back()
        return done

    async def _page(
        self, before: int, after: tuple[int, str] | None, limit: int | None, done: int
    ) -> Sequence[Archivable]:
        most = RUNS_PER_FILE if limit is None else min(RUNS_PER_FILE, limit - done)
        return await self._store.find_archivable(ended_before=before, after=after, limit=most) if most > 0 else ()

    async def _counted(self, before: int, limit: int | None, done: Archiving) -> Archiving:
        after: tuple[int, str] | None = None
        while page := await self._page(before, after, limit, done.runs):
            after = (page[-1].created_at, page[-1].run_id)
            done = msgspec.structs.replace(done, runs=done.runs + len(page))
        return done

    async def _archive_page(self, page: Sequence[Archivable], done: Archiving) -> Archiving:
        left = list(page)
        while left:
            path, packed, left = await self._write_file(left)
            removed = await self._remove(path.name, packed)
            kept = [one for one in packed if one.head.run_id in removed]
            if not kept and path.name not in await self._store.archive_files():
                await asyncio.to_thread(path.unlink, missing_ok=True)
                continue
            done = msgspec.structs.replace(
                done,
                runs=done.runs + len(kept),
                files=done.files + 1,
                size=done.size + sum(one.size for one in kept),
            )
        return done

    async def _write_file(self, runs: Sequence[Archivable]) -> tuple[Path, list[Packed], list[Archivable]]:
        """Write as many of the runs as a file takes. Return the file, what is in it, and the runs that are left."""
        name = self._mark + new_id()
        partial = self._folder / f"{name}{PARTIAL}"
        left = list(runs)
        try:
            with await asyncio.to_thread(open, partial, "xb+", opener=for_owner) as file:
                packer = Packer(file, self._blobs, self._clock)
                while left and sum(one.size for one in packer.packed) < MOST_FILE_BYTES:
                    portion, left = left[:RUNS_AT_ONCE], left[RUNS_AT_ONCE:]
                    async with self._portion():
                        await self._pack([run.run_id for run in portion], packer)
                await asyncio.to_thread(sync_file, file)
            path = self._folder / f"{name}{SUFFIX}"
            await asyncio.to_thread(_give_name, partial, path)
        finally:
            # On a disk that is full, what was not finished takes the room that runs need.
            partial.unlink(missing_ok=True)
        return path, packer.packed, left

    async def _pack(self, run_ids: Sequence[RunId], packer: Packer) -> None:
        """Write runs into the file. One that cannot be read whole is left where it is, and holds up no other."""
        before = len(packer.packed)
        try:
            await pack(self._store.read_runs(run_ids), packer)
        except (BlobMissing, BlobDamaged, BundleError, StoreDamaged, msgspec.MsgspecError, ValueError) as error:
            await asyncio.to_thread(packer.abandon)
            if len(run_ids) == 1:
                log.warning("run_not_archived", extra={"run_id": run_ids[0], "error": str(error)})
                self._skipped.append(run_ids[0])
                return
            written = {packed.head.run_id for packed in packer.packed[before:]}
            for run_id in run_ids:
                if run_id not in written:
                    await self._pack([run_id], packer)

    async def _remove(self, file: str, packed: Sequence[Packed]) -> set[RunId]:
        now = self._clock.now_micros()
        removed: set[RunId] = set()
        for start in range(0, len(packed), RUNS_AT_ONCE):
            async with self._portion():
                rows = [_archived(one, file, now) for one in packed[start : start + RUNS_AT_ONCE]]
                removed |= await self._store.archive_runs(rows)
            await self._remove_leftovers()
        return removed

    async def _remove_leftovers(self) -> None:
        is_more = True
        while is_more:
            async with self._portion():
                is_more = await self._store.remove_leftovers(limit=ROWS_AT_ONCE)

    async def _give_back(self) -> None:
        is_more = True
        while is_more:
            async with self._portion():
                is_more = await self._store.give_back(pages=PAGES_AT_ONCE)

    async def _clean_up(self) -> None:
        """Remove what was left behind by whoever was stopped."""
        await self._remove_leftovers()
        known = await self._store.archive_files()
        for path in await asyncio.to_thread(_files_in, self._folder):
            if path.suffix == PARTIAL:
                await asyncio.to_thread(path.unlink)
            elif path.name not in known and path.name.startswith(self._mark):
                await self._remove_if_left(path)

    async def _remove_if_left(self, path: Path) -> None:
        """Remove a file that the database does not know of, if all that it holds is elsewhere."""
        try:
            heads = await asyncio.to_thread(heads_in, path)
        except BundleError as error:
            log.warning("archive_not_readable", extra={"file": str(path), "error": str(error)})
            return
        for head in heads:
            if not await self._has(head):
                log.warning("archive_not_known", extra={"file": str(path), "run_id": head.run_id})
                return
        await asyncio.to_thread(path.unlink)

    async def _has(self, head: Head) -> bool:
        """Whether a run is in the database, or in a file that it knows of, as far as a bundle tells of it or further."""
        if (archived := await self._store.load_archive(head.run_id)) is not None:
            return archived.created_at == head.created_at and archived.last_seq >= head.last_seq
        state = await self._store.load_state(head.run_id)
        if state is None or state.last_seq < head.last_seq:
            return False
        return await birth_of(self._store, state) == head.birth

    @asynccontextmanager
    async def _portion(self) -> AsyncGenerator[None]:
        """Rest after what is done inside."""
        began = self._clock.monotonic()
        yield
        await self._clock.sleep((self._clock.monotonic() - began) * self._rest)

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        lock = await asyncio.to_thread(_locked, self._folder)
        try:
            yield
        finally:
            lock.close()


async def discard(store: Store, folder: Path, name: str) -> None:
    """Remove a file of the archive that holds nothing any more which is not in the database.

    While somebody archives it stays: what is being recorded may be in it. Whoever archives next removes it.
    """
    with suppress(StoreLocked, OSError):
        lock = await asyncio.to_thread(_locked, folder)
        try:
            if name not in await store.archive_files():
                await asyncio.to_thread((folder / name).unlink, missing_ok=True)
        finally:
            lock.close()


def heads_in(path: Path) -> list[Head]:
    """Return what a file of the archive holds. Blocks. Raises BundleError if it is not whole."""
    heads: list[Head] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            reader = BundleReader(file, str(path), most_bytes=ANY_SIZE)
            for _ in reader.parts():
                pass
            heads.append(reader.head)
    return heads


def _archived(packed: Packed, file: str, now: int) -> ArchivedRun:
    head = packed.head
    assert head.ended_at is not None, "it has ended"
    return ArchivedRun(
        run_id=head.run_id,
        workflow=head.workflow,
        version=head.version,
        status=head.status,
        created_at=head.created_at,
        ended_at=head.ended_at,
        last_seq=head.last_seq,
        archived_at=now,
        file=file,
        position=packed.position,
        size=packed.size,
        digest=packed.digest,
    )


def _locked(folder: Path) -> BinaryIO:
    folder.mkdir(0o700, parents=True, exist_ok=True)
    lock = open(folder / _LOCK, "ab", opener=for_owner)  # noqa: SIM115 -- whoever gets it closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise StoreLocked(
            f"Another process is archiving into {folder} at this moment. Wait for it, or look there whether it is done."
        ) from error
    return lock


def _give_name(partial: Path, path: Path) -> None:
    partial.replace(path)
    sync_folder(path.parent)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (SUFFIX, PARTIAL))
