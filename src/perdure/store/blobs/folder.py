"""Blobs in a folder: `ab/abcd…`, one file each, named by its digest.

A blob is written under a temporary name in `tmp/`, synced, renamed to its own name, and the folder that holds the name
is synced: a file under a digest is whole, whenever the machine stops. What is left in `tmp/` by processes that were
killed, files and scratch folders, is removed when it is a day old.

Putting and refreshing hold a shared lock on the folder of the blob's name, collecting an exclusive one: a blob is never
removed between being found there by a writer and being young again.

Everything below the folder itself is opened without following symbolic links, and only its owner can read it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Final

from perdure.clock import Clock, SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.ids import digest_of, is_digest, new_id
from perdure.store.blobs.base import BlobStore, StoredBlob, chunks_of
from perdure.store.codecs.wire import BlobRef
from perdure.store.files import NO_ROOM, NOT_ALLOWED, sync

LEFTOVER_AGE: Final = timedelta(hours=24)
"""When a temporary file or scratch folder in which nothing was written for so long is taken to be nobody's."""
LEAST_GRACE: Final = timedelta(hours=1)

_MOST_CHECKED: Final = 1_000

NAMING: Final = 2
"""How many names are worked out at once, each while its content is written. Who finds no thread for that does both in turn."""
NAMED_BESIDE_BYTES: Final = 1 << 19
"""The name of anything smaller is worked out first, so that what is there already is not written again."""

_TEMPORARY: Final = "tmp"
_LEAVES: Final = tuple(f"{first:02x}" for first in range(256))
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_INNER_FOLDER: Final = _FOLDER | os.O_NOFOLLOW
# Opening a named pipe would wait for its other end, were it not for O_NONBLOCK.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS: Final = frozenset((errno.ELOOP, errno.ENOTDIR, errno.EISDIR))


