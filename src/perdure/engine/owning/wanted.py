"""The runs that were asked for through one engine: started, waited for, or told something. They are its own concern even where
it leaves all others alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from perdure.ids import RunId

LOOKS_PER_SWEEP = 20
"""Wanted runs that somebody else seems to drive, of which a sweep makes sure: they may have ended there."""


class Wanted:
    """A run is in here from when it was asked for until it has ended or rests."""

    def __init__(self, driven: Collection[RunId]) -> None:
        """`driven` are the runs that the engine drives at any moment."""
        self._driven = driven
        self._runs: dict[RunId, None] = {}
        self._asked: dict[RunId, None] = {}
        """Those to be looked at in the next sweep."""

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._runs

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def has_undriven(self) -> bool:
        """Whether there is one that this engine does not drive."""
        return any(run_id not in self._driven for run_id in self._runs)

    def add(self, run_id: RunId) -> None:
        """Somebody has asked for the run."""
        self._runs[run_id] = None

    def ask(self, run_id: RunId) -> None:
        """Somebody has asked for the run, and waits."""
        self._runs[run_id] = None
        self._asked[run_id] = None

    def discard(self, run_id: RunId) -> None:
        """The run has ended, rests, or is left to others on purpose."""
        self._runs.pop(run_id, None)
        self._asked.pop(run_id, None)

    def take_asked(self) -> Sequence[RunId]:
        """See `recovery.Wanted`. A few others come along in turn, so that each is looked at sooner or later."""
        turn = list(islice((run_id for run_id in self._runs if run_id not in self._driven), LOOKS_PER_SWEEP))
        for run_id in turn:
            self._runs[run_id] = self._runs.pop(run_id)
        # Who was taken up meanwhile may not have heard of why it was asked for: that is looked at when it is let go.
        asked, self._asked = self._asked, {run_id: None for run_id in self._asked if run_id in self._driven}
        return [run_id for run_id in dict.fromkeys((*turn, *asked)) if run_id not in self._driven]

    def is_asked(self, run_id: RunId) -> bool:
        """Whether somebody has asked for the run since it was last taken up, and waits."""
        return run_id in self._asked

    def ask_again(self, run_ids: Sequence[RunId]) -> None:
        """See `recovery.Wanted`."""
        self._asked.update(dict.fromkeys(run_id for run_id in run_ids if run_id in self._runs))
