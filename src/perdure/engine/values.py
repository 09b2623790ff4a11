"""Values on their way in and out: encoded by the codecs, large ones kept as blobs and read back when they are needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.journal.events import Encoded
from perdure.store.base import BlobUse
from perdure.store.blobs import BlobStore
from perdure.store.codecs import BlobRef, Codecs, NewBlob, blob_refs
from perdure.store.codecs.wire import whole_reference, with_blobs_inside

CACHE_BYTES = 64 * 1024 * 1024
"""Blobs kept in memory for the nodes that read them next."""


class Values:
    """Packs and unpacks for one engine. A blob is durable before anything refers to it."""

    def __init__(self, codecs: Codecs, blobs: BlobStore, *, inline_max_bytes: int) -> None:
        self.codecs = codecs
        self.blobs = blobs
        self._inline_max = inline_max_bytes
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def pack(self, value: Any, *, where: str) -> tuple[Encoded, tuple[BlobUse, ...]]:
        """Encode a value, unless another process has done so; what is large is a durable blob when this returns.

        Raises ValueNotStorable.
        """
        if isinstance(value, msgspec.Raw):
            packed = self.codecs.repack(bytes(value), inline_max_bytes=self._inline_max)
        else:
            packed = self.codecs.pack(value, where=where, inline_max_bytes=self._inline_max)
        for blob in packed.blobs:
            await self._keep(blob)
        uses = tuple(BlobUse(digest=blob.digest, size=len(blob.content)) for blob in packed.blobs)
        return msgspec.Raw(packed.raw), uses

    async def pack_all(
        self, values: Mapping[str, Any], *, where: str
    ) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Encode several named values."""
        encoded: dict[str, Encoded] = {}
        uses: tuple[BlobUse, ...] = ()
        for name, value in values.items():
            encoded[name], used = await self.pack(value, where=f"{where}, handle {name!r}")
            uses += used
        return encoded, uses

    async def opened(self, value: Encoded) -> Encoded:
        """Return the value itself where it is a reference to a blob that holds all of it."""
        reference = whole_reference(value)
        return value if reference is None else msgspec.Raw(await self._read(reference))

    async def inlined(self, value: Encoded) -> Encoded:
        """Return the value with everything it refers to inside it: for those who cannot read blobs."""
        if not (references := blob_refs(value)):
            return value
        held = {reference: await self._read(reference) for reference in references}
        return msgspec.Raw(with_blobs_inside(value, held))

    async def reader(self, *values: Encoded) -> Callable[[Encoded, Any], Any]:
        """Return a decoder for these values, with the blobs that they refer to at hand."""
        held: dict[BlobRef, bytes] = {}
        for value in values:
            for reference in blob_refs(value):
                held[reference] = await self._read(reference)

        def decode(value: Encoded, annotation: Any) -> Any:
            return self.codecs.unpack(value, annotation, read_blob=held.__getitem__)

        return decode

    async def unpack(self, value: Encoded, annotation: Any = Any) -> Any:
        """Return the decoded value."""
        return (await self.reader(value))(value, annotation)

    async def _keep(self, blob: NewBlob) -> None:
        await self.blobs.put(blob.digest, blob.content)
        self._remember(blob.digest, bytes(blob.content))

    async def _read(self, reference: BlobRef) -> bytes:
        if (content := self._cache.get(reference.digest)) is None:
            content = await self.blobs.get(reference.digest, reference.size)
            self._remember(reference.digest, content)
        else:
            self._cache.move_to_end(reference.digest)
        return content

    def _remember(self, digest: str, content: bytes) -> None:
        if digest in self._cache or len(content) > CACHE_BYTES // 4:
            return
        self._cache[digest] = content
        self._cached_bytes += len(content)
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
