"""Drives one run: hears what happens, decides what follows, has it committed, and only then acts on it.

**Decide, commit, act.** Every happening goes to the `Decider`, which moves the run in memory at once; the events wait for the
committer. Bodies are started, cancelled and answered only when the transition that says so is durable, except for bodies that
may run early: those of `pure` nodes, and all of a run that does not ask for `sync`.

**One owner.** Memory may be ahead of the disk but never beside it: a transition that the store refuses means that another engine
has the run, and the driver drops everything it knows.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from perdure.engine.driving.actor import Actor
from perdure.engine.driving.bodies import STOPPING, Bodies
from perdure.engine.driving.checkpointing import periodic_for
from perdure.engine.driving.flowing import Flowing
from perdure.engine.driving.hearing import Hearing
from perdure.engine.driving.launching import Launching
from perdure.engine.driving.programs import Program
from perdure.engine.driving.reopening import Reopening
from perdure.engine.driving.reports import Reports
from perdure.engine.driving.returning import Returning
from perdure.engine.driving.stopping import Stopping
from perdure.engine.driving.waiting import Waiting
from perdure.engine.recording.machinery import Machinery
from perdure.engine.recording.pending import Pending
from perdure.engine.recording.tenure import Tenure
from perdure.engine.streams.live import LiveStreams
from perdure.engine.streams.streams import Streams
from perdure.errors import AttemptOver, PerdureError, RunError, RunNotReadable, StoreError
from perdure.ids import CommandId, Epoch, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.projection import Projection
from perdure.journal.states import MOVING, TERMINAL, RunState
from perdure.store.shapes import Command, ItemRange
from perdure.store.transitions import BlobUse, Claim, Committed, Outcome, Rejected, Transition

log = logging.getLogger("perdure.driver")

PORTION_NODES = 250
"""Where thousands of nodes become ready at once, the first of them start while the others are still being committed, and no
other run waits for all of them."""
FIRST_PORTION_NODES = 60
"""Fewer while nothing runs: there is nothing to do until these are committed."""
ROUNDS_UNTIL_HEARD = 3
"""How many rounds of the loop to wait for signals that have come by now. In the first one the loop reads that there is one, after
all that was ready before; in the second one it calls the handler, after all that was ready then."""


class NotOurs(PerdureError):
    """The run belongs to another engine, or was there already: this driver has nothing to say about it."""

    code = "not_ours"

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"the store answered {type(outcome).__name__}")
        self.outcome = outcome


class Driver:
    """One run in motion. Everything here runs on the engine's loop; `run` is its task."""

    def __init__(
        self,
        *,
        projection: Projection,
        program: Program,
        machinery: Machinery,
        base_seq: Seq,
        claim: Claim,
        seen_epoch: Epoch,
        on_gone: Callable[[Driver], None],
        created: tuple[e.RunCreated, int] | None = None,
        ranges: Sequence[ItemRange] = (),
    ) -> None:
        self.projection = projection
        self.machinery = machinery
        self.run_id: RunId = projection.run.run_id
        plan = program.plan
        self.decider = Decider(projection, plan, decided=() if created is None else (created,))
        self.decider.hibernate_micros = int(max(0.0, machinery.hibernate_after) * 1_000_000)
        loop = asyncio.get_running_loop()
        self._is_settled = asyncio.Event()
        """Set when it is certain whether the run is ours."""
        self._refusal: PerdureError | None = None
        self.rested: asyncio.Future[RunState] = loop.create_future()
        """Done when the run has ended or rests, durably, and is let go; fails when it was lost to this engine."""
        self.was_taken_up = created is None
        """Whether the run was there before, so that another process may have stored what it holds."""
        self._plan = plan
        self._on_gone = on_gone
        run = projection.run
        self._tenure = Tenure(
            claim, base_seq=base_seq, seen_epoch=seen_epoch, seen_branch=run.branch_id, audit=run.audit
        )
        self._is_gone = False
        self.is_draining = False
        """Whether nothing more begins, because the run is being let go."""
        self.is_orphaned = False
        """The run was dropped while it was, or may have been, this engine's: nobody else will take it up."""
        self.returnings: Mapping[CommandId, Returning | None] = {}
        """What the run was at places to which it was asked to go back before it was taken up; None where it cannot."""
        self.reopenings: Mapping[CommandId, Reopening | None] = {}
        """What is kept of streams where it was asked to go back to some of their items; None where it cannot."""
        self.not_readable: RunNotReadable | None = None
        """Why the run was let go although it should move, if it was."""
        self._bodies = Bodies(
            projection,
            machinery,
            is_interrupted=lambda: self.is_interrupted,
            on_stopped=lambda actor: self.reports.stopped(actor),
        )
        self._pending = Pending(self.decider)
        self.hearing = Hearing(self, self._pending)
        self.reports = Reports(self, self._bodies, self._pending)
        self.stopping = Stopping(self, self._bodies, self._pending)
        self.launching = Launching(self, program, self._tenure, self._bodies, self._pending)
        self.streams = Streams(
            plan,
            program.types,
            projection,
            machinery,
            ranges=ranges,
            spawn=self.spawn,
            on_put=self._items_came,
            on_storage_failed=self.storage_failed,
        )
        self.waiting = Waiting(self, self.decider, self._bodies, self._pending, machinery)
        self.flow = Flowing(self.decider, self.streams, self._bodies, self._pending, machinery.clock, self)
        self._in_flight: list[Callable[[], None]] = []
        self.periodic = periodic_for(self)
        self.spent_seconds = 0.0
        """How long the run was driven before this driver had it: part of the time it is given."""
        self._task: asyncio.Task[Any] | None = None
        self._over: asyncio.Future[None] | None = None
        """What the task waits for: that the run is let go."""
        self._seen_round = -1
        self._has_more_to_see = False
        self._has_items = False

    # The task

    @property
    def is_claimed(self) -> bool:
        """Whether the first transition is durable."""
        return self._is_settled.is_set()

    async def until_claimed(self) -> None:
        """Return when the first transition is durable: the run is ours. Raises NotOurs or a StoreError if it is not."""
        if not self._is_settled.is_set():
            await self._is_settled.wait()
        if self._refusal is not None:
            raise self._refusal

    async def run(self) -> None:
        """Keep the run's tasks until it rests. A bug of ours ends this run here and harms no other."""
        self._task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                self._bodies.group = group
                self.flow.take_up_closed()
                self.waiting.take_up()
                if self.periodic is not None:
                    self.periodic.begin()
                self.happened()
                if not self._is_gone:
                    self._over = self.rested.get_loop().create_future()
                    await self._over
        except* Exception as bugs:
            self.failed(bugs.exceptions[0])
        finally:
            if not self._is_gone:
                self._let_go(RunError(self.run_id, f"run {self.run_id!r} is no longer driven by this engine"))
            self._take_apart()

    def _take_apart(self) -> None:
        """Have nothing wait for the collector: thousands of runs may be let go in a second, and what they knew is a lot."""
        del self.launching, self._bodies, self.streams, self.waiting, self.flow, self.periodic
        del self.hearing, self.reports, self.stopping

    @property
    def is_interrupted(self) -> bool:
        """Whether the run's task is cancelled, and all its bodies with it: nobody has decided anything about them."""
        return self._task is not None and bool(self._task.cancelling())

    @property
    def has_to_end(self) -> bool:
        """Whether the run is about to end, or has just ended: it can go back when it was let go."""
        status = self.projection.run.status
        return status in STOPPING or (status in TERMINAL and self._task is not None)

    @property
    def is_gone(self) -> bool:
        """Whether the run was let go of, or lost."""
        return self._is_gone

    @property
    def is_harmless(self) -> bool:
        """Whether the run has made progress since it was taken up, or is no longer driven here."""
        return self._is_gone or not self.projection.run.recoveries

    def live_streams(self) -> LiveStreams:
        """Return how the run's streams flow at this moment. It costs only whoever asks."""
        if self._is_gone:
            return LiveStreams(nodes={}, edges=())
        nodes = {actor.node_id: facts for actor in self._bodies.running() if (facts := actor.live_facts()) is not None}
        return LiveStreams(nodes=nodes, edges=tuple(self.streams.edge_facts()))

    def use_blobs(self, blobs: Sequence[BlobUse]) -> None:
        """Note blobs that the next transition refers to."""
        self._pending.blobs += blobs

    # What happens

    def happened(self) -> None:
        """Something was decided: start what can start, and have it all committed."""
        if self._is_gone:
            return
        self._bodies.launch_held_back()
        self._decide()
        if self.projection.run.settings.timeout_seconds is not None:
            self.stopping.watch_time(self.spent_seconds)
        if self._pending.is_waited_for:
            self._hand_over(urgent=True)
        elif self.has_news or not self._tenure.is_kept or self._is_over():
            self.submit()

    def happened_again(self) -> None:
        """As `happened`, at once for the first body that ends in a round of the loop, and once for all others."""
        if not len(self._bodies):  # no other can end
            self.happened()
            return
        current = self.machinery.rounds.current()
        if self._seen_round != current:
            self._seen_round = current
            self.happened()
        elif not self._has_more_to_see:
            self._has_more_to_see = True
            self._soon(self._see_others)

    def _see_others(self) -> None:
        self._has_more_to_see = False
        self.happened()

    def _decide(self) -> None:
        """Decide what follows, and start what can start. If that is a lot, the rest follows when this is on its way."""
        most = PORTION_NODES if len(self._bodies) else min(PORTION_NODES, FIRST_PORTION_NODES)
        is_enough = self.decider.decided > PORTION_NODES
        self.decider.proceed(at=self.machinery.clock.now_micros(), most=0 if is_enough else most)
        self.launching.begin_ready()
        while self.decider.has_more and self.decider.decided <= most:  # what has started opens streams for others
            self.decider.proceed(at=self.machinery.clock.now_micros(), most=most)
            self.launching.begin_ready()
        if self.launching.take_settled():
            self.decider.conclude(at=self.machinery.clock.now_micros())
        while self.decider.settled:
            self.waiting.tell(self.decider.settled.popleft())
        while self.decider.unread:
            self._bodies.tell_unread(self.decider.unread.popleft())
        while self.decider.cut_off:
            self.flow.stop_cut_off(self.decider.cut_off.popleft())
        if self.periodic is not None:
            self.periodic.save_rest()

    @property
    def unreadable_nodes(self) -> frozenset[NodeId]:
        """The nodes that need values which this process cannot read."""
        return frozenset(self.launching.unreadable)

    @property
    def has_rested(self) -> bool:
        """Whether the run was let go durably: it has ended, rests, or was left to others on purpose."""
        return self.rested.done() and self.rested.exception() is None

    def command(self, command: Command) -> None:
        """Take up a wish from outside. It is applied once: with the transition that holds its consequences."""
        if not self._is_gone:
            self.hearing.hear(command)

    def when_taken(self, act: Callable[[], None]) -> None:
        """Have something done when all commands that were given so far are taken up durably, also those that have to wait."""
        if not self._is_gone:
            self.hearing.when_taken(act)

    def require_current(self, actor: Actor) -> None:
        """Raise AttemptOver if nothing that the attempt does is recorded any more."""
        is_over = self._is_gone or actor.stop_reason is not None or actor.unwinding is not None
        if is_over or not self.decider.is_current(actor.node_id, actor.attempt):
            raise AttemptOver(actor.node_id, actor.attempt)

    def result_discarded(self, actor: Actor, error: Exception | None) -> None:
        """Record that a body has come to something after its attempt had ended, whenever that may be."""
        if not self._is_gone and not self._rests():
            self.guarded(lambda: self.reports.discard(actor, error))

    def source_began(self) -> None:
        """A node that is fed from outside has begun: take up what has come for it before."""
        self._soon(self.hearing.hear_early)
        self.waiting.look_later()

    async def stored(self) -> None:
        """Return when everything that was decided so far is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.acts.append(lambda: None if done.done() else done.set_result(None))
        self.submit()
        await done

    def _items_came(self) -> None:
        """Have items committed, together with all others that come in this round of the loop."""
        if not self._has_items and not self._is_gone:
            self._has_items = True
            self._soon(self._submit_items)

    def _submit_items(self) -> None:
        self._has_items = False
        if not self._is_gone:
            self.submit()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_gone or self._bodies.group is None or self.is_interrupted:  # a group that ends takes no more
            work.close()
            return
        self._bodies.group.create_task(work)

    @property
    def has_news(self) -> bool:
        """Whether there is something that is not on its way to the store."""
        return not self._pending.is_empty or self.streams.is_dirty

    @property
    def has_work_to_do(self) -> bool:
        """Whether something is on its way to the store, or about to begin."""
        return bool(self.has_news or self._in_flight or self.decider.has_more or self.launching.has_queued)

    def drain(self, grace_seconds: float) -> None:
        """Start nothing more; let go of the run when what runs has ended, or when the grace period is over."""
        if self._is_gone or self.is_draining:
            return
        self.is_draining = True
        self.decider.leaves_to_probes = True
        self.submit()
        self.stopping.wind_down("the engine stopped", grace_seconds)

    def abandon(self, problem: PerdureError) -> None:
        """Drop the run at once and write nothing: it is another engine's, or must be loaded again."""
        self._let_go(problem)

    # The committer's side

    def next_transition(self) -> Transition | None:
        if self._is_gone:
            return None
        try:
            return self._next_transition()
        except Exception as bug:  # as in `guarded`
            self.failed(bug)
            return None

    def _next_transition(self) -> Transition | None:
        if self._has_more_to_see:
            self._decide()  # what bodies have brought goes together with what follows from it, such as the run's end
        if not self.streams.is_empty:
            self.streams.record_all(self.decider, at=self.machinery.clock.now_micros())
        items, drops, shown = self.streams.take(self.decider)
        portion = self._pending.cut(items, drops)
        if shown:
            portion.acts[:0] = [functools.partial(outbox.show, batch) for outbox, batch in shown]
        # A run that has ended is let go with its end, also if some body has not heard of it: nobody would look after it again.
        has_ended = self.projection.run.status in TERMINAL
        if has_ended or (self._may_release() if self._tenure.is_certain else self._rests()):
            self._tenure.end()
        self._in_flight = portion.acts
        if not portion.decided and not portion.commands and self._tenure.is_kept:
            self._act()
            if self.decider.has_more:
                self._soon(lambda: self.being_written(alone=False))
            if self.has_news or self._may_release():
                self.submit()
            return None
        return self._tenure.transition(portion, self.machinery.chance.new_id)

    def being_written(self, *, alone: bool) -> bool:
        """Ready the bodies that a transition starts, and decide more. True if all that is left is one that waits on the loop."""
        if self._is_gone or not (self._bodies.has_unprepared or self.decider.has_more):
            return False
        try:
            return self._go_ahead(alone)
        except Exception as bug:  # as in `guarded`
            self.failed(bug)
            return False

    def _go_ahead(self, alone: bool) -> bool:
        is_poised = self._bodies.prepare(alone=alone)
        if self.decider.has_more:
            self.happened()
            return False
        return is_poised

    def committed(self, transition: Transition, outcome: Outcome) -> None:
        if self._is_gone:
            return
        if not isinstance(outcome, Committed):
            self._refused(outcome)
            return
        try:
            self._act_on(transition)
        except Exception as bug:  # as in `guarded`
            self.failed(bug)

    def _act_on(self, transition: Transition) -> None:
        is_over = self._tenure.committed(transition)
        if not self._is_settled.is_set():
            self._is_settled.set()
        self._act()
        if self.decider.has_more:
            self._decide()
        self.machinery.hub.changed(self.run_id)
        if is_over:
            self._finish(transition.run)
        elif self.has_news or self._may_release():
            self.submit()

    def storage_failed(self, error: StoreError) -> None:
        self._let_go(error)

    # Committing

    def when_durable(self, act: Callable[[], None]) -> None:
        """Have something done when everything that was decided so far is durable."""
        self._pending.acts.append(act)

    def submit(self, *, for_others: bool = False) -> None:
        """Have what was decided committed: at once if somebody waits for it, in good company if nobody does. What is
        `for_others`, who can only see it when it is recorded, is not held back until the run rests."""
        if self._is_gone:
            return
        waited_for = self._pending.is_waited_for or self.decider.has_more or self._is_over() or self.streams.is_dirty
        waited_for = waited_for or not self._tenure.is_kept
        is_held_back = self.projection.run.settings.durability == "exit" and not (for_others or waited_for)
        if not is_held_back or self.is_draining:
            self._hand_over(urgent=waited_for)

    def _hand_over(self, *, urgent: bool) -> None:
        if self._bodies.group is not None:  # else what was decided so far is submitted when the task begins
            self.machinery.committer.submit(self, urgent=urgent)

    def submit_shortly(self) -> None:
        """Have what was decided committed in a moment, for others to see: with what follows from it, if that comes at once."""
        self.shortly(self._submit_news)

    def _submit_news(self) -> None:
        if not self._is_gone and self.has_news:
            self.submit(for_others=True)

    def _act(self) -> None:
        """Do what was to be done once everything before it is durable."""
        acts, self._in_flight = self._in_flight, []
        for act in acts:
            act()

    # Letting go

    def submit_if_over(self) -> None:
        """Have the run let go if there is nothing more to be done here."""
        if self._may_release():
            self.submit()

    def _rests(self) -> bool:
        return self.projection.run.status not in MOVING

    def _is_over(self) -> bool:
        """Whether there is nothing more to be done here: the run rests, or only what cannot be read here is left of it."""
        if self._rests():
            return True
        can_go_on = len(self._bodies) or not self.launching.is_idle or self.decider.has_more
        return bool(self.launching.unreadable) and not can_go_on

    def _may_release(self) -> bool:
        return not len(self._bodies) and (self._is_over() or self.is_draining)

    def _refused(self, outcome: Outcome) -> None:
        match outcome:
            case Rejected(problem=problem):
                log.error("transition_rejected", extra={"run_id": self.run_id, "problem": problem})
                self._let_go(
                    RunError(self.run_id, f"The store rejected what perdure wrote for run {self.run_id!r}: {problem}")
                )
            case _:
                if self._is_settled.is_set():  # else another was faster, which is nothing to warn of
                    log.warning("lease_lost", extra={"run_id": self.run_id})
                self._let_go(NotOurs(outcome))

    def guarded(self, work: Callable[[], object]) -> None:
        """Do something for whoever has other runs as well: a bug of ours ends this one and harms no other."""
        try:
            work()
        except Exception as bug:  # a bug may raise anything
            self.failed(bug)

    def _soon(self, work: Callable[[], object]) -> None:
        self.machinery.rounds.soon(self.guarded, work)

    def shortly(self, work: Callable[[], object], rounds: int = ROUNDS_UNTIL_HEARD) -> None:
        """Do something when all has been heard that has come by now, signals too. These are rounds of the loop itself: what goes
        with `_soon` may join others in the round that has begun."""
        then = work if rounds == 1 else functools.partial(self.shortly, work, rounds - 1)
        self.rested.get_loop().call_soon(self.guarded, then)

    @staticmethod
    async def all_heard() -> None:
        """As `shortly`, for whoever waits."""
        for _ in range(ROUNDS_UNTIL_HEARD):
            await asyncio.sleep(0)

    def later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return self.rested.get_loop().call_later(seconds, self.guarded, work)

    def failed(self, bug: Exception) -> None:
        log.error("driver_failed", extra={"run_id": self.run_id}, exc_info=bug)
        self._let_go(RunError(self.run_id, f"perdure failed while it drove run {self.run_id!r}: {bug!r}"))

    def _finish(self, run: RunState) -> None:
        if self.launching.unreadable and run.status in MOVING:
            self.not_readable = RunNotReadable(self.run_id, list(self.launching.unreadable.values()))
            self._let_go(self.not_readable)
            return
        if not self.rested.done():
            self.rested.set_result(run)
        self._let_go()

    def _let_go(self, problem: PerdureError | None = None) -> None:
        """Forget the run: no more results, timers or slots. `problem` is why, unless the run rests."""
        if self._is_gone:
            return
        self._is_gone = True
        self.is_orphaned = not isinstance(problem, NotOurs | RunNotReadable) and not self.rested.done()
        if not self._is_settled.is_set():
            self._refusal = problem
            self._is_settled.set()
        if problem is not None and not self.rested.done():
            self.rested.set_exception(problem)
            self.rested.exception()  # nobody has to ask
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        self.launching.abandon()
        self.waiting.close()
        if self.periodic is not None:
            self.periodic.close()
        self.stopping.close()
        self._bodies.abandon(self.rested.get_loop())
        self._on_gone(self)
        self.machinery.hub.changed(self.run_id)
