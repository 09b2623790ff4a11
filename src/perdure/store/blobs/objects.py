"""Blobs in an object store (S3, GCS, Azure, …), through the `obstore` package. Putting an object there is atomic.

A blob that comes in chunks is written to a local file first: what it is called is known only at its end. What is to be read
as a file is downloaded.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError

from perdure.clock import EPOCH, Clock, SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreFull, StoreUnavailable
from perdure.ids import is_digest, new_id
from perdure.store.blobs.base import CHUNK_BYTES, BlobStore, StoredBlob
from perdure.store.codecs.wire import BlobRef

if TYPE_CHECKING:
    from datetime import datetime

    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore

_PAGE_SIZE: Final = 1_000
# An object's age cannot be reset but by writing it again, which is not to happen each time.
LEAST_GRACE: Final = timedelta(hours=24)
_SCRATCH: Final = "perdure-"
# At most 10,000 parts are allowed in S3, and two of them are in memory.
_PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 2


class ObjectBlobs(BlobStore):
    """Keeps blobs in an object store, under the same names as in a folder."""

    def __init__(self, store: ObjectStore, place: str, *, clock: Clock | None = None) -> None:
        super().__init__(place, least_grace=LEAST_GRACE)
        self._store = store
        self._clock = clock or SystemClock()

    def _put(self, digest: str, content: bytes) -> None:
        with self._translated():
            if not self._is_fresh(digest, len(content)):
                obstore.put(self._store, _key(digest), content)

    def _get(self, digest: str, size: int) -> bytes:
        with self._translated():
            return bytes(self._found(digest, size).bytes())

    def _chunks(self, digest: str, size: int) -> Iterator[bytes]:
        with self._translated():
            chunks = iter(self._found(digest, size).stream(min_chunk_size=CHUNK_BYTES))
        while True:
            with self._translated():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield bytes(chunk)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreUnavailable
            raise kind(
                f"Blobs on their way to {self.place} cannot be written to {tempfile.gettempdir()} ({error.strerror}). "
                "Make room there, or name another folder in the environment variable TMPDIR."
            ) from error

    def _make_scratch(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=_SCRATCH))

    def _is_scratch(self, path: Path) -> bool:
        return path.parent.name.startswith(_SCRATCH) and str(path.parent.parent) == tempfile.gettempdir()

    def _take(self, path: Path, ref: BlobRef) -> None:
        with self._translated():
            if not self._is_fresh(ref.digest, ref.size):
                obstore.put(self._store, _key(ref.digest), path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def _local_file(self, digest: str, size: int, scratch: Path) -> Path:
        path = scratch / digest
        if not path.exists():
            partial = scratch / new_id()
            chunks = self.chunks_sync(digest, size)
            with self._writing():
                file = partial.open("xb")
            with file:
                for _ in self._written(file, chunks):
                    pass
            with self._writing():
                partial.chmod(0o400)
                os.replace(partial, path)
        return path

    def _refresh(self, digest: str, size: int) -> None:
        with self._translated():
            try:
                found = obstore.head(self._store, _key(digest))
            except FileNotFoundError:
                raise BlobMissing(digest, self.place) from None
            if found["size"] != size:
                raise BlobDamaged(digest, self.place, f"it has {found['size']:,} bytes instead of {size:,}")
            if self._age(found) >= self.least_grace / 2:
                self._copy_anew(_key(digest))

    def _copy_anew(self, key: str) -> None:
        """Make an object young. There are stores that refuse to copy an object to itself."""
        beside = f"tmp/{new_id()}"
        obstore.copy(self._store, key, beside)
        try:
            obstore.copy(self._store, beside, key)
        finally:
            with suppress(FileNotFoundError):
                obstore.delete(self._store, beside)

    def _found(self, digest: str, size: int) -> GetResult:
        try:
            found = obstore.get(self._store, _key(digest))
        except FileNotFoundError:
            raise BlobMissing(digest, self.place) from None
        if found.meta["size"] != size:
            raise BlobDamaged(digest, self.place, f"it has {found.meta['size']:,} bytes instead of {size:,}")
        return found

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

    def _delete_if_older(self, digest: str, put_before: int) -> bool:
        with self._translated():
            try:
                # Nothing can be deleted on condition that it has not changed: asked for as late as can be.
                if _micros(obstore.head(self._store, _key(digest))["last_modified"]) >= put_before:
                    return False
                obstore.delete(self._store, _key(digest))
            except FileNotFoundError:
                return False
            return True

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
        return found["size"] == size and self._age(found) < self.least_grace / 2

    def _age(self, found: ObjectMeta) -> timedelta:
        return timedelta(microseconds=self._clock.now_micros() - _micros(found["last_modified"]))

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
