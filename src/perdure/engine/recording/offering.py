"""A decision about a run that nobody drives: one transition, which claims the run and lets go of it at once."""

from __future__ import annotations

import asyncio

from perdure.engine.recording.committer import Committer
from perdure.errors import StoreError
from perdure.store.transitions import Outcome, Transition


class Offer:
    """A single transition on its way through the one door."""

    def __init__(self, transition: Transition) -> None:
        self._transition: Transition | None = transition
        self._answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def committed_by(self, committer: Committer) -> Outcome:
        """Have it committed, and return what became of it. Raises a StoreError."""
        committer.submit(self)
        return await asyncio.shield(self._answer)

    @property
    def is_gone(self) -> bool:
        return False

    def next_transition(self) -> Transition | None:
        transition, self._transition = self._transition, None
        return transition

    def being_written(self, *, alone: bool) -> bool:
        return False

    def committed(self, transition: Transition, outcome: Outcome) -> None:
        self._answer.set_result(outcome)

    def storage_failed(self, error: StoreError) -> None:
        self._answer.set_exception(error)
