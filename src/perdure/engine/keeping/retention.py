"""What an engine offers for runs as a whole: out of the database and into it, and into the archive and back."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.clock import Clock
from perdure.engine.attempts.values import Values
from perdure.engine.keeping.archives import restore
from perdure.engine.keeping.archiving import DEFAULT_AGE, Archiver, Archiving
from perdure.engine.keeping.backing import BackedUp, back_up
from perdure.engine.keeping.compacting import LONG_EVENTS, Compaction, compact_long_logs, compact_run
from perdure.engine.keeping.exporting import Exported, export_run
from perdure.engine.keeping.importing import import_file
from perdure.engine.settings import EngineSettings
from perdure.errors import StoreError, StoreLocked
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.bundles import MOST_BYTES
from perdure.store.opening import default_archive_folder
from perdure.store.shapes import ArchivedRun

if TYPE_CHECKING:
    from perdure.engine.runs.run import Run


REST = 1.0
"""How long whoever is asked to archive rests after each portion, by how long that took."""
LONG_REST = 4.0
"""The same of an engine that archives by itself: nobody waits for it."""

log = logging.getLogger("perdure.archive")


class Retention(ABC):
    """The part of an engine that has to do with runs as a whole."""

    clock: Clock
    _project: str
    _settings: EngineSettings

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @property
    @abstractmethod
    def values(self) -> Values: ...

    @abstractmethod
    async def get(self, run_id: str) -> Run[Any]: ...

    async def export(self, run_id: str, path: str | PathLike[str]) -> Exported:
        """Write a run whole into a file: its graph, its history, its values and blobs. One that lives is written as it is at one
        moment, and goes on meanwhile.

        Raises RunNotFound, and BlobMissing or BlobDamaged if a blob of it cannot be read.
        """
        return await export_run(self.store, self.values.blobs, RunId(run_id), Path(path), clock=self.clock)

    async def import_run(
        self,
        path: str | PathLike[str],
        *,
        run_id: str | None = None,
        paused: bool = True,
        verify: bool = True,
        most_bytes: int = MOST_BYTES,
    ) -> Run[Any]:
        """Take up a run that was exported, and return it. Idempotent: one that is here and has come at least as far stays.

        One that has not ended is paused, so that it does not go on in two places unless somebody resumes it here; with
        `paused=False` it goes on by itself. `verify` proves before anything is kept that the run is whole, which takes as much
        memory as the run has. Raises BundleError for a file that is not a whole run or unpacks to more than `most_bytes`, and
        ImportConflict if another run has its id.
        """
        found = await import_file(
            self.store,
            self.values.blobs,
            Path(path),
            project_id=self._project,
            clock=self.clock,
            run_id=run_id,
            paused=paused,
            verify=verify,
            most_bytes=most_bytes,
        )
        return await self.get(found.run_id)

    async def archive(
        self, *, older_than: timedelta = DEFAULT_AGE, limit: int | None = None, dry_run: bool = False
    ) -> Archiving:
        """Move runs that have ended longer ago than this into files, oldest first, `limit` at most; with `dry_run`, only count
        them. Runs that go on are hardly slowed, and whoever stops this can go on with it later.

        Raises StoreLocked if another process is at it.
        """
        return await self._archiver(REST).archive(older_than=older_than, limit=limit, dry_run=dry_run)

    async def archives(
        self, *, id_prefix: str | None = None, before: tuple[int, str] | None = None, limit: int = 100
    ) -> Sequence[ArchivedRun]:
        """Return archived runs, newest first."""
        return await self.store.list_archives(id_prefix=id_prefix, before=before, limit=limit)

    async def unarchive(self, run_id: str) -> Run[Any]:
        """Bring an archived run back into the database, and return it.

        Raises RunNotFound, ArchiveMissing if its file is not there, and BundleError if that is damaged.
        """
        restored = await restore(
            self.store,
            self.values.blobs,
            self._archive_folder(),
            RunId(run_id),
            project_id=self._project,
            clock=self.clock,
        )
        return await self.get(restored)

    async def backup(self, path: str | PathLike[str], *, replace: bool = False) -> BackedUp:
        """Copy a store that is a SQLite file to `path`, with its blobs and its archive beside it, while runs go on. To use it,
        open a store there; its runs go on from that moment.

        Raises ProgramError if something is there, unless it is to be replaced, and StoreUnavailable on PostgreSQL.
        """
        return await back_up(
            self.store, self.values.blobs, self._archive_folder(), Path(path), replaces=replace, clock=self.clock
        )

    async def compact(
        self, run_id: str | None = None, *, longer_than: int = LONG_EVENTS, dry_run: bool = False
    ) -> Compaction:
        """Make the log of a run compact, or every log with more events than this that are rows; with `dry_run`, only count them.
        Nothing is lost by it, and nothing that is read of a run changes. Raises RunNotFound."""
        if run_id is not None:
            return await compact_run(self.store, RunId(run_id), dry_run=dry_run)
        return await compact_long_logs(self.store, longer_than=longer_than, dry_run=dry_run)

    async def _compact_in_time(self) -> None:
        """Make long logs compact now and then, for as long as the engine lives."""
        while (longer_than := self._settings.compact_longer_than) is not None:
            await self.clock.sleep(self._settings.compact_every_seconds)
            await self.compact(longer_than=longer_than)

    async def _archive_in_time(self) -> None:
        """Archive now and then, if that is wanted, for as long as the engine lives."""
        days = self._settings.archive_after_days
        while days is not None:
            try:
                archiver = self._archiver(LONG_REST)
                await archiver.archive(older_than=timedelta(days=days), limit=None, dry_run=False)
            except StoreLocked:
                log.debug("archived_by_another")
            except StoreError as error:  # runs do not depend on it: the next time is soon enough
                log.warning("not_archived", extra={"error": str(error)})
            await self.clock.sleep(self._settings.archive_every_seconds)

    def _archiver(self, rest: float) -> Archiver:
        return Archiver(
            self.store,
            self.values.blobs,
            self._archive_folder(),
            self.clock,
            rest=rest,
            project_id=self._project,
        )

    def _archive_folder(self) -> Path:
        folder = self._settings.archive_folder
        return default_archive_folder(self.store.url) if folder is None else Path(folder)
