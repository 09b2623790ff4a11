"""What an engine offers to those who look after many runs at once: what is asked, and pausing and resuming by filter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from perdure.engine.attempts.values import Values
from perdure.engine.driving.interactions import Interaction, interaction_of
from perdure.engine.driving.sending import PAUSE, RESUME
from perdure.engine.runs.run import Run
from perdure.ids import RunId
from perdure.journal.states import LIVE, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import NEWEST, RunFilter, RunSummary

PAGE = 200
_PAUSED = (RunStatus.PAUSED, RunStatus.PAUSING)


class Telling(ABC):
    """The part of an engine that has to do with many runs."""

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @property
    @abstractmethod
    def values(self) -> Values: ...

    @abstractmethod
    def _handle(self, run_id: RunId) -> Run[object]: ...

    async def questions(self, *, after: tuple[int, str] | None = None, limit: int = 100) -> Sequence[Interaction]:
        """Return what runs ask people and nobody has answered, oldest first. The next page comes `after` the last one's
        (`asked_at` in microseconds, `interaction_id`)."""
        found = await self.store.list_waits(questions_only=True, after=after, limit=limit)
        return [await interaction_of(wait, self.values) for wait in found]

    async def pause(
        self,
        *,
        workflow: str | None = None,
        status: str | Sequence[str] | None = None,
        reason: str = "",
        grace: float | timedelta | None = None,
    ) -> Sequence[RunId]:
        """Ask every run that fits to pause, and return which were asked. Without a status that is every run that has not ended
        and is not paused, or was told to go on since."""
        asked: list[RunId] = []
        async for found in self._fitting(workflow, status, tuple(LIVE)):
            run = self._handle(found.run_id)
            if status is None and found.status in _PAUSED and await stays_paused(self.store, found.run_id):
                continue
            await run.pause(reason, grace=grace)
            asked.append(run.run_id)
        return asked

    async def resume(
        self, *, workflow: str | None = None, status: str | Sequence[str] | None = None, reason: str = ""
    ) -> Sequence[RunId]:
        """Let every run that fits go on, and return which. Without a filter that is every run that is paused."""
        asked: list[RunId] = []
        async for found in self._fitting(workflow, status, _PAUSED):
            await self._handle(found.run_id).resume(reason=reason)
            asked.append(found.run_id)
        return asked

    async def _fitting(
        self, workflow: str | None, status: str | Sequence[str] | None, otherwise: Sequence[RunStatus]
    ) -> AsyncIterator[RunSummary]:
        which = RunFilter(status=chosen_statuses(status) or tuple(otherwise), workflow=workflow)
        before: tuple[int, str] | None = None
        while page := await self.store.list_runs(which, before=before, limit=PAGE):
            before = (page[-1].created_at, page[-1].run_id)
            for found in page:
                yield found


async def stays_paused(store: Store, run_id: RunId) -> bool:
    """Whether a run is paused, or about to be, and nobody has told it to go on since."""
    last_word = await _last_word(store, run_id)  # first: one that is taken up meanwhile shows in the status
    run = await store.load_state(run_id)
    return run is not None and run.status in _PAUSED and last_word != RESUME


async def _last_word(store: Store, run_id: RunId) -> str | None:
    """Return whether a run was told last to pause or to go on; None if nobody has yet to hear of either."""
    before = NEWEST
    while page := await store.latest_commands(run_id, before=before, limit=PAGE):
        for command in page:
            if command.kind in (PAUSE, RESUME):
                return command.kind
        before = (page[-1].created_at, page[-1].command_id)
    return None


def chosen_statuses(status: str | Sequence[str] | None) -> tuple[RunStatus, ...]:
    """Return the statuses that were named. Raises ValueError for one that does not exist."""
    named = () if status is None else (status,) if isinstance(status, str) else tuple(status)
    if unknown := [given for given in named if given not in set(RunStatus)]:
        raise ValueError(f"there is no status {unknown[0]!r}: there are {', '.join(RunStatus)}")
    return tuple(RunStatus(given) for given in named)
