"""What the command line tells its caller when it ends."""

from __future__ import annotations

from enum import IntEnum

from perdure.errors import PerdureError, RunCancelled, RunFailed, RunResting


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    WAITING = 3
    CANCELLED = 4
    BUG = 70
    """Perdure itself is at fault. The number is what BSD's sysexits calls an internal software error."""
    INTERRUPTED = 130
    """By Ctrl-C. Other signals give 128 and their number in the same way."""


def exit_for(error: PerdureError) -> Exit:
    """Return the exit code for a command that ended with this error."""
    match error:
        case RunFailed():
            return Exit.FAILED
        case RunCancelled():
            return Exit.CANCELLED
        case RunResting():
            return Exit.WAITING
        case _:
            return Exit.WRONG_USE
