"""What every place for blobs promises, whichever it is."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

import msgspec

from perdure.errors import BlobDamaged
from perdure.ids import digest_of, is_digest

P = ParamSpec("P")
R = TypeVar("R")

THREADS: Final = 4
"""How many blobs are written or read at once; the others wait for their turn."""


class StoredBlob(msgspec.Struct, frozen=True):
    """A blob as a list of them shows it."""

    digest: str
    size: int
    stored_at: int
    """When its content was last put, in microseconds since 1970: what the grace period of collecting starts from."""


class BlobStore(ABC):
    """Keeps blobs. Safe to use from any number of tasks, threads and processes.

    The blocking work of the asynchronous methods happens in a few threads that end with `close`. The synchronous ones
    are for callers that are in a thread already.
    """

    def __init__(self, place: str) -> None:
        self.place: Final = place
        """Where the blobs are, for people: it holds no credentials."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="perdure-blobs")

    async def put(self, digest: str, content: bytes) -> None:
        """Keep the blob. It is durable when this returns; when this raises, nothing is kept under its name.

        A blob that is there already is not written again, but counts as put just now.
        """
        await self._in_thread(self.put_sync, digest, content)

    def put_sync(self, digest: str, content: bytes) -> None:
        """As `put`. The digest is the content's: whoever reads it back will hold it to that."""
        _check_name(digest)
        self._put(digest, content)

    async def get(self, digest: str, size: int) -> bytes:
        """Return the blob's content, checked. Raises BlobMissing or BlobDamaged."""
        return await self._in_thread(self.get_sync, digest, size)

    def get_sync(self, digest: str, size: int) -> bytes:
        _check_name(digest)
        content = self._get(digest, size)
        if len(content) != size:
            raise BlobDamaged(digest, self.place, f"it has {len(content):,} bytes instead of {size:,}")
        if digest_of(content) != digest:
            raise BlobDamaged(digest, self.place, "its content was altered")
        return content

    async def exists(self, digest: str) -> bool:
        """Return whether something is kept under the digest, unchecked."""
        _check_name(digest)
        return await self._in_thread(self._exists, digest)

    async def delete(self, digest: str) -> None:
        """Forget the blob, if it is there. The caller knows that nothing refers to it or is about to."""
        _check_name(digest)
        await self._in_thread(self._delete, digest)

    async def list(self) -> AsyncIterator[StoredBlob]:
        """Show all blobs, in no order. Those that come or go meanwhile may or may not be among them."""
        pages = self._pages()
        while (page := await self._in_thread(next, pages, None)) is not None:
            for blob in page:
                yield blob

    async def close(self) -> None:
        """Wait for what is under way and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @abstractmethod
    def _put(self, digest: str, content: bytes) -> None: ...

    @abstractmethod
    def _get(self, digest: str, size: int) -> bytes:
        """Return what is kept under the digest. May refuse early what has another size."""

    @abstractmethod
    def _exists(self, digest: str) -> bool: ...

    @abstractmethod
    def _delete(self, digest: str) -> None: ...

    @abstractmethod
    def _pages(self) -> Iterator[Sequence[StoredBlob]]: ...


def _check_name(digest: str) -> None:
    if not is_digest(digest):
        raise ValueError(f"{digest[:80]!r} is not the name of a blob: it must be a sha256 in lower-case hexadecimal.")
