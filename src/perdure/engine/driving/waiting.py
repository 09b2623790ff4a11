"""What happens while bodies wait: who is told when something comes, when time itself comes, and when waiting has to cost nothing.

**Warm and cold.** A body that waits stays in memory for a moment, because many answers come at once. After that it is unwound:
cancelled, with its node suspended, and run again when something comes. When all that is left in memory of a run only waits, the
whole run is put to sleep: its bodies are unwound, its lease is let go, and nothing but rows is left of it.

**One word for each question.** An answer is a command whose id is made of the question's, so that the store itself lets only one
through. The time limit of a question answers like everybody else, by the same id: of an answer and a limit that come at once,
one wins, and nobody is told otherwise. Where no engine is there to see that the time is over, whoever comes too late writes the
answer of the limit.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import msgspec

from perdure.dispatch.failure import storable
from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.engine.attempts.keys import wait_key
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.bodies import Bodies
from perdure.engine.driving.recall import Strand
from perdure.engine.driving.sending import InputActor
from perdure.engine.recording.pending import Pending
from perdure.errors import CommandIdTaken, ReplayMismatch, RunNotFound, StoreError, WaitNotHere
from perdure.ids import CommandId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.states import NodeState, RunStatus, WaitKind, WaitState, WaitStatus
from perdure.store.shapes import Command
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver
    from perdure.engine.recording.machinery import Machinery

ANSWER = "answer"
DEADLINE = "deadline"
"""Who answers a question to which nobody has, in time."""
LOOK_SECONDS = 0.05
"""How often to look whether what waits goes on waiting, at most."""
ROOM_SECONDS = 0.25
"""How often to look whether what could not be ended at once for others who wait for its place can be by then."""
CLOCK_SECONDS = 10.0
"""How often to look at the time of day while it is waited for: it may be set, and it goes on while the machine sleeps."""
ROUNDS_FOR_OTHERS = 3
"""For so many rounds of the loop a body that is about to be ended because it waits may come to what else it waits for at once."""
REPLAY_SECONDS = 5.0
"""How long a body that runs again may take to ask for what it has waited for before it waits for something else, and how long
one that was given something may work with it beside another wait: it may do several things at once."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of an answer. The value is encoded, as text; None if the time is over and there is no default."""

    wait_id: str
    value: str | None = None
    by: str = ""
    answer_id: str = ""
    blobs: tuple[BlobUse, ...] = ()


class Signal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of a signal. The value is encoded, as text."""

    signal_id: str
    name: str
    value: str
    blobs: tuple[BlobUse, ...] = ()


def signal_command_id(signal_id: str) -> CommandId:
    """Return the id of the command by which a run is told of a signal: the same one twice is one command."""
    return CommandId(f"signal/{signal_id}")


def answer_command(run_id: RunId, answer: Answer, *, at: int) -> Command:
    """Return the command that answers a question: the only one that can."""
    return Command(
        command_id=CommandId(f"{ANSWER}/{answer.wait_id}"),
        run_id=run_id,
        kind=ANSWER,
        payload=msgspec.to_builtins(answer),
        created_at=at,
    )


def is_late(wait: WaitState, at: int) -> bool:
    """Whether nobody has answered a question in time."""
    is_open = wait.kind is WaitKind.ASK and wait.status is WaitStatus.OPEN
    return is_open and wait.due is not None and wait.due <= at


def answer_in_time(wait: WaitState) -> Answer:
    """Return the answer of a question whose time is over."""
    default = None if wait.question is None else e.or_none(wait.question.default)
    value = None if default is None else bytes(default).decode()
    return Answer(wait_id=wait.wait_id, value=value, by=DEADLINE)


class Stand(NamedTuple):
    """Up to where something was recorded, and since when it has stood there, by the loop's own clock."""

    seq: Seq
    since: float


