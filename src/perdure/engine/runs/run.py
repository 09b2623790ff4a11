"""A run as its user holds it: ask what it does, wait for it, tell it something. Works whichever engine drives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin

from perdure.engine.driving.driver import NotOurs
from perdure.engine.owning.adoption import is_addressed
from perdure.engine.owning.doctoring import Diagnosis
from perdure.engine.owning.leases import is_alive
from perdure.engine.recording.hub import Flash
from perdure.engine.runs.forks import Forks
from perdure.engine.runs.kept import Kept
from perdure.engine.stored.following import last_events
from perdure.engine.stored.progress import Progress, progress_now
from perdure.errors import RunCancelled, RunFailed, RunResting, ValuesDeleted
from perdure.graph.annotations import shaped
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.ids import RunId, Seq
from perdure.journal.deletion import DELETED
from perdure.journal.events import Encoded, Recorded
from perdure.journal.resting import IN_DOUBT
from perdure.journal.states import MOVING, TERMINAL, WAITING, RunState, RunStatus

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

R = TypeVar("R")


EVENTS_PER_PAGE = 500
_HELD_UP = frozenset((RunStatus.QUARANTINED, RunStatus.PAUSED))
"""Somebody has stopped the run, or has to look after it."""


class Run(Forks, Kept, Generic[R]):
    """A handle on one run."""

    def __init__(self, engine: Engine, run_id: RunId, annotation: Any = Any) -> None:
        super().__init__(engine, run_id)
        self._annotation = annotation

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    async def status(self) -> RunStatus:
        return (await self.state()).status

    async def progress(self) -> Progress:
        """Return how far the run has come, and how long the rest of it will take, as far as earlier runs of its version tell."""
        stored = await self.load()
        is_here = self._engine.driver_of(self.run_id) is not None
        is_driven = stored.run.status in MOVING and (is_here or await is_alive(self._engine.store, stored.owner))
        graph, now = await self._engine.graph_of(stored.run), self._engine.clock.now_micros()
        return await progress_now(self._engine.store, stored, graph, now=now, is_driven=is_driven)

    async def result(self) -> R:
        """Wait for the end and return the outputs, however long the run itself waits for answers, signals or a time.

        Raises RunFailed or RunCancelled if that is how it ended, RunResting if it is paused or quarantined, or in doubt.
        """
        run = await self._until(_is_held_up)
        match run.status:
            case RunStatus.COMPLETED:
                if DELETED in (run.outputs or {}).values():
                    raise ValuesDeleted(run.run_id)
                return cast("R", await self._outputs(run))
            case RunStatus.FAILED:
                assert run.error is not None
                raise RunFailed(run.run_id, run.failed_node, run.error.type, run.error.message, run.error.traceback)
            case RunStatus.CANCELLED:
                raise RunCancelled(run.run_id, run.reason)
            case _:
                raise RunResting(run.run_id, run.status.value, run.reason)

    async def wait(self) -> RunState:
        """Return the run's state once it has ended, or rests until someone acts: answers, signals, resumes or resolves.

        Raises RunNotReadable if the run was left here because of values that this process cannot read.
        """
        return await self._until(_rests_until_someone_acts)

    async def _until(self, rests: Callable[[RunState], bool]) -> RunState:
        driver = self._engine.driver_of(self.run_id)
        if driver is not None:
            try:
                run = await asyncio.shield(driver.rested)
                if run.status in TERMINAL:
                    return run
            except NotOurs:
                pass  # another engine has it: watch it from outside
        is_asked_for = False
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                run = await self.state()
                if run.status in TERMINAL:
                    return run
                if rests(run) and rests((stored := await self.load()).run) and not is_addressed(stored):
                    return stored.run
                if (problem := await self._engine.not_readable(self.run_id)) is not None:
                    raise problem
                if not is_asked_for:  # nobody may be driving it, or nobody any more
                    await self._engine.commanded(self.run_id)
                    is_asked_for = True
                await self._engine.news(changed)

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[Recorded]:
        """Yield the run's events in order, each once; with `follow`, until the run has ended. Of a run with `journal="audit"`
        some may be missing."""
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                run = await self.state()
                if follow and run.audit is not None and run.status in TERMINAL:
                    await last_events(self._engine.store, run, self._engine.clock, after=after)
                while page := await self._engine.store.load_events(
                    self.run_id, after=Seq(after), limit=EVENTS_PER_PAGE
                ):
                    for entry in page:
                        yield entry
                    after = page[-1].seq
                if not follow or (run.status in TERMINAL and (run.audit is not None or after >= run.last_seq)):
                    return
                await self._engine.news(changed)

    async def doctor(self, *, fix: bool = False) -> Diagnosis:
        """Compare what is recorded of the run with what its log says, and return what is wrong. With `fix`, have the run go on
        on a branch that agrees with its log: nothing is taken from it, and no node that is recorded as done runs again."""
        return (await self._engine.doctor(self.run_id, fix=fix))[0]

    def flashes(self) -> AsyncIterator[Flash]:
        """Yield what bodies show with `ctx.progress` and `ctx.publish`, live; only what runs in this process."""
        return self._engine.hub.flashes(self.run_id)

    async def _outputs(self, run: RunState) -> Any:
        outputs = run.outputs or {}
        if set(outputs) <= {DEFAULT_OUTPUT}:
            encoded = outputs.get(DEFAULT_OUTPUT)
            return None if encoded is None else await self._shaped(encoded, self._annotation)
        arguments = get_args(self._annotation)  # of a `dict[str, T]`
        annotation = arguments[1] if get_origin(self._annotation) is dict and arguments else Any
        return {name: await self._shaped(encoded, annotation) for name, encoded in outputs.items()}

    async def _shaped(self, encoded: Encoded, annotation: Any) -> Any:
        """Return a value as the workflow's function has promised it."""
        return shaped(await self._engine.values.unpack(encoded, annotation), annotation)


def _is_held_up(run: RunState) -> bool:
    """Whether the run needs somebody who looks after it."""
    return run.status in _HELD_UP or (run.status is RunStatus.SUSPENDED and run.reason.startswith(IN_DOUBT))


def _rests_until_someone_acts(run: RunState) -> bool:
    moves_by_itself = run.status is RunStatus.SUSPENDED and run.wake_at is not None
    return _is_held_up(run) or (run.status in WAITING and not moves_by_itself)
