"""The files of an attempt: a scratch folder in which it writes what becomes assets, and files in which it reads them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from perdure.dispatch.assets import AssetFile, Content, Description, make_asset, suffix_of
from perdure.dispatch.base import BlobName
from perdure.graph.assets import Asset
from perdure.store.blobs import BlobStore

T = TypeVar("T")


class Files:
    """Belongs to one attempt, or to an engine, and ends with it. Used on one loop."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._scratch: Path | None = None
        self._making = asyncio.Lock()
        self._is_over = False

    async def scratch(self) -> Path:
        """Return the scratch folder, made when it is first asked for."""
        async with self._making:
            if self._scratch is None:
                self._scratch = await self._blobs.make_scratch()
                if self._is_over:
                    self.close()
            return self._scratch

    async def keep_file(self, path: Path) -> BlobName:
        """Make the content of a file durable, as a blob. Nothing refers to it yet: until then it may be collected."""
        ref = await self._blobs.put_file(path)
        return BlobName(ref.digest, ref.size)

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        """Return a file with the content of a blob, checked, whose name ends so. Raises BlobMissing or BlobDamaged."""
        scratch = await self.scratch()
        path = await self._blobs.local_file(blob.digest, blob.size, scratch)
        return await asyncio.to_thread(_linked, path, scratch / (blob.digest + suffix)) if suffix else path

    def close(self) -> None:
        """Have the scratch folder removed, with everything in it."""
        self._is_over = True
        if self._scratch is not None:
            self._blobs.remove_scratch(self._scratch)

    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[Asset],
        name: str | None,
        media_type: str | None,
        meta: Mapping[str, Any] | None,
    ) -> Asset:
        """Make content an asset outside of any attempt."""
        description = Description(kind=kind, name=name, media_type=media_type, meta=meta)
        return await make_asset(content, description, self, ask=_called, call=asyncio.to_thread)

    async def open(self, asset: Asset) -> AssetFile:
        """Return an asset as a file for reading."""
        return AssetFile(await self.local_file(BlobName(asset.digest, asset.size), suffix_of(asset)))


async def _called(service: Callable[..., Awaitable[T]], *args: Any) -> T:
    return await service(*args)


def _linked(path: Path, name: Path) -> Path:
    """Give a file a second name: blobs have no extensions, and there are programs that go by them."""
    with suppress(FileExistsError):
        os.symlink(path, name)
    return name
