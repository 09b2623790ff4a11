"""Taking up runs that may have killed their engine: few at first, so that one that does so again takes few others with it.

A run that was lost twice without progress either kills engines or was beside one that does, and nothing recorded tells which.
So such suspects are taken up one at a time first, and one more for each that proves harmless: by progress, by its end, or by
having lived for a while. An engine that is killed meanwhile counts against those on trial and not against all, and the next
one begins with one again. One whose next loss would be its last is tried alone. So what kills engines is soon alone, and only
it reaches its limit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from perdure.clock import Clock
from perdure.ids import RunId

SUSPECT_LOSSES = 2
"""Losses without progress that make a suspect. One may happen to any run."""


class Defendant(Protocol):
    """A run that was taken up."""

    @property
    def is_harmless(self) -> bool:
        """Whether it has made progress, or is no longer driven here."""
        ...


class Probation:
    """The trials of one engine."""

    def __init__(self, clock: Clock, *, trial_seconds: float) -> None:
        """Who has lived for `trial_seconds` is not what has killed engines one right after the other."""
        self._clock = clock
        self._trial_seconds = trial_seconds
        self._allowed = 1
        self._on_trial: dict[Defendant, float] = {}
        self._alone: Defendant | None = None
        self._refused: set[RunId] = set()

    @property
    def has_refused(self) -> bool:
        """Whether a suspect waits to be taken up."""
        return bool(self._refused)

    def refuses(self, run_id: RunId) -> bool:
        """Whether a run that was refused before would be refused again."""
        return run_id in self._refused and not self._has_room()

    def admits(self, run_id: RunId, losses: int, limit: int) -> bool:
        """Whether a run that has been lost so often without progress, of the `limit` it may be, may be taken up now."""
        is_refused = _is_suspect(losses, limit) and not self._has_room()
        if is_refused or (_is_last_chance(losses, limit) and self._on_trial):
            self._refused.add(run_id)
            return False
        self._refused.discard(run_id)
        return True

    def begin(self, defendant: Defendant, losses: int, limit: int) -> None:
        """A run that was admitted is taken up."""
        if _is_suspect(losses, limit):
            self._on_trial[defendant] = self._clock.monotonic() + self._trial_seconds
        if _is_last_chance(losses, limit):
            self._alone = defendant

    def forget_others(self, claimable: Collection[RunId]) -> None:
        """Only these are still to be taken up."""
        self._refused.intersection_update(claimable)

    def _has_room(self) -> bool:
        now = self._clock.monotonic()
        ended = [defendant for defendant, end in self._on_trial.items() if defendant.is_harmless or now >= end]
        for defendant in ended:
            del self._on_trial[defendant]
        self._allowed += len(ended)
        if self._alone not in self._on_trial:
            self._alone = None
        return self._alone is None and len(self._on_trial) < self._allowed


def _is_suspect(losses: int, limit: int) -> bool:
    return losses >= SUSPECT_LOSSES or _is_last_chance(losses, limit)


def _is_last_chance(losses: int, limit: int) -> bool:
    """Whether one more loss is one too many."""
    return 0 < losses == limit
