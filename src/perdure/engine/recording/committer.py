"""The one door through which transitions are committed.

Drivers say that they have decided something; while one group is on its way to the disk the next one gathers, and goes in one
durable commit. What a driver decides in the meantime merges into one transition of its run.

What the store cannot take is offered again for as long as patience lasts: a transition is fenced by the sequence number it
was decided at, so offering it twice cannot write it twice.

the store cannot be used   locked, full, unreachable: the whole group is offered again, and nothing else meanwhile.
a run is busy              somebody else holds its row: it is offered again later, with whatever goes then. The others of its
                           group have heard by then, and its driver is not asked for more.
anything else is raised    no group may end the committer. It is halved until the one that is to blame stands alone: Rejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from perdure.clock import Clock
from perdure.engine.recording.vigil import Vigil
from perdure.errors import StoreDamaged, StoreError, StoreLocked, StoreReadOnly
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.transitions import Busy, Committed, Outcome, Rejected, Transition

SMALL_GROUP = 32
"""So many go together even where that is all there are: for fewer, a commit of their own costs more than it brings."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0

log = logging.getLogger("perdure.committer")


class Source(Protocol):
    """Whatever decides transitions: a driver of a run."""

    def next_transition(self) -> Transition | None:
        """Hand over what was decided since the last call, if anything."""
        ...

    def being_written(self, *, alone: bool) -> bool:
        """Do what can be done while what was handed over is on its way, `alone` or with that of others. True if what follows is
        done on the loop, and nothing else is being done meanwhile."""
        ...

    def committed(self, transition: Transition, outcome: Outcome) -> None:
        """Hear what became of it. Never Busy: that is the committer's to deal with."""
        ...

    def storage_failed(self, error: StoreError) -> None:
        """Hear that the store could not be used for as long as patience lasted. What was handed over is lost."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether it has let go of its run. What it handed over, and is not on its way, is not to be written any more."""
        ...


_Offer = tuple[Source, Transition]


class _Held(msgspec.Struct):
    """A transition whose run was busy when it was last offered."""

    transition: Transition
    deadline: float
    delay: float = FIRST_RETRY_SECONDS
    has_more: bool = False
    """Its source has decided more since, which can only follow."""


