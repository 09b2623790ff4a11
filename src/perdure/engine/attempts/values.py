"""Values on their way in and out: encoded by the codecs, large ones kept as blobs and read back when they are needed."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from perdure.engine.attempts.weight import is_light
from perdure.errors import StoreError
from perdure.ids import digest_of
from perdure.journal.events import Encoded
from perdure.store.blobs import BlobStore
from perdure.store.codecs import BlobRef, Codecs, KeptBlob, NewBlob, content_refs
from perdure.store.codecs.wire import Packed, blob_refs, whole_reference, with_blobs_inside
from perdure.store.transitions import BlobUse

T = TypeVar("T")

Decode = Callable[[Encoded, Any], Any]

_NO_BLOBS: Mapping[BlobRef, bytes] = {}

ENCODING_THREADS: Final = 2
"""How many heavy values are encoded at once; they compete for the interpreter anyway."""
CACHE_BYTES = 16 * 1024 * 1024
"""Blobs kept in memory for the nodes that read them next. More would mostly be blobs that everybody has read, and memory that is
new to the process costs more than what is used again: a chain of large values is slower by a twentieth with 64 MiB."""


class Values:
    """Packs and unpacks for one engine. A blob is durable before anything refers to it."""

    def __init__(
        self, codecs: Codecs, blobs: BlobStore, *, inline_max_bytes: int, patience_seconds: float = 30.0
    ) -> None:
        self.codecs = codecs
        self.blobs = blobs
        self.patience_seconds = patience_seconds
        """How long blobs may be out of reach, or without room, before what needs them is given up."""
        self.inline_max_bytes = inline_max_bytes
        """What is larger is kept as a blob."""
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._threads = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="perdure-values")

    async def pack(self, value: Any, *, where: str) -> tuple[Encoded, tuple[BlobUse, ...]]:
        """Encode a value, unless another process has done so; what is large is a durable blob when this returns.

        Raises ValueNotStorable.
        """
        if is_light(value):
            packed = self.packed(value, where=where)
        else:
            packed = await self.beside(functools.partial(self.packed, where=where), value)
        return msgspec.Raw(packed.raw), await self.keep(packed.blobs)

    async def pack_all(
        self, values: Mapping[str, Any], *, where: str
    ) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Encode several named values."""
        encoded: dict[str, Encoded] = {}
        uses: tuple[BlobUse, ...] = ()
        for name, value in values.items():
            encoded[name], kept = await self.pack(value, where=f"{where}, handle {name!r}")
            uses += kept
        return encoded, uses

    async def beside(self, function: Callable[[Any], T], value: Any) -> T:
        """Call a function that encodes a heavy value, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, value)

    def packed(self, value: Any, *, where: str) -> Packed:
        """Encode a value, unless another process has done so, in any thread. Its blobs have to be kept.

        Raises ValueNotStorable.
        """
        return self.packed_as(value, where, digest_of)

    def keeping(self) -> Keeping:
        """Return what packs values and keeps their blobs at once, in a thread that can wait."""
        return Keeping(self)

    def packed_as(self, value: Any, where: str, name: Callable[[bytes], str]) -> Packed:
        """As `packed`, with what is to be kept as a whole named, and perhaps kept, by `name`."""
        if isinstance(value, msgspec.Raw):
            return self.codecs.repack(bytes(value), inline_max_bytes=self.inline_max_bytes)
        return self.codecs.pack(value, where=where, inline_max_bytes=self.inline_max_bytes, name=name)

    async def keep(self, blobs: Sequence[NewBlob]) -> tuple[BlobUse, ...]:
        """Make the blobs of packed values durable. Raises BlobMissing for an asset whose content is not there."""
        for blob in blobs:
            if isinstance(blob, KeptBlob):
                await self.blobs.refresh(blob.digest, blob.size)
            else:
                await self.blobs.put(blob.digest, blob.content)
        return self.used(blobs)

    def keep_at_once(self, blobs: Sequence[NewBlob]) -> None:
        """As `keep`, in a thread. What is kept is `used` when the loop hears of it."""
        for blob in blobs:
            if isinstance(blob, KeptBlob):
                self.blobs.refresh_sync(blob.digest, blob.size)
            else:
                self.blobs.put_sync(blob.digest, blob.content)

    def used(self, blobs: Sequence[NewBlob]) -> tuple[BlobUse, ...]:
        """Remember blobs that are durable for those who read them next, and return what is recorded of them."""
        for blob in blobs:
            if not isinstance(blob, KeptBlob):
                self._remember(blob.digest, bytes(blob.content))
        return tuple(BlobUse(digest=blob.digest, size=blob.ref.size) for blob in blobs)

    async def opened(self, value: Encoded) -> Encoded:
        """Return the value itself where it is a reference to a blob that holds all of it."""
        reference = whole_reference(value)
        return value if reference is None else msgspec.Raw(await self._read(reference))

    async def inlined(self, value: Encoded) -> Encoded:
        """Return the value with all its parts inside it: for those who cannot read blobs. Assets stay what they are."""
        if not (references := await self._references(value)):
            return value
        held = {reference: await self._read(reference) for reference in references}
        return msgspec.Raw(with_blobs_inside(value, held))

    async def reader(self, *values: Encoded) -> Decode:
        """Return a decoder for these values, with the blobs that are parts of them at hand."""
        references: set[BlobRef] = set()
        for value in values:
            references |= await self._references(value)
        if not references:
            return self.decode_whole
        held = {reference: await self._read(reference) for reference in references}

        def decode(value: Encoded, annotation: Any) -> Any:
            return self.codecs.unpack(value, annotation, read_blob=held.__getitem__)

        return decode

    async def all_references(self, value: Encoded) -> set[BlobRef]:
        """Return every blob to which a value refers, assets too; also those of the items of a whole stream."""
        references = blob_refs(value)
        if len(references) == 1 and (whole := whole_reference(value)) is not None:
            references |= blob_refs(await self._read(whole))
        return references

    async def _references(self, value: Encoded) -> set[BlobRef]:
        """Return the blobs that must be read to decode a value. The list of a whole stream does not name those of its items,
        which may be many."""
        references = content_refs(value)
        if len(references) == 1 and (whole := whole_reference(value)) is not None:
            references |= content_refs(await self._read(whole))
        return references

    async def unpack(self, value: Encoded, annotation: Any = Any) -> Any:
        """Return the decoded value."""
        return (await self.reader(value))(value, annotation)

    def decode_whole(self, value: Encoded, annotation: Any) -> Any:
        """Decode a value that refers to no blobs."""
        return self.codecs.unpack(value, annotation, read_blob=_NO_BLOBS.__getitem__)

    async def _read(self, reference: BlobRef) -> bytes:
        if (content := self._cache.get(reference.digest)) is None:
            content = await self.blobs.get(reference.digest, reference.size)
            self._remember(reference.digest, content)
        else:
            self._cache.move_to_end(reference.digest)
        return content

    def _remember(self, digest: str, content: bytes) -> None:
        if digest in self._cache or len(content) > CACHE_BYTES // 2:
            return
        self._cache[digest] = content
        self._cached_bytes += len(content)
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


class Keeping:
    """Packs values and keeps their blobs, as far as they can be kept at once. They are `used` when the loop hears of them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._names: set[str] = set()
        self.are_kept = True
        """Whether all blobs so far are durable. If not, somebody has to be patient with them, and keep them all."""

    def packed(self, value: Any, *, where: str) -> Packed:
        """As `Values.packed`."""
        packed = self._values.packed_as(value, where, self._kept)
        try:
            self._values.keep_at_once([blob for blob in packed.blobs if blob.digest not in self._names])
        except StoreError:
            self.are_kept = False
        return packed

    def _kept(self, content: bytes) -> str:
        try:
            name = self._values.blobs.put_unnamed_sync(content)
        except StoreError:
            self.are_kept = False
            name = digest_of(content)
        self._names.add(name)
        return name


def is_elsewhere(value: Encoded) -> bool:
    """Whether the value is a reference to a blob that holds all of it."""
    return whole_reference(value) is not None