class Waiting:
    """The side of a driver that has to do with waiting."""

    def __init__(
        self, driver: Driver, decider: Decider, bodies: Bodies, pending: Pending, machinery: Machinery
    ) -> None:
        self._driver = driver
        self._decider = decider
        self._bodies = bodies
        self._pending = pending
        self._machinery = machinery
        self._waits = decider.projection.waits
        self._futures: dict[str, list[asyncio.Future[None]]] = {}
        self._dues: dict[str, asyncio.TimerHandle] = {}
        self._look: asyncio.TimerHandle | None = None
        self._room: asyncio.TimerHandle | None = None
        self._seen: dict[Actor, Stand] = {}
        """Where the bodies that wait stand."""
        self._seen_run = Stand(Seq(-1), 0.0)

    def take_up(self) -> None:
        """Go on where the last driver of the run has left off: time may have come meanwhile."""
        for wait in self._waits.open():
            self._watch(wait)
        if self._waits.are_open:
            self.look_later()

    def close(self) -> None:
        """Forget all timers: the run is let go."""
        self._machinery.warmth.discard(self)
        for handle in (*self._dues.values(), self._look, self._room):
            if handle is not None:
                handle.cancel()

    # A body waits

    async def outcome(
        self, actor: Actor, wanted: WaitFor, scope: str, value: e.Encoded | None, blobs: tuple[BlobUse, ...]
    ) -> Came:
        """Wait for something from outside, and return what has come of it. `scope` tells items of a node apart."""
        self._driver.require_current(actor)
        if self._decider.plan.nodes[actor.node_id].policy.once:
            raise WaitNotHere(actor.node_id)
        name = storable(scope + wanted.name)
        wait = self._waits.named(actor.node_id, name, wanted.occurrence)
        strand = self._strand(actor, scope)
        actor.recall.came_back(scope, name, wanted.occurrence)
        actor.recall.comes_to_wait(strand, anew=wait is None)
        if wait is None:
            await self._recall(actor, scope, wanted)
            wait = self._open(actor, wanted, name, value, blobs)
            with actor.recall.asking(wait.wait_id):
                wait = await self._recorded(wait)
        if wait.status is WaitStatus.OPEN:
            wait = await self._settled(actor, wait)
        now = self._machinery.clock.monotonic()
        actor.recall.given(strand, scope, at=now, forget_before=now - REPLAY_SECONDS)
        return Came(value=wait.result, is_over=wait.result is None and wait.kind is not WaitKind.SLEEP)

    async def _recorded(self, wait: WaitState) -> WaitState:
        """Return a wait that was opened when it is durable, with what has come of it; or for one that is cold, and for which
        nothing has come, in a moment: it is recorded together with the suspension that follows on its heels."""
        if wait.status is WaitStatus.OPEN and self._is_cold(wait):
            for _ in range(ROUNDS_FOR_OTHERS):
                await asyncio.sleep(0)
            wait = self._waits.get(wait.wait_id) or wait
            if wait.status is WaitStatus.OPEN:
                return wait
        await self._driver.stored()
        return self._waits.get(wait.wait_id) or wait

    @staticmethod
    def _strand(actor: Actor, scope: str) -> Strand:
        """Return what it is in a body that waits: on the loop each task waits for itself."""
        task = asyncio.current_task() if actor.is_on_loop else None
        return scope if task is None else ref(task)

    async def _settled(self, actor: Actor, wait: WaitState) -> WaitState:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(wait.wait_id, []).append(future)
        with actor.waiting_for(wait):
            if self._is_cold(wait) and actor.only_waits and not self._is_coming_back(actor):
                self.unwind(actor, (wait.question.prompt if wait.question is not None else "") or "it waits")
            else:
                self._seen[actor] = self._stand(self._decider.projection.node(actor.node_id).last_seq)
                self._seen_run = self._stand(self._decider.projection.run.last_seq)
                self._machinery.warmth.add(self)
                self.look_later()
            self._driver.submit_shortly()
            await future
        settled = self._waits.get(wait.wait_id)
        assert settled is not None, "a wait whose node is current stays known"
        return settled

    def _is_cold(self, wait: WaitState) -> bool:
        """Whether nothing stays in memory for the sake of a wait, not even for a moment."""
        if wait.kind is WaitKind.SUSPEND:
            return True
        is_for_memory = self._hibernate_after > 0 and not self._machinery.is_crowded()
        return not (is_for_memory or self._is_soon(wait))

    async def _recall(self, actor: Actor, scope: str, wanted: WaitFor) -> None:
        """Let a body that runs again get to what it has waited for before it waits for anything else."""
        if not actor.recall.left(scope):
            return
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                await actor.recall.is_complete(scope)
        except TimeoutError:
            raise ReplayMismatch(actor.node_id, wanted.name, actor.recall.left(scope)) from None
        self._driver.require_current(actor)

    def _open(
        self, actor: Actor, wanted: WaitFor, name: str, value: e.Encoded | None, blobs: tuple[BlobUse, ...]
    ) -> WaitState:
        node = self._decider.projection.node(actor.node_id)
        at = self._machinery.clock.now_micros()
        wait_id = self._free_key(node)
        self._driver.use_blobs(blobs)
        encode = self._machinery.values.codecs.encode
        where = f"the default of a question of node {actor.node_id!r}"
        event = opening(
            wanted,
            name,
            wait_id,
            actor.node_id,
            actor.attempt,
            value,
            lambda constant: msgspec.Raw(encode(constant, where=where)),
            at=at,
        )
        self._decider.wait_opened(event, at=at)
        wait = self._waits.get(wait_id)
        assert wait is not None
        self._watch(wait)
        return wait

    def _free_key(self, node: NodeState) -> str:
        """Return the next key of a node. Of a node that is tried again some earlier ones may be free."""
        number = self._waits.count(node.node_id) + 1
        while self._waits.get(key := wait_key(self._driver.run_id, node, number)) is not None:
            number += 1
        return key

    def found_or_opened(self, actor: Actor, wanted: WaitFor, value: e.Encoded | None) -> WaitState:
        """Return the wait of a node that waits between others, which has one."""
        self._driver.require_current(actor)
        wait = self._waits.named(actor.node_id, wanted.name, wanted.occurrence)
        return wait or self._open(actor, wanted, wanted.name, value, ())

    def tell(self, wait_id: str) -> None:
        """Tell the bodies that wait for something that it has come, when that is durable."""
        if (handle := self._dues.pop(wait_id, None)) is not None:
            handle.cancel()
        if wait_id in self._futures:
            self._pending.acts.append(functools.partial(self._tell_now, wait_id))

    def _tell_now(self, wait_id: str) -> None:
        for future in self._futures.pop(wait_id, ()):
            if not future.done():
                future.set_result(None)

    # Time

    def _watch(self, wait: WaitState) -> None:
        if wait.due is None or wait.status is not WaitStatus.OPEN:
            return
        seconds = min(max(0.0, (wait.due - self._machinery.clock.now_micros()) / 1_000_000), CLOCK_SECONDS)
        self._dues[wait.wait_id] = self._driver.later(seconds, functools.partial(self._time_came, wait.wait_id))

    def _time_came(self, wait_id: str) -> None:
        wait = self._waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN or wait.due is None:
            return
        if self._decider.projection.run.status not in _TIMED:
            return  # a paused run hears of it when it is resumed
        at = self._machinery.clock.now_micros()
        if at < wait.due:  # not yet, or the clock of the world runs behind that of the loop
            self._watch(wait)
        elif wait.kind is WaitKind.ASK:
            self._driver.spawn(self._answer_in_time(wait))
        else:
            self._decider.time_came(wait, at=at)
            self._driver.happened()

    async def _answer_in_time(self, wait: WaitState) -> None:
        command = answer_command(self._driver.run_id, answer_in_time(wait), at=self._machinery.clock.now_micros())
        try:
            await self._machinery.store.add_command(command)
        except (CommandIdTaken, RunNotFound):
            return  # somebody was faster, and the answer is on its way
        except StoreError:
            self._dues[wait.wait_id] = self._driver.later(1.0, functools.partial(self._time_came, wait.wait_id))
            return
        self._driver.command(command)

    # Sleep

    @property
    def _hibernate_after(self) -> float:
        return self._machinery.hibernate_after

    def look_later(self, *, passed: float = 0.0) -> None:
        """See after a while whether what waits goes on waiting. Of that while, so many seconds have passed."""
        if self._look is None:
            self._look = self._driver.later(max(LOOK_SECONDS, self._hibernate_after - passed), self._look_around)

    def _look_around(self) -> None:
        self._look = None
        if self._decider.projection.run.status is not RunStatus.RUNNING:
            return
        seen, self._seen = self._seen, {}
        for actor in list(self._bodies.running()):
            if actor.only_waits and not (self._waits_soon(actor) or self._is_coming_back(actor)):
                stand = self._stand(self._decider.projection.node(actor.node_id).last_seq, seen.get(actor))
                if self._lasts(stand):
                    self.unwind(actor, "it waits")
                else:
                    self._seen[actor] = stand
        self._seen_run = self._stand(self._decider.projection.run.last_seq, self._seen_run)
        self._fall_asleep()
        if len(self._bodies):
            now = self._machinery.clock.monotonic()
            stands = [stand.since for stand in (self._seen_run, *self._seen.values()) if not self._lasts(stand)]
            self.look_later(passed=now - min(stands, default=now))

    def _stand(self, seq: Seq, seen: Stand | None = None) -> Stand:
        """Return where something stands: since when it was seen there, or since this moment."""
        return seen if seen is not None and seen.seq == seq else Stand(seq, self._machinery.clock.monotonic())

    def _lasts(self, stand: Stand) -> bool:
        return self._machinery.clock.monotonic() - stand.since >= max(LOOK_SECONDS, self._hibernate_after)

    def _waits_soon(self, actor: Actor) -> bool:
        return any(map(self._is_soon, self._waits.of(actor.node_id)))

    def _is_coming_back(self, actor: Actor) -> bool:
        """Whether something has come that a body has yet to ask for, because it runs again, or with which it may be at work
        beside what else it waits for: it has a while for that."""
        if not self._waits.has_past(actor.node_id):
            return False
        if actor.recall.was_given_since(self._machinery.clock.monotonic() - REPLAY_SECONDS):
            return True
        if actor.elapsed_seconds >= REPLAY_SECONDS:
            return False
        left = (self._waits.named(actor.node_id, *name) for name in actor.recall.all_left())
        return any(wait is not None and wait.status is WaitStatus.SETTLED for wait in left)

    def _is_soon(self, wait: WaitState) -> bool:
        """Whether the time for which something waits is so near that it stays in memory."""
        if wait.due is None:
            return False
        return wait.due - self._machinery.clock.now_micros() <= self._hibernate_after * 1_000_000

    def _fall_asleep(self) -> None:
        """Unwind what only waits for items, if nobody is left who could give any before something comes from outside."""
        is_quiet = self._lasts(self._seen_run) and not self._driver.has_work_to_do
        waits_outside = self._waits.are_open or any(isinstance(actor, InputActor) for actor in self._bodies.running())
        if not (is_quiet and waits_outside and self._bodies.all_wait):
            return
        if any(map(self._is_soon, self._waits.open())) or any(map(self._is_coming_back, self._bodies.running())):
            return
        if self._decider.is_retried_soon(at=self._machinery.clock.now_micros()):
            return  # the run does not rest before that, and what is tried again may give or read items
        self._decider.falls_asleep = True
        self.unwind_all("it waits for items")

    def make_room(self) -> None:
        """Unwind what would otherwise stay in memory for a while: at once, or as soon as it can be if others still need that."""
        self._driver.guarded(self._make_room)

    def _make_room(self) -> None:
        for actor in list(self._bodies.running()):
            if actor.only_waits and not (self._waits_soon(actor) or self._is_coming_back(actor)):
                self.unwind(actor, "others need its place")
        is_done = all(actor.unwinding is not None for actor in self._bodies.running() if actor.waits_outside)
        if self._room is None and not is_done:
            self._room = self._driver.later(ROOM_SECONDS, self._make_room_again)

    def _make_room_again(self) -> None:
        """Unwind what could not be before: something it was to be given was on its way to it, or a part of it was at work."""
        self._room = None
        if self._machinery.slots.are_waited_for and self._decider.projection.run.status is RunStatus.RUNNING:
            self._make_room()

    def unwind_waiting(self, reason: str) -> None:
        """Unwind every body that waits for something from outside."""
        for actor in list(self._bodies.running()):
            if actor.only_waits:
                self.unwind(actor, reason)

    def unwind_all(self, reason: str) -> None:
        """Unwind every body that only waits, for whatever it is."""
        for actor in list(self._bodies.running()):
            if actor.is_idle:
                self.unwind(actor, reason)

    def unwind(self, actor: Actor, reason: str) -> None:
        """End a body that waits. Its node is suspended when it has ended."""
        if actor.stop_reason is None and actor.unwinding is None and actor.task is not None and actor.has_begun:
            actor.unwind(reason)

    def suspended(self, actor: Actor) -> None:
        """Record that a body was unwound."""
        assert actor.unwinding is not None
        came = any(self._has_come(wait_id) for wait_id in actor.unwound_from) or self._is_coming_back(actor)
        self._decider.attempt_suspended(
            actor.node_id,
            actor.attempt,
            reason=actor.unwinding,
            goes_on=came,
            wants_items=actor.wanted_items,
            at=self._machinery.clock.now_micros(),
        )

    def _has_come(self, wait_id: str) -> bool:
        wait = self._waits.get(wait_id)
        return wait is not None and wait.status is WaitStatus.SETTLED