class Committer:
    """Commits for all runs of an engine. `run` belongs in a task of its own."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        patience_seconds: float,
        async_delay_seconds: float = 0.002,
        on_audited: Callable[[Transition], None] | None = None,
    ) -> None:
        """`on_audited` is given what was committed of runs whose events are written on the side."""
        self._on_audited = on_audited
        self._store = store
        self._clock = clock
        self._patience = patience_seconds
        self._async_delay = async_delay_seconds
        self._waiting: dict[Source, None] = {}
        self._held: dict[Source, _Held] = {}
        self._last_group: list[Source] = []
        """Those of whom something was written last. They are at work by now, or wait again."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._vigil = Vigil() if store.works_beside else None
        self._hurry = asyncio.Event()
        """Set while somebody waits for what is to be committed."""

    def submit(self, source: Source, *, urgent: bool = True) -> None:
        """Say that `source` has decided something. What is not urgent may wait a moment for company."""
        if held := self._held.get(source):
            held.has_more = True
            return
        self._waiting[source] = None
        if urgent:
            self._hurry.set()
        self._wake.set()

    async def run(self) -> None:
        """Commit what gathers, for ever."""
        while True:
            await self._wake.wait()
            if not self._hurry.is_set():
                await self._wait_for_company()
            await self.flush()
            await asyncio.sleep(0)  # bodies that this has started may end at once: what they bring follows on its heels
            if not self._waiting:  # nobody has called since, or whoever did is held by now
                self._wake.clear()
                self._hurry.clear()

    async def _wait_for_company(self) -> None:
        """Wait a moment, unless somebody is in a hurry meanwhile."""
        moment = self._loop.call_later(self._async_delay, self._hurry.set)
        await self._hurry.wait()
        moment.cancel()

    async def flush(self) -> None:
        """Commit everything that has gathered, one group after the other."""
        while self._waiting:
            self._wake.clear()
            self._hurry.clear()
            for offered in self._offers_of(self._next_group()):
                await self._commit(offered)

    def _next_group(self) -> Sequence[Source]:
        """Take those who have waited longest. If the store works beside this process, that is half of all there are, as far as
        they can be seen: if everybody went at once, all would wait while it is written, and nothing would be written while they
        are at work."""
        waiting, most = self._waiting, self._store.group_size
        if self._store.works_beside and len(waiting) > SMALL_GROUP:
            at_work = sum(source not in waiting for source in self._last_group)
            most = min(most, max((at_work + len(waiting) + 1) // 2, SMALL_GROUP))
        if len(waiting) <= most:
            self._waiting = {}
            return list(waiting)
        group = list(islice(waiting, most))
        for source in group:
            del waiting[source]
        return group

    def _offers_of(self, group: Sequence[Source]) -> Sequence[Sequence[_Offer]]:
        """Return what a group has decided, as what is committed together."""
        offered = [(source, transition) for source in group if (transition := self._next_of(source)) is not None]
        if not self._held:
            return (offered,) if offered else ()
        # A run that was let go of while it was busy, and loaded again, has two sources.
        first, later = _one_per_run(offered)
        return [part for part in (first, *([offer] for offer in later)) if part]

    async def _commit(self, offered: Sequence[_Offer]) -> None:
        began = self._clock.monotonic()
        self._loop.call_soon(self._tell_meanwhile, offered)
        if self._vigil is not None:
            self._vigil.begin()
        try:
            outcomes = await self._settle([transition for _, transition in offered])
        except StoreError as error:
            for source, _ in offered:
                self._held.pop(source, None)
                source.storage_failed(error)
            return
        finally:
            if self._vigil is not None:
                self._vigil.end()
        for (source, transition), outcome in zip(offered, outcomes, strict=True):
            if isinstance(outcome, Busy):
                self._hold(source, transition, outcome, began)
                continue
            held = self._held.pop(source, None)
            if self._on_audited is not None and transition.run.audit is not None and isinstance(outcome, Committed):
                self._on_audited(transition)
            source.committed(transition, outcome)
            if held is not None and held.has_more:
                self.submit(source)
        self._last_group = [source for source, _ in offered if not source.is_gone]

    def _tell_meanwhile(self, offered: Sequence[_Offer]) -> None:
        alone = len(offered) == 1
        for source, _ in offered:
            is_poised = source.being_written(alone=alone)
            if is_poised and alone and not self._waiting and self._vigil is not None:
                self._vigil.keep()

    def _next_of(self, source: Source) -> Transition | None:
        held = self._held.get(source)
        if held is None:
            return source.next_transition()
        if source.is_gone:  # a claim, say, under a name that others take for dead by now
            del self._held[source]
            return None
        return held.transition

    async def _settle(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        """Offer a group until each of it has an answer."""
        deadline = self._clock.monotonic() + self._patience
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._store.commit(transitions)
            except (StoreReadOnly, StoreDamaged):
                raise
            except StoreError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                log.warning("store_not_ready", extra={"error": str(error), "retry_in_seconds": delay})
            except Exception as error:  # whatever a transition brings up, it must not end others' commits
                return await self._settle_halves(transitions, error)
            await self._clock.sleep(delay)
            delay = min(delay * 2, LAST_RETRY_SECONDS)

    async def _settle_halves(self, transitions: Sequence[Transition], error: Exception) -> Sequence[Outcome]:
        if len(transitions) == 1:
            log.error("transition_not_written", extra={"run_id": transitions[0].run_id}, exc_info=error)
            return [Rejected(f"{type(error).__name__}: {error}")]
        middle = len(transitions) // 2
        return [*await self._settle(transitions[:middle]), *await self._settle(transitions[middle:])]

    def _hold(self, source: Source, transition: Transition, busy: Busy, began: float) -> None:
        """Offer a transition again after a while, unless it has had its time."""
        held = self._held.setdefault(source, _Held(transition, began + self._patience))
        if self._clock.monotonic() >= held.deadline:
            del self._held[source]
            source.storage_failed(StoreLocked(busy.problem))
            return
        if source in self._waiting:  # what it decided while this was on its way cannot overtake it
            del self._waiting[source]
            held.has_more = True
        if held.delay == FIRST_RETRY_SECONDS:
            log.warning("run_is_busy", extra={"run_id": transition.run_id, "problem": busy.problem})
        self._loop.call_later(held.delay, self._offer_again, source)
        held.delay = min(held.delay * 2, LAST_RETRY_SECONDS)

    def _offer_again(self, source: Source) -> None:
        self._waiting[source] = None
        self._hurry.set()
        self._wake.set()


def _one_per_run(offered: Sequence[_Offer]) -> tuple[list[_Offer], list[_Offer]]:
    """Return the first offer of each run, and the others."""
    first: dict[RunId, _Offer] = {}
    later = [offer for offer in offered if first.setdefault(offer[1].run_id, offer) is not offer]
    return list(first.values()), later
