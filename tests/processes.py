"""What the kernel tells about processes that may end at any time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    return [pid for pid in _all() if (fields := _fields(pid)) is not None and int(fields[1]) == parent]


def is_running(pid: int) -> bool:
    """Tell whether a process is there and has not ended."""
    fields = _fields(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def signal_all(pids: Iterable[int], which: signal.Signals) -> None:
    """Send a signal to those of the processes that have not ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, which)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _fields(pid: int) -> list[str] | None:
    """Return what stands behind the name of a process, or None if it is gone: first its state, then its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
