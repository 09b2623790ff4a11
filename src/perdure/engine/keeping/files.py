"""What an engine offers for files: assets to start runs with, assets that runs have left, and the collection of blobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from perdure.clock import Clock
from perdure.dispatch.assets import AssetFile, Content
from perdure.engine.attempts.assets import Files
from perdure.engine.attempts.values import Values
from perdure.engine.keeping.collecting import DEFAULT_GRACE, Collection, collect_blobs
from perdure.graph.assets import Asset
from perdure.store.base import Store

A = TypeVar("A", bound=Asset)


class Keeping(ABC):
    """The part of an engine that has to do with files."""

    clock: Clock
    _files: Files | None = None

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @property
    @abstractmethod
    def values(self) -> Values: ...

    @overload
    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset: ...

    @overload
    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[A],
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> A: ...

    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[Asset] = Asset,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset:
        """Keep a large thing, as `ctx.asset` does, to start a run with it. Until one refers to it, it may be collected."""
        return await self._open_files().asset(content, kind=kind, name=name, media_type=media_type, meta=meta)

    async def open(self, asset: Asset) -> AssetFile:
        """Return an asset as a file for reading, which is there as long as the engine. Raises BlobMissing or BlobDamaged."""
        return await self._open_files().open(asset)

    async def collect_blobs(self, *, older_than: timedelta = DEFAULT_GRACE, dry_run: bool = False) -> Collection:
        """Delete blobs that no run refers to and that were not put for so long; with `dry_run`, only say which would go.

        Raises ValueError for a time that is too short to be safe.
        """
        return await collect_blobs(
            self.store, self.values.blobs, older_than=older_than, dry_run=dry_run, clock=self.clock
        )

    def _open_files(self) -> Files:
        blobs = self.values.blobs
        if self._files is None:
            self._files = Files(blobs)
        return self._files

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()
