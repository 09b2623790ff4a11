"""A store that is the door of one process, and at a chosen commit dies, fails, or sees the run taken over.

Every `commit` is a *boundary*, numbered from 1. At boundary n a process may

    before        die before anything is written
    inside        die when everything has been executed but not committed, so that the database rolls it back
    after         die when it is committed, before it hears of it
    reply_lost    live on, but never hear that it was committed: it must find out
    refused_once  live on, refused for the moment
    taken_over    live on, while another engine has claimed the run since: nothing it writes may count any more

Commits are the only way in which a run changes, so that surviving all six at every boundary is surviving any crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any

import msgspec

from perdure.errors import StoreLocked, StoreUnavailable
from perdure.ids import EngineId, Epoch, RunId, Seq
from perdure.journal.events import Recorded
from perdure.store.base import Store
from perdure.store.shapes import EngineRow
from perdure.store.transitions import Committed, Outcome, Rejected, Transition
from perdure.testing.process import Dead, Host, Process, outside_of_processes
from perdure.testing.proxy import StoreProxy, innermost


class CrashKind(StrEnum):
    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"
    REPLY_LOST = "reply_lost"
    REFUSED_ONCE = "refused_once"
    TAKEN_OVER = "taken_over"


LETHAL = frozenset((CrashKind.BEFORE, CrashKind.INSIDE, CrashKind.AFTER))


class CrashPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen at which boundary."""

    at: int
    kind: CrashKind


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A transition that was offered to the database, and what became of it; None if that is not known."""

    run_id: RunId
    epoch: Epoch
    base_seq: Seq
    outcome: Outcome | None


TakeOver = Callable[[RunId, EngineId], Awaitable[bool]]
"""Have another engine claim the run of an owner that it takes for dead. Whether it did."""
RollBack = Callable[[Store, Sequence[Transition]], AbstractAsyncContextManager[None]]
"""Make the database roll these transitions back when they are committed meanwhile, with everything executed."""


class CrashingStore(StoreProxy):
    """The store as one process sees it. Once the process is dead, every call raises Dead."""

    def __init__(
        self,
        inner: Store,
        plan: CrashPlan | None = None,
        *,
        process: Process,
        host: Host | None = None,
        take_over: TakeOver | None = None,
        roll_back: RollBack | None = None,
        recorded: dict[RunId, dict[Seq, Recorded]] | None = None,
    ) -> None:
        """In `recorded` the events of all that is committed are gathered, whether or not they are written to a log."""
        super().__init__(inner)
        self._recorded = {} if recorded is None else recorded
        self.boundaries = 0
        self.has_fired = False
        self.takeovers = 0
        self.offers: list[Offer] = []
        self.problems: list[str] = []
        """Writes that counted although the run had been taken over before, and those that no database should see."""
        self._plan = plan
        self._process = process
        self._host = host
        self._take_over = take_over
        self._roll_back = roll_back or sqlite_rolls_back
        self._engine_ids: list[EngineId] = []
        self._expired: set[EngineId] = set()
        self._epochs_lost: dict[RunId, Epoch] = {}

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        self._require_alive()
        match name:
            case "wait_for_news":
                # By the loop's time. Engines that share a loop need no news: they look again when the time is up.
                await asyncio.sleep(args[0])
                return False
            case "commit":
                return await self._commit(args[0], call)
            case "renew_engine" if args[0] in self._expired:
                # Only an engine whose lease has run out is taken over, and this is how it learns of that. The name under
                # which it comes back is as good as any.
                return False
            case "close":
                return None
            case _:
                answer = await self._call(call)
        self._require_alive()
        match name:
            case "register_engine":
                self._engine_ids.append(args[0].engine_id)
            case "list_engines":
                return [self._as_seen(engine) for engine in answer]
            case _:
                pass
        return answer

    def kill(self) -> None:
        """End the process, here and now. Its rows stay."""
        if self._host is not None:
            self._host.dead.update(self._engine_ids)
        self._process.kill()

    async def _commit(self, transitions: Sequence[Transition], call: Callable[[], Awaitable[Any]]) -> Any:
        self.boundaries += 1
        if self._plan is None or self._plan.at != self.boundaries:
            return await self._offer(transitions, call)
        self.has_fired = True
        match self._plan.kind:
            case CrashKind.BEFORE:
                self._die()
            case CrashKind.INSIDE:
                await self._die_inside(transitions, call)
            case CrashKind.AFTER:
                await self._offer(transitions, call)
                self._die()
            case CrashKind.REPLY_LOST:
                await self._offer(transitions, call)
                raise StoreUnavailable("The connection was cut before the answer came.")
            case CrashKind.REFUSED_ONCE:
                error = StoreLocked if self.boundaries % 2 else StoreUnavailable
                raise error("The database cannot be used for the moment.")
            case CrashKind.TAKEN_OVER:
                outcomes = await self._offer(transitions, call)
                await self._lose(transitions)
                return outcomes

    async def _offer(
        self, transitions: Sequence[Transition], call: Callable[[], Awaitable[Sequence[Outcome]]]
    ) -> Sequence[Outcome]:
        try:
            outcomes: Sequence[Outcome] = await self._call(call)
        except BaseException:
            self._note(transitions, [None] * len(transitions))
            raise
        self._note(transitions, outcomes)
        self._require_alive()
        return outcomes

    async def _die_inside(self, transitions: Sequence[Transition], call: Callable[[], Awaitable[Any]]) -> None:
        async with self._roll_back(self.inner, transitions):
            try:
                await self._call(call)
            except (Exception, Dead):  # the store says in its own words that it was rolled back
                is_rolled_back = True
            else:
                is_rolled_back = False
        assert is_rolled_back, "the database has committed what it should have rolled back"
        self._die()

    async def _lose(self, transitions: Sequence[Transition]) -> None:
        assert self._take_over is not None
        owner = self._engine_ids[-1]  # it may have another name before all its runs are taken over
        for transition in transitions:
            if await self._take_over(transition.run_id, owner):
                self.takeovers += 1
                self._expired.add(owner)
                self._epochs_lost[transition.run_id] = transition.run.epoch

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        with outside_of_processes():
            return await call()

    def _note(self, transitions: Sequence[Transition], outcomes: Sequence[Outcome | None]) -> None:
        for transition, outcome in zip(transitions, outcomes, strict=True):
            if isinstance(outcome, Rejected):
                self.problems.append(
                    f"the database rejected what was written at {transition.base_seq}: {outcome.problem}"
                )
            if isinstance(outcome, Committed):
                told = self._recorded.setdefault(transition.run_id, {})
                told.update((entry.seq, entry) for entry in transition.events)
            if isinstance(outcome, Committed) and transition.epoch <= self._epochs_lost.get(transition.run_id, -1):
                self.problems.append(
                    f"I14: wrote at {transition.base_seq} under epoch {transition.epoch}, which is over"
                )
            self.offers.append(
                Offer(run_id=transition.run_id, epoch=transition.epoch, base_seq=transition.base_seq, outcome=outcome)
            )

    def _die(self) -> None:
        self.kill()
        raise Dead

    def _require_alive(self) -> None:
        if self._process.is_dead:
            raise Dead

    def _as_seen(self, engine: EngineRow) -> EngineRow:
        """An engine whose process has died looks like one: nothing runs under its process id any more."""
        is_dead = self._host is not None and engine.engine_id in self._host.dead
        return msgspec.structs.replace(engine, process_start="gone") if is_dead else engine


@asynccontextmanager
async def sqlite_rolls_back(store: Store, transitions: Sequence[Transition]) -> AsyncGenerator[None]:
    """Have SQLite roll back after the last statement, just before COMMIT."""
    door: Any = innermost(store)._door
    write_group = door._write_group

    def write_and_die(group: Sequence[Transition], rows: int) -> Any:
        outcomes = write_group(group, rows)
        if group is transitions:
            raise Dead
        return outcomes

    door._write_group = write_and_die
    try:
        yield
    finally:
        del door._write_group
