"""Making files durable: what was written, and under which name; and saying what keeps them from being written."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from perdure.errors import StoreFull, StoreReadOnly, StoreUnavailable

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
NOT_ALLOWED: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))


@contextmanager
def writing_to(place: Path) -> Generator[None]:
    """Turn errors of the operating system into ours, where files are written to a place."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StoreFull(f"There is no room for {place} ({error.strerror}). Make room and try again.") from error
        if error.errno in NOT_ALLOWED:
            raise StoreReadOnly(
                f"{place} cannot be written ({error.strerror}). Give this process the right to write there."
            ) from error
        raise StoreUnavailable(f"{place} cannot be written ({error.strerror or error}).") from error


def sync_file(file: BinaryIO) -> None:
    """Return when all that was written to an open file is on the disk."""
    file.flush()
    sync(file.fileno())


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Return when what was written to a file, or to a folder, is on the disk."""
    if sys.platform == "darwin":
        # There fsync leaves the data in the drive's own memory.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
