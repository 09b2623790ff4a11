"""What an engine offers for runs as a whole: out of the database and into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.clock import Clock
from perdure.engine.exporting import Exported, export_run
from perdure.engine.importing import import_file
from perdure.engine.values import Values
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.bundles import MOST_BYTES

if TYPE_CHECKING:
    from perdure.engine.run import Run


class Retention(ABC):
    """The part of an engine that has to do with runs as a whole."""

    clock: Clock
    _project: str

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
