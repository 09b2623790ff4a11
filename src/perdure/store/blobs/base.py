"""What every place for blobs promises, whichever it is."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

import msgspec

from perdure.errors import BlobDamaged
from perdure.ids import digest_of, is_digest, new_id
from perdure.store.codecs.wire import BlobRef

P = ParamSpec("P")
R = TypeVar("R")

THREADS: Final = 4
"""How many blobs are written or read at once; the others wait for their turn."""
STREAMS: Final = 4
"""How many are written or read in chunks at once, beside those: large blobs must not hold up small ones."""
CHUNK_BYTES: Final = 1 << 20
"""How much of a blob is in memory while it is written or read in chunks."""


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

    def __init__(self, place: str, *, least_grace: timedelta) -> None:
        self.place: Final = place
        """Where the blobs are, for people: it holds no credentials."""
        self.least_grace: Final = least_grace
        """The shortest grace period of collecting blobs. One that is referred to again counts as put just then, if it is
        half as old or older."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="perdure-blobs")
        self._streams = ThreadPoolExecutor(STREAMS, thread_name_prefix="perdure-assets")

    async def put(self, digest: str, content: bytes) -> None:
        """Keep the blob. It is durable when this returns; when this raises, nothing is kept under its name.

        A blob that is there already is not written again, but counts as put just now.
        """
        await self._in_thread(self.put_sync, digest, content)

    def put_sync(self, digest: str, content: bytes) -> None:
        """As `put`. The digest is the content's: whoever reads it back will hold it to that."""
        _check_name(digest)
        self._put(digest, content)

    def put_unnamed_sync(self, content: bytes) -> str:
        """As `put_sync`, for content whose digest is not known yet: it is worked out meanwhile, and returned."""
        return self._put_unnamed(content)

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

    # In chunks

    async def put_chunks(self, chunks: Iterable[bytes]) -> BlobRef:
        """Keep a blob that comes in chunks, and return its name and size. Durable when this returns, as with `put`.

        The chunks are asked for in a thread; what that raises is passed on.
        """
        return await self._in_stream(self.put_chunks_sync, chunks)

    def put_chunks_sync(self, chunks: Iterable[bytes]) -> BlobRef:
        scratch = self.make_scratch_sync()
        try:
            path = scratch / new_id()
            with self._writing():
                file = path.open("xb", buffering=0)
            with file:
                ref = _measured(self._written(file, chunks))
            with self._writing():
                self._take(path, ref)
            return ref
        finally:
            remove_folder(scratch)

    async def put_file(self, path: Path) -> BlobRef:
        """Keep the content of a file as a blob. One in a scratch folder of this place is moved, any other is copied.

        Raises what opening and reading the file raises, and ValueError if it is no file or changes meanwhile.
        """
        return await self._in_stream(self.put_file_sync, path)

    def put_file_sync(self, path: Path) -> BlobRef:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path} is not a file.")
            # What has a second name may be changed under that one.
            if path.is_symlink() or found.st_nlink != 1 or not self._is_scratch(path):
                return self.put_chunks_sync(chunks_of(file))
            ref = _measured(chunks_of(file))
            after = os.fstat(file.fileno())
        if (after.st_mtime_ns, after.st_size) != (found.st_mtime_ns, ref.size):
            raise ValueError(f"{path} was written to while it was read. Close it before it is kept.")
        with self._writing():
            self._take(path, ref)
        return ref

    def chunks_sync(self, digest: str, size: int) -> Iterator[bytes]:
        """Yield the blob's content, chunk by chunk. The last one comes only after all of them were checked.

        Raises BlobMissing or BlobDamaged.
        """
        _check_name(digest)
        hashed, seen, held = hashlib.sha256(), 0, b""
        for chunk in self._chunks(digest, size):
            if held:
                yield held
            held = chunk
            hashed.update(chunk)
            seen += len(chunk)
        if seen != size:
            raise BlobDamaged(digest, self.place, f"it has {seen:,} bytes instead of {size:,}")
        if hashed.hexdigest() != digest:
            raise BlobDamaged(digest, self.place, "its content was altered")
        if held:
            yield held

    async def check(self, digest: str, size: int) -> None:
        """Read the blob and keep nothing of it. Raises BlobMissing or BlobDamaged."""
        await self._in_stream(_exhaust, self.chunks_sync(digest, size))

    async def local_file(self, digest: str, size: int, scratch: Path) -> Path:
        """Return a file with the blob's content, checked, for reading only. It may be one in the scratch folder.

        Raises BlobMissing or BlobDamaged.
        """
        _check_name(digest)
        return await self._in_stream(self._local_file, digest, size, scratch)

    # Files that are to become blobs

    async def make_scratch(self) -> Path:
        """Make a folder for files that `put_file` can move. Whoever makes it removes it."""
        return await self._in_stream(self.make_scratch_sync)

    def make_scratch_sync(self) -> Path:
        with self._writing():
            return self._make_scratch()

    def remove_scratch(self, scratch: Path) -> None:
        """Have such a folder removed, with everything in it. Returns at once, unless this place is closed."""
        try:
            self._streams.submit(remove_folder, scratch)
        except RuntimeError:
            remove_folder(scratch)

    # What is there

    async def refresh(self, digest: str, size: int) -> None:
        """Let a blob that is there count as put just now, because something is about to refer to it. It is not read.

        Raises BlobMissing, and BlobDamaged if it has another size.
        """
        _check_name(digest)
        await self._in_thread(self._refresh, digest, size)

    def refresh_sync(self, digest: str, size: int) -> None:
        _check_name(digest)
        self._refresh(digest, size)

    async def exists(self, digest: str) -> bool:
        """Return whether something is kept under the digest, unchecked."""
        _check_name(digest)
        return await self._in_thread(self._exists, digest)

    async def delete(self, digest: str) -> None:
        """Forget the blob, if it is there. The caller knows that nothing refers to it or is about to."""
        _check_name(digest)
        await self._in_thread(self._delete, digest)

    async def delete_if_older(self, digest: str, put_before: int) -> bool:
        """Forget the blob if it was last put before this moment (microseconds since 1970); return whether it was forgotten.

        The caller knows that nothing refers to it. One that is put or refreshed meanwhile stays.
        """
        _check_name(digest)
        return await self._in_thread(self._delete_if_older, digest, put_before)

    async def list(self) -> AsyncIterator[StoredBlob]:
        """Show all blobs, in no order. Those that come or go meanwhile may or may not be among them."""
        pages = self._pages()
        while (page := await self._in_thread(next, pages, None)) is not None:
            for blob in page:
                yield blob

    async def close(self) -> None:
        """Wait for what is under way and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._streams.shutdown)

    async def _in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    async def _in_stream(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._streams, lambda: work(*args, **kwargs))

    def _written(self, file: _Writable, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Write the chunks as they come, and yield them. Only what writing raises is translated."""
        for chunk in chunks:
            with self._writing():
                _write_all(file, chunk)
            yield chunk

    @abstractmethod
    def _writing(self) -> AbstractContextManager[None]:
        """Turn what writing to local files raises into errors of stores."""

    @abstractmethod
    def _put(self, digest: str, content: bytes) -> None: ...

    def _put_unnamed(self, content: bytes) -> str:
        digest = digest_of(content)
        self._put(digest, content)
        return digest

    @abstractmethod
    def _get(self, digest: str, size: int) -> bytes:
        """Return what is kept under the digest. May refuse early what has another size."""

    @abstractmethod
    def _chunks(self, digest: str, size: int) -> Iterator[bytes]:
        """Yield what is kept under the digest. May refuse early what has another size."""

    @abstractmethod
    def _take(self, path: Path, ref: BlobRef) -> None:
        """Make a file in a scratch folder the blob that it is. It may be gone afterwards."""

    @abstractmethod
    def _is_scratch(self, path: Path) -> bool:
        """Return whether a file is in a scratch folder of this place."""

    @abstractmethod
    def _make_scratch(self) -> Path: ...

    @abstractmethod
    def _local_file(self, digest: str, size: int, scratch: Path) -> Path: ...

    @abstractmethod
    def _refresh(self, digest: str, size: int) -> None: ...

    @abstractmethod
    def _exists(self, digest: str) -> bool: ...

    @abstractmethod
    def _delete(self, digest: str) -> None: ...

    @abstractmethod
    def _delete_if_older(self, digest: str, put_before: int) -> bool: ...

    @abstractmethod
    def _pages(self) -> Iterator[Sequence[StoredBlob]]: ...


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


class _Writable(Protocol):
    def write(self, content: memoryview, /) -> int | None: ...


def chunks_of(file: _Readable) -> Iterator[bytes]:
    """Yield what is left to read of an open file."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def _measured(chunks: Iterable[bytes]) -> BlobRef:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
    return BlobRef(hashed.hexdigest(), size)


def _write_all(file: _Writable, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) or 0 :]


def _exhaust(chunks: Iterator[bytes]) -> None:
    for _ in chunks:
        pass


def _open_at_once(path: str, flags: int) -> int:
    """Opening a named pipe would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_name(digest: str) -> None:
    if not is_digest(digest):
        raise ValueError(f"{digest[:80]!r} is not the name of a blob: it must be a sha256 in lower-case hexadecimal.")
