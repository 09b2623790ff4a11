"""Checkpoints of a run, as its user asks for them and finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from perdure.clock import from_micros
from perdure.dispatch.failure import storable
from perdure.engine.driving.checkpointing import Naming, naming_command
from perdure.engine.runs.fed import Fed
from perdure.errors import CheckpointExists, CheckpointPending, CommandIdTaken, LogNotWhole, RunEnded
from perdure.ids import BranchId, RunId, Seq
from perdure.journal.checkpoints import name_problem
from perdure.journal.states import TERMINAL, CheckpointState
from perdure.store.base import Store

PAGE = 1_000
PATIENCE = timedelta(seconds=60)
"""How long a checkpoint is waited for: longer than it takes others to notice that an engine is dead."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a place in the log of a run. It holds all that was recorded up to there."""

    name: str
    seq: Seq
    """The last event that belongs to it."""
    at: datetime
    """When it was saved."""
    periodic: bool
    """Whether it was saved by itself, because of `checkpoint_every`."""
    branch: BranchId
    """The branch on which the run was."""


def checkpoint_of(saved: CheckpointState) -> Checkpoint:
    """Return a checkpoint as users see it."""
    return Checkpoint(
        name=saved.name,
        seq=saved.seq,
        at=from_micros(saved.saved_at),
        periodic=saved.periodic > 0,
        branch=saved.branch_id,
    )


async def load_checkpoints(store: Store, run_id: RunId) -> list[Checkpoint]:
    """Return the checkpoints of a run, of every branch, oldest first."""
    found: list[Checkpoint] = []
    after = Seq(0)
    while page := await store.list_checkpoints(run_id, after=after, limit=PAGE):
        found += map(checkpoint_of, page)
        after = page[-1].event_seq
    return found


class Checkpoints(Fed):
    """The side of a run whose places in the log have names."""

    async def checkpoint(
        self, name: str, *, timeout: float | timedelta = PATIENCE, command_id: str | None = None
    ) -> Checkpoint:
        """Give the place where the run is a name, and return it when that is recorded. Whatever was recorded before the call
        belongs to it. A run that rests goes on resting.

        A name is given once: raises CheckpointExists if the run has a checkpoint of this name, or was asked for one, unless
        by the same `command_id`. Raises RunEnded if the run has ended, LogNotWhole for a run with `journal="audit"`, and
        ValueError for a name that is none. If whoever drives the run has not recorded it in time, raises CheckpointPending: the
        wish is kept, and will be.
        """
        if (problem := name_problem(name)) is not None:
            raise ValueError(problem)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not seconds >= 0:
            raise ValueError(f"timeout={timeout!r} is no time to wait for")
        there = await self._engine.store.load_checkpoint(self.run_id, name)
        if there is not None and command_id is not None and there.asked_as == storable(command_id):
            return checkpoint_of(there)
        if there is not None:
            raise CheckpointExists(self.run_id, name, there.seq)
        await self._ask_for(name, command_id or self._engine.chance.new_id())
        try:
            async with asyncio.timeout(seconds):
                return await self._saved(name)
        except TimeoutError:
            raise CheckpointPending(self.run_id, name) from None

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Return the run's checkpoints, of every branch, oldest first."""
        await self.state()
        return await load_checkpoints(self._engine.store, self.run_id)

    async def _ask_for(self, name: str, asked_as: str) -> None:
        run = await self.state()
        if run.audit is not None:
            raise LogNotWhole(self.run_id, "no place in it can be given a name")
        if (status := run.status) in TERMINAL:
            raise RunEnded(self.run_id, status.value, f"Checkpoint {name!r} was not saved.")
        store = self._engine.store
        naming = Naming(name=name, asked_as=storable(asked_as))
        try:
            await self._add(naming_command(self.run_id, naming, at=self._engine.clock.now_micros()))
        except CommandIdTaken:
            there = await store.load_checkpoint(self.run_id, name)
            raise CheckpointExists(self.run_id, name, None if there is None else there.seq) from None
        await self._engine.commanded(self.run_id)

    async def _saved(self, name: str) -> Checkpoint:
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                run = await self.state()
                if (saved := await self._engine.store.load_checkpoint(self.run_id, name)) is not None:
                    return checkpoint_of(saved)
                if run.status in TERMINAL:
                    raise RunEnded(self.run_id, run.status.value, f"Checkpoint {name!r} was not saved.")
                await self._engine.news(changed)
