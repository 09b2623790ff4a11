"""Blobs in an object store (S3, GCS, Azure, …), through the `obstore` package. Putting an object there is atomic."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError

from perdure.clock import EPOCH, Clock, SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreUnavailable
from perdure.ids import is_digest
from perdure.store.blobs.base import BlobStore, StoredBlob

if TYPE_CHECKING:
    from datetime import datetime

    from obstore.store import ObjectStore

_PAGE_SIZE: Final = 1_000
# An object's age cannot be reset but by writing it again. Half of the shortest grace period of collecting blobs.
_FRESH: Final = timedelta(hours=12)


class ObjectBlobs(BlobStore):
    """Keeps blobs in an object store, under the same names as in a folder."""

    def __init__(self, store: ObjectStore, place: str, *, clock: Clock | None = None) -> None:
        super().__init__(place)
        self._store = store
        self._clock = clock or SystemClock()

    def _put(self, digest: str, content: bytes) -> None:
        with self._translated():
            if not self._is_fresh(digest, len(content)):
                obstore.put(self._store, _key(digest), content)

    def _get(self, digest: str, size: int) -> bytes:
        with self._translated():
            try:
                found = obstore.get(self._store, _key(digest))
            except FileNotFoundError:
                raise BlobMissing(digest, self.place) from None
            if found.meta["size"] != size:
                raise BlobDamaged(digest, self.place, f"it has {found.meta['size']:,} bytes instead of {size:,}")
            return bytes(found.bytes())

    def _exists(self, digest: str) -> bool:
        with self._translated():
            try:
                obstore.head(self._store, _key(digest))
            except FileNotFoundError:
                return False
            return True

    def _delete(self, digest: str) -> None:
        with self._translated():
            try:
                obstore.delete(self._store, _key(digest))
            except FileNotFoundError:
                return

    def _pages(self) -> Iterator[Sequence[StoredBlob]]:
        # Its stubs mention the types of an Arrow package that need not be there.
        pages = obstore.list(self._store, chunk_size=_PAGE_SIZE)  # pyright: ignore[reportUnknownMemberType]
        while True:
            with self._translated():
                page = next(pages, None)
            if page is None:
                return
            named = [(meta["path"].rpartition("/")[2], meta) for meta in page]
            yield [
                StoredBlob(name, meta["size"], _micros(meta["last_modified"]))
                for name, meta in named
                if is_digest(name)
            ]

    def _is_fresh(self, digest: str, size: int) -> bool:
        try:
            found = obstore.head(self._store, _key(digest))
        except FileNotFoundError:
            return False
        age = timedelta(microseconds=self._clock.now_micros() - _micros(found["last_modified"]))
        return found["size"] == size and age < _FRESH

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            # What follows the first line is for debugging, and may hold credentials.
            problem = str(error).partition("\n")[0]
            raise StoreUnavailable(f"The blobs in {self.place} cannot be used: {problem}") from None


def _key(digest: str) -> str:
    return f"{digest[:2]}/{digest}"


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)