class FolderBlobs(BlobStore):
    """Keeps blobs in a folder, which is made when the first blob is put."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self._root = Path(path).absolute()
        super().__init__(str(self._root), least_grace=LEAST_GRACE)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_prepared = False
        self._checked: dict[str, tuple[int, int]] = {}
        """By digest, the inode and time of change of files whose content was checked."""
        self._naming = ThreadPoolExecutor(NAMING, thread_name_prefix="perdure-naming")
        self._namers = threading.BoundedSemaphore(NAMING)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._naming.shutdown)

    def remove_leftovers(self) -> int:
        """Remove temporary files and scratch folders that are a day old, and return how many there were."""
        removed = 0
        oldest_micros = self._clock.now_micros() - LEFTOVER_AGE // timedelta(microseconds=1)
        with self._translated(None), _opened(self._root) as root, _entered(root, _TEMPORARY) as temporary:
            for name in os.listdir(temporary):
                with suppress(FileNotFoundError):  # Another process may be doing the same.
                    if _used_at(temporary, name) // 1_000 < oldest_micros:
                        _remove(temporary, name)
                        removed += 1
        return removed

    def _put(self, digest: str, content: bytes) -> None:
        try:
            self._prepare()
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf:
                if not _refreshed(leaf, digest, len(content)):
                    with _entered(root, _TEMPORARY) as temporary, _written(temporary, content) as written:
                        written.sync()
                        written.become(digest, leaf)
                # Also for a blob that was there: whoever has renamed it may not have come this far yet.
                sync(leaf)
        except FileNotFoundError as error:
            raise self._removed() from error

    def _put_unnamed(self, content: bytes) -> str:
        if len(content) < NAMED_BESIDE_BYTES or not self._namers.acquire(blocking=False):
            return super()._put_unnamed(content)
        try:
            return self._put_while_named(content)
        except FileNotFoundError as error:
            raise self._removed() from error
        finally:
            self._namers.release()

    def _put_while_named(self, content: bytes) -> str:
        """Work the name out in another thread meanwhile: neither needs the interpreter, and both take about as long."""
        self._prepare()
        with self._translated(None), _opened(self._root) as root, _entered(root, _TEMPORARY) as temporary:
            naming = self._name(content)
            with _written(temporary, content) as written:
                if not (naming.done() and _is_there(root, naming.result(), len(content))):
                    written.sync()
                digest = naming.result()
                with self._translated(digest), _leaf(root, digest) as leaf:
                    if not _refreshed(leaf, digest, len(content)):
                        written.sync()
                        written.become(digest, leaf)
                    sync(leaf)
                return digest

    def _name(self, content: bytes) -> Future[str]:
        try:
            return self._naming.submit(digest_of, content)
        except RuntimeError:  # the place is closed, and a body has ended after that
            named: Future[str] = Future()
            named.set_result(digest_of(content))
            return named

    def _get(self, digest: str, size: int) -> bytes:
        with self._reading(digest, size) as file:
            return file.readall()

    def _chunks(self, digest: str, size: int) -> Iterator[bytes]:
        with self._reading(digest, size) as file:
            yield from chunks_of(file)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            with self._translated(None):
                yield
        except FileNotFoundError as error:
            raise self._removed() from error

    def _make_scratch(self) -> Path:
        self._prepare()
        path = self._root / _TEMPORARY / new_id()
        path.mkdir(0o700)
        return path

    def _is_scratch(self, path: Path) -> bool:
        folder = os.path.realpath(path.parent)
        return folder.startswith(os.path.realpath(self._root / _TEMPORARY) + os.sep)

    def _take(self, path: Path, ref: BlobRef) -> None:
        descriptor = os.open(path, _READ)
        try:
            # Whoever has a path to the blob shall not change it by accident.
            os.fchmod(descriptor, 0o400)
            sync(descriptor)
        finally:
            os.close(descriptor)
        with self._translated(ref.digest), _opened(self._root) as root, _leaf(root, ref.digest) as leaf:
            if _refreshed(leaf, ref.digest, ref.size):
                os.unlink(path)
            else:
                _rename(path, None, ref.digest, leaf)
            sync(leaf)

    def _local_file(self, digest: str, size: int, scratch: Path) -> Path:
        with self._reading(digest, size) as file:
            found = os.fstat(file.fileno())
        if self._checked.get(digest) != (found.st_ino, found.st_ctime_ns):
            for _ in self.chunks_sync(digest, size):
                pass
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked[digest] = (found.st_ino, found.st_ctime_ns)
        return self._root / digest[:2] / digest

    def _refresh(self, digest: str, size: int) -> None:
        try:
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf, _shared(leaf):
                found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
                self._require_file(digest, size, found)
                if self._age(found) >= self.least_grace / 2:
                    os.utime(digest, dir_fd=leaf, follow_symlinks=False)
        except FileNotFoundError:
            raise BlobMissing(digest, self.place) from None

    def _age(self, found: os.stat_result) -> timedelta:
        return timedelta(microseconds=self._clock.now_micros() - found.st_mtime_ns // 1_000)

    @contextmanager
    def _reading(self, digest: str, size: int) -> Generator[FileIO]:
        try:
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf:
                descriptor = os.open(digest, _READ, dir_fd=leaf)
                with open(descriptor, "rb", buffering=0) as file:
                    self._require_file(digest, size, os.fstat(descriptor))
                    yield file
        except FileNotFoundError:
            raise BlobMissing(digest, self.place) from None

    def _require_file(self, digest: str, size: int, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise BlobDamaged(digest, self.place, "it is not a file")
        if found.st_size != size:
            raise BlobDamaged(digest, self.place, f"it has {found.st_size:,} bytes instead of {size:,}")

    def _exists(self, digest: str) -> bool:
        try:
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf:
                return stat.S_ISREG(os.stat(digest, dir_fd=leaf, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _delete(self, digest: str) -> None:
        with (
            suppress(FileNotFoundError),
            self._translated(digest),
            _opened(self._root) as root,
            _leaf(root, digest) as leaf,
        ):
            os.unlink(digest, dir_fd=leaf)

    def _delete_if_older(self, digest: str, put_before: int) -> bool:
        try:
            with (
                self._translated(digest),
                _opened(self._root) as root,
                _leaf(root, digest) as leaf,
                _locked(leaf, fcntl.LOCK_EX),
            ):
                if os.stat(digest, dir_fd=leaf, follow_symlinks=False).st_mtime_ns // 1_000 >= put_before:
                    return False
                os.unlink(digest, dir_fd=leaf)
        except FileNotFoundError:
            return False
        return True

    def _pages(self) -> Iterator[Sequence[StoredBlob]]:
        for leaf in _LEAVES:
            page: Sequence[StoredBlob] = ()
            with suppress(FileNotFoundError), self._translated(None), _opened(self._root) as root:
                page = list(_blobs_in(root, leaf))
            yield page

    def _prepare(self) -> None:
        with self._lock:
            if self._is_prepared:
                return
            with self._translated(None):
                _make_durable_folder(self._root / _TEMPORARY)
                self._make_leaves()
            self.remove_leftovers()
            self._is_prepared = True

    def _make_leaves(self) -> None:
        """Make all folders for blobs at once: one sync for all of them instead of one in the way of each first blob."""
        with _opened(self._root) as root:
            for leaf in _LEAVES:
                with suppress(FileExistsError):
                    os.mkdir(leaf, 0o700, dir_fd=root)
            # Also for folders that were there: whoever has made them may have been stopped before this.
            sync(root)

    @contextmanager
    def _translated(self, digest: str | None) -> Generator[None]:
        """Turn errors of the operating system into ours, except FileNotFoundError, which each caller understands."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if digest is not None and error.errno in _NOT_OURS:
                raise BlobDamaged(digest, self.place, "something that is not ours is in its place") from error
            raise self._store_error(error) from error

    def _removed(self) -> StoreUnavailable:
        self._is_prepared = False
        return StoreUnavailable(f"The folder {self.place} was removed while blobs were written to it.")

    def _store_error(self, error: OSError) -> StoreError:
        if error.errno in NO_ROOM:
            return StoreFull(
                f"There is no room for a blob in {self.place} ({error.strerror}). Make room and try again."
            )
        if error.errno in NOT_ALLOWED:
            return StoreReadOnly(
                f"The blobs in {self.place} cannot be used ({error.strerror}). Give this process the right to read and "
                "write there."
            )
        return StoreUnavailable(f"The blobs in {self.place} cannot be used ({error.strerror}).")