_TIMED = frozenset((RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT))


def opening(
    wanted: WaitFor,
    name: str,
    wait_id: str,
    node_id: NodeId,
    attempt: int,
    value: e.Encoded | None,
    encode: Callable[[Any], e.Encoded],
    *,
    at: int,
) -> e.AnyWait:
    """Return the event that says that a body waits. What answers is encoded as values are, and what is only shown as JSON."""
    due = _due(wanted, at)
    match wanted.kind:
        case WaitKind.SLEEP:
            assert due is not None
            return e.TimerSet(
                node_id=node_id, attempt=attempt, name=name, occurrence=wanted.occurrence, timer_id=wait_id, due=due
            )
        case WaitKind.SIGNAL:
            return e.SignalAwaited(
                node_id=node_id,
                attempt=attempt,
                name=name,
                occurrence=wanted.occurrence,
                wait_id=wait_id,
                signal=storable(wanted.signal),
                due=due,
            )
        case WaitKind.ASK | WaitKind.SUSPEND:
            is_question = wanted.kind is WaitKind.ASK
            return e.InteractionRequested(
                node_id=node_id,
                attempt=attempt,
                name=name,
                occurrence=wanted.occurrence,
                interaction_id=wait_id,
                prompt=storable(wanted.prompt),
                schema=wanted.answers.schema,
                choices=tuple(map(_encoded, wanted.answers.choices)),
                show=e.maybe(value) if is_question else msgspec.UNSET,
                due=due,
                default=msgspec.UNSET if wanted.answers.default is NOT_GIVEN else encode(wanted.answers.default),
                suspends=not is_question,
            )


def _encoded(constant: Any) -> e.Encoded:
    return msgspec.Raw(msgspec.json.encode(constant))


def _due(wanted: WaitFor, at: int) -> int | None:
    if wanted.limit.until is not None:
        return int(wanted.limit.until * 1_000_000)
    return None if wanted.limit.seconds is None else at + int(wanted.limit.seconds * 1_000_000)
