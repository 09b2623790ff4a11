"""What can be set about an engine, with the defaults that most want."""

from __future__ import annotations

import os

import msgspec


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. The defaults suit many engines on one database; tests shorten them."""

    lease_seconds: float = 30.0
    """An engine that has not renewed for so long is dead to the others."""
    heartbeat_seconds: float = 10.0
    recovery_seconds: float = 5.0
    """How often to look for runs that should move and have no living owner; half of it more or less, at random."""
    poll_seconds: float = 2.0
    """How often to look for commands even if no news arrive."""
    claim_batch: int = 20
    max_recovered_runs: int = 1_000
    """How many runs an engine takes over at most while it has others."""
    trial_seconds: float = 10.0
    """How long a run that was lost more than once without progress is watched at most before others like it are taken up."""
    loop_bodies: int = 1_000
    threads: int = 128
    processes: int = max(1, os.cpu_count() or 1)
    patience_seconds: float = 30.0
    """How long a store may refuse to work before the runs it holds up are dropped from memory."""
    grace_seconds: float = 20.0
    """How long running bodies may go on when the engine is told to stop."""
    hibernate_after: float = 5.0
    """How long a body that waits for an answer, a signal or a time stays in memory. After that it is ended, and run again when
    something comes. 0 ends it at once."""
    warm_runs: int = 100
    """While there are more runs than so many in memory, or others wait for a place, bodies that wait are ended at once."""
    loop_stall_seconds: float = 60.0
    """A loop that has not turned for so long is taken for wedged: the heartbeat stops."""
    inline_max_bytes: int = 256 * 1024
    archive_after_days: float | None = None
    """Runs that have ended longer ago than this leave the database for files. None leaves all of them where they are."""
    archive_every_seconds: float = 3_600.0
    archive_folder: str | None = None
    """Where these files are. None is beside the database file, or in the current folder."""
    compact_longer_than: int | None = 100_000
    """Logs with more events than this that are rows of their own are made compact. None leaves all of them as they are."""
    compact_every_seconds: float = 3_600.0
    heartbeat_in_thread: bool = True
    """A thread of its own keeps the lease while the loop is busy. Simulations keep everything on the loop."""