@contextmanager
def _opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _entered(parent: int, name: str) -> Generator[int]:
    descriptor = os.open(name, _INNER_FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _leaf(root: int, digest: str) -> Generator[int]:
    with _entered(root, digest[:2]) as leaf:
        yield leaf


@contextmanager
def _locked(leaf: int, kind: int) -> Generator[None]:
    fcntl.flock(leaf, kind)
    try:
        yield
    finally:
        fcntl.flock(leaf, fcntl.LOCK_UN)


@contextmanager
def _shared(leaf: int) -> Generator[None]:
    """Keep collectors away from the leaf. A file system without locks has no collectors: they would be refused."""
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(_locked(leaf, fcntl.LOCK_SH))
        yield


def _is_there(root: int, digest: str, size: int) -> bool:
    """Whether there is a blob of this name and size, at this moment."""
    try:
        with _leaf(root, digest) as leaf:
            found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def _refreshed(leaf: int, digest: str, size: int) -> bool:
    """Return whether the blob is there; then it counts as put just now, and is not collected meanwhile."""
    try:
        with _shared(leaf):
            found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return False
            os.utime(digest, dir_fd=leaf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class _Written:
    """A file that is there under a temporary name."""

    def __init__(self, folder: int, name: str, descriptor: int) -> None:
        self._folder = folder
        self._name = name
        self._descriptor = descriptor
        self._is_synced = False
        self.is_temporary = True

    def sync(self) -> None:
        """Make it durable, if it is not."""
        if not self._is_synced:
            sync(self._descriptor)
            self._is_synced = True

    def become(self, digest: str, leaf: int) -> None:
        """Make it the blob that it is. It is durable by then."""
        _rename(self._name, self._folder, digest, leaf)
        self.is_temporary = False


@contextmanager
def _written(temporary: int, content: bytes) -> Generator[_Written]:
    """Write a file under a temporary name, which is removed unless it becomes a blob."""
    name = new_id()
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=temporary)
    written = _Written(temporary, name, descriptor)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[file.write(remaining) :]
            yield written
    finally:
        if written.is_temporary:
            with suppress(OSError):
                os.unlink(name, dir_fd=temporary)


def _rename(source: str | Path, folder: int | None, digest: str, leaf: int) -> None:
    """Give a file that is synced its own name, in place of whatever is there. Whenever it was written, it is put now."""
    with _shared(leaf):
        os.utime(source, dir_fd=folder, follow_symlinks=False)
        os.rename(source, digest, src_dir_fd=folder, dst_dir_fd=leaf)


def _used_at(folder: int, name: str) -> int:
    """Return when something in the folder, or in the folder that it is itself, was last written, in nanoseconds."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        return found.st_mtime_ns
    with _entered(folder, name) as inner:
        return max(found.st_mtime_ns, *(_used_at(inner, held) for held in os.listdir(inner)), 0)


def _remove(folder: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _make_durable_folder(path: Path) -> None:
    if not path.is_dir():
        _make_durable_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir(0o700)
        with _opened(path.parent) as parent:
            sync(parent)


def _blobs_in(folder: int, name: str) -> Iterator[StoredBlob]:
    with suppress(FileNotFoundError, NotADirectoryError), _entered(folder, name) as leaf:
        for digest in os.listdir(leaf):
            with suppress(FileNotFoundError):
                found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
                if is_digest(digest) and stat.S_ISREG(found.st_mode):
                    yield StoredBlob(digest, found.st_size, found.st_mtime_ns // 1_000)
