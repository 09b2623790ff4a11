"""Which dispatch an engine gets unless it is given one."""

from __future__ import annotations

from perdure.dispatch.base import Dispatch
from perdure.dispatch.local import LocalDispatch


def open_dispatch(*, threads: int, processes: int) -> Dispatch:
    """Return a dispatch that runs bodies on this machine. Threads and processes start when the first body needs one."""
    return LocalDispatch(threads=threads, processes=processes)
