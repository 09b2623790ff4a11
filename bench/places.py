"""Where the bench keeps what it makes: everything under `.bench`, beside this folder, and nothing anywhere else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROOT = PROJECT / ".bench"


@contextmanager
def scratch(prefix: str) -> Generator[Path]:
    """A folder for one measurement, gone afterwards. It is on the project's disk: `/tmp` may be memory."""
    ROOT.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=ROOT))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
