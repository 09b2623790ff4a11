"""Blobs in a folder: `ab/abcd…`, one file each, named by its digest.

A blob is written under a temporary name in `tmp/`, synced, renamed to its own name, and the folder that holds the name
is synced: a file under a digest is whole, whenever the machine stops. What is left in `tmp/` by processes that were
killed is removed when it is a day old.

Everything below the folder itself is opened without following symbolic links, and only its owner can read it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from perdure.clock import Clock, SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.ids import is_digest, new_id
from perdure.store.blobs.base import BlobStore, StoredBlob

LEFTOVER_AGE: Final = timedelta(hours=24)
"""When a temporary file is taken to be nobody's. No write takes that long."""

_TEMPORARY: Final = "tmp"
_LEAVES: Final = tuple(f"{first:02x}" for first in range(256))
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_INNER_FOLDER: Final = _FOLDER | os.O_NOFOLLOW
# Opening a named pipe would wait for its other end, were it not for O_NONBLOCK.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NOT_ALLOWED: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
_NOT_OURS: Final = frozenset((errno.ELOOP, errno.ENOTDIR, errno.EISDIR))


class FolderBlobs(BlobStore):
    """Keeps blobs in a folder, which is made when the first blob is put."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self._root = Path(path).absolute()
        super().__init__(str(self._root))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_prepared = False

    def remove_leftovers(self) -> int:
        """Remove temporary files that are a day old, and return how many there were."""
        removed = 0
        oldest_micros = self._clock.now_micros() - LEFTOVER_AGE // timedelta(microseconds=1)
        with self._translated(None), _opened(self._root) as root, _entered(root, _TEMPORARY) as temporary:
            for name in os.listdir(temporary):
                with suppress(FileNotFoundError):  # Another process may be doing the same.
                    if os.stat(name, dir_fd=temporary, follow_symlinks=False).st_mtime_ns // 1_000 < oldest_micros:
                        os.unlink(name, dir_fd=temporary)
                        removed += 1
        return removed

    def _put(self, digest: str, content: bytes) -> None:
        try:
            self._prepare()
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf:
                if not _refreshed(leaf, digest, len(content)):
                    with _entered(root, _TEMPORARY) as temporary:
                        _write(temporary, leaf, digest, content)
                # Also for a blob that was there: whoever has renamed it may not have come this far yet.
                _sync(leaf)
        except FileNotFoundError as error:
            self._is_prepared = False
            raise StoreUnavailable(f"The folder {self.place} was removed while blobs were written to it.") from error

    def _get(self, digest: str, size: int) -> bytes:
        try:
            with self._translated(digest), _opened(self._root) as root, _leaf(root, digest) as leaf:
                descriptor = os.open(digest, _READ, dir_fd=leaf)
                with open(descriptor, "rb", buffering=0) as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode):
                        raise BlobDamaged(digest, self.place, "it is not a file")
                    if found.st_size != size:
                        raise BlobDamaged(digest, self.place, f"it has {found.st_size:,} bytes instead of {size:,}")
                    return file.readall()
        except FileNotFoundError:
            raise BlobMissing(digest, self.place) from None

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
            _sync(root)

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

    def _store_error(self, error: OSError) -> StoreError:
        if error.errno in _NO_ROOM:
            return StoreFull(
                f"There is no room for a blob in {self.place} ({error.strerror}). Make room and try again."
            )
        if error.errno in _NOT_ALLOWED:
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


def _refreshed(leaf: int, digest: str, size: int) -> bool:
    """Return whether the blob is there; then it counts as put just now, and is not collected meanwhile."""
    try:
        found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return False
        os.utime(digest, dir_fd=leaf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(temporary: int, leaf: int, digest: str, content: bytes) -> None:
    name = new_id()
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=temporary)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[file.write(remaining) :]
            _sync(descriptor)
        os.rename(name, digest, src_dir_fd=temporary, dst_dir_fd=leaf)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=temporary)
        raise


def _make_durable_folder(path: Path) -> None:
    if not path.is_dir():
        _make_durable_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir(0o700)
        with _opened(path.parent) as parent:
            _sync(parent)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # There fsync leaves the data in the drive's own memory.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _blobs_in(folder: int, name: str) -> Iterator[StoredBlob]:
    with suppress(FileNotFoundError, NotADirectoryError), _entered(folder, name) as leaf:
        for digest in os.listdir(leaf):
            with suppress(FileNotFoundError):
                found = os.stat(digest, dir_fd=leaf, follow_symlinks=False)
                if is_digest(digest) and stat.S_ISREG(found.st_mode):
                    yield StoredBlob(digest, found.st_size, found.st_mtime_ns // 1_000)
