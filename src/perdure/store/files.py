"""Making files durable: what was written, and under which name."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import BinaryIO


def sync_file(file: BinaryIO) -> None:
    """Return when all that was written to an open file is on the disk."""
    file.flush()
    _sync(file.fileno())


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # There fsync leaves the data in the drive's own memory.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
