"""Where the bench keeps what it makes: everything under `.bench`, beside this folder, and nothing anywhere else."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROOT = PROJECT / ".bench"


@contextmanager
def scratch(prefix: str) -> Generator[Path]:
    """A folder for one measurement. It is on the project's disk: `/tmp` may be memory.

    Its files are emptied afterwards, and go when the session ends, not before: whoever makes files where others were just removed
    is slower, because for some minutes ext4 looks at each inode that has become free, and passes over it.
    """
    ROOT.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=ROOT))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        yield folder
    finally:
        for file in folder.rglob("*"):
            if file.is_file() and not file.is_symlink():
                with suppress(OSError):  # it may have gone meanwhile, and what went wrong before matters more
                    os.truncate(file, 0)
