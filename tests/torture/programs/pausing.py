"""Stopping the process from inside, at a chosen point of a chosen run: what a closed lid or a hypervisor does at any point.

The signal goes to the calling thread, so that it stops exactly there; all others stop with it.
"""

from __future__ import annotations

import signal
import threading

_armed: set[tuple[str, str]] = set()


def arm(point: str, run_id: str) -> None:
    """Stop when this point of the run is met next, once."""
    _armed.add((point, run_id))


def met(point: str, run_id: str) -> None:
    """Say that a point is met. Returns when the process is woken."""
    if (point, run_id) in _armed:
        _armed.discard((point, run_id))
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
