"""Staying awake while a record is written that is there at once.

Who sleeps has to be woken, and finds its processor gone cold. Where the database is near and its disk is fast, that slows down a
run of short steps, because it does nothing but wait for one commit after the other. So while commits are that
quick, the loop goes round instead of sleeping, until the record is there or has taken so long that it does not matter. In each
round it offers its processor to whoever waits for it, such as the database. Where commits take longer, because the disk is
slower, groups are larger or the machine is busy, the loop sleeps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from perdure.clock import SystemClock

LONGEST_SECONDS = 0.0004
"""For a commit that takes longer nobody stays awake, nor for the one after it."""


class Vigil:
    """Keeps the loop awake while a commit is on its way, if the last one was quick. There is one commit at a time."""

    def __init__(self, monotonic: Callable[[], float] = SystemClock.monotonic) -> None:
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._was_quick = False
        self._round: asyncio.Handle | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the loop is kept awake."""
        return self._round is not None

    def begin(self) -> None:
        """A commit is on its way."""
        self._began = self._monotonic()

    def keep(self) -> None:
        """There is nothing to be done until it is there, and something at once then."""
        if self._was_quick and self._is_quick():
            self._round = self._loop.call_soon(self._go_round)

    def end(self) -> None:
        """It has ended, however that may be."""
        self._was_quick = self._is_quick()
        self._began = None
        if self._round is not None:
            self._round.cancel()
            self._round = None

    def _go_round(self) -> None:
        os.sched_yield()
        self._round = self._loop.call_soon(self._go_round) if self._is_quick() else None

    def _is_quick(self) -> bool:
        return self._began is not None and self._monotonic() - self._began < LONGEST_SECONDS
