"""A node that is called once per item: which item is next, how many at once, and what comes of each.

Each call is a small attempt of its own: it may be tried again, it has its own time and its own key for the outside world. What
it gives is an entry of the node's stream, at the position of its item, recorded as soon as it is there. So a node that was
interrupted goes on with the items that have no entry.

**What is repeated.** A call whose entry is not recorded yet counts as one of those that are made at once. So a crash never costs
more calls than the node makes at once, however fast they are. Only nodes that may be ahead of their record do not wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from perdure.dispatch.base import AttemptInfo, Session, SlotKind, Task, slot_kind
from perdure.dispatch.failure import failure_of
from perdure.engine.attempts.concluding import is_light_result
from perdure.engine.attempts.failures import AttemptTimeout, record_of
from perdure.engine.attempts.items import items_of_list, picked
from perdure.engine.attempts.keys import item_keys, item_name
from perdure.engine.attempts.pauses import pause_micros
from perdure.engine.attempts.slots import Grant
from perdure.engine.attempts.values import Decode
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.calls import ItemServices
from perdure.engine.driving.emission import NestedOutlet
from perdure.engine.streams.entries import hole
from perdure.engine.streams.live import NodeFacts
from perdure.engine.streams.meeting import Latest, ListSource, Meeting, Met, Source, Together
from perdure.engine.streams.outbox import Outbox
from perdure.engine.streams.packing import PackedEntry
from perdure.errors import AttemptOver, CheckpointNotHere, StoreError, ValueNotReadable
from perdure.graph.constants import from_outside
from perdure.graph.handles import Outputs
from perdure.graph.itemfailure import ERRORS, ItemFailure
from perdure.graph.model import CONDITION, Edge
from perdure.graph.plan import Flow
from perdure.journal.decide import RESOURCE_RETRIES
from perdure.journal.events import Encoded, ErrorClass, ErrorRecord
from perdure.journal.states import WaitState
from perdure.journal.values import is_true
from perdure.store.codecs import content_refs
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver
    from perdure.graph.declare import NodeType
    from perdure.graph.plan import NodePlan

log = logging.getLogger("perdure.driver")

MAX_AHEAD: Final = 1_024
"""How far the work may be ahead of the first item that is not done."""
CALLS_PER_TURN: Final = 64
"""After how many calls that never waited others get a turn."""

Work = tuple[int, Met]
"""A position, and what its call gets."""


class ItemGivenUp(Exception):
    """An item has failed for good, and its node with it."""

    def __init__(self, position: int, attempt: int, record: ErrorRecord) -> None:
        super().__init__(f"item {position}: {record.message}")
        self.position = position
        self.attempt = attempt
        self.record = record


class MapActor(Actor):
    """Runs a mapped node from the first item that has no entry to the last."""

    def __init__(self, driver: Driver, plan: NodePlan, node_type: NodeType[..., Any], attempt: int) -> None:
        super().__init__(driver, plan, node_type, attempt)
        assert plan.flow is not None, "only a node that is mapped is called per item"
        self._flow: Flow = plan.flow
        self._kind: SlotKind = slot_kind(node_type)
        # Two calls at once would have to agree on what is the latest.
        self._most_at_once = 1 if plan.flow.join == "latest" else plan.policy.concurrency
        self._live = {_place_of(edge): edge for edge in plan.flow.live if edge.mode != "stream"}
        self._paths = {place: edge.path for place, edge in self._live.items() if edge.path}
        self._wanted = {place: edge.mode == "when" for place, edge in self._live.items() if edge.mode != "map"}
        """What conditions must be, for the node to be called."""
        self._held: dict[str, Encoded] = {}
        """Arguments that are the same for every item."""
        self._decode_held: Decode
        self._session: Session
        self._meeting: Meeting
        self._outbox: Outbox
        self._group: asyncio.TaskGroup | None = None
        """Where the calls belong, while there may be any."""
        self._may_trail = driver.launching.may_trail(self.node_id)
        self._key_of = item_keys(driver.run_id, driver.projection.node(self.node_id))
        self._running = 0
        self._undecided = 0
        """How many calls have failed, of which it is not known yet whether that counts."""
        self._is_pumping = False
        """Whether it will be seen in a moment who waits."""
        self._returned: list[Work] = []
        """Work for which there was no place."""
        self._lent: set[str] = set()
        """The scopes of calls that wait for something from outside. Others may have their places meanwhile."""
        self._is_through = asyncio.Event()
        self._drained = asyncio.Event()
        self._problem: Exception | None = None
        self._given_up_item: tuple[int, int, ErrorRecord] | None = None
        """The position, the attempt and the error of the item with which the node fails."""

    def prepare(self) -> None:
        """Nothing can be made ready before there are items."""

    async def checkpoint(self, state: Any, *, suspends: bool = False) -> None:
        if not suspends:  # what its items have done would be left behind
            raise CheckpointNotHere(self.node_id)
        await super().checkpoint(state, suspends=suspends)

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        given = await self.patiently(self._gather)
        values = self._driver.machinery.values
        own = {handle.name: given.pop(handle.name) for handle in self._type.properties if handle.name in given}
        self._outbox = self._driver.streams.outbox(self.node_id)
        self._outbox.on_recorded = self._pump
        self._meeting = self._meet({handle: given.pop(handle) for handle in self._flow.mapped if handle in given})
        try:
            if self._kind == "process":
                given, own = await self._inlined(given), await self._inlined(own)
            self._held = given
            self._decode_held = await self.patiently(lambda: values.reader(*given.values(), *own.values()))
            await self._live_through(own)
        finally:
            self._meeting.leave()
        return await self._finish_stream(self._outbox)

    async def _live_through(self, properties: Mapping[str, Encoded]) -> None:
        opening = self._task({}, self._decode_held, None)
        # The time that is given is for each item.
        opening = msgspec.structs.replace(opening, properties=properties, on_begin=None)
        self._session = await self._driver.machinery.dispatch.open(opening)
        try:
            await self._with_workers()
        except BaseExceptionGroup as errors:
            error = _first_of(errors)
            await self._session.close(error)
            raise error from None
        except BaseException as error:  # it is told to stop, and the instance is finalized all the same
            await self._session.close(error)
            raise
        await self._session.close()

    async def _with_workers(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._work_through(group)
        finally:
            for scope in list(self._lent):
                self._take_back(scope)
            while self._running:  # those that were stopped before they began
                self._worker_ended()

    def _worker_ended(self) -> None:
        self._running -= 1
        self._driver.machinery.dispatch.vacate(self._kind, self._driver.machinery.slots.release)

    async def _work_through(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        try:
            self._pump()
            await self._is_through.wait()
        finally:
            self._group = None
            self._driver.machinery.slots.forget(self)
        if self._problem is not None:
            raise self._problem

    @staticmethod
    def _scope_of(wait_name: str) -> str:
        return wait_name.partition("/")[0] + "/"

    @contextmanager
    def waiting_for(self, wait: WaitState) -> Generator[None]:
        """Meanwhile the call waits, and needs no place. It goes on at once, also if there is none then."""
        scope = self._scope_of(wait.name)
        # One in a thread or a process holds that, too.
        if self._kind == "loop" and self._group is not None and scope not in self._lent:
            self._lent.add(scope)
            self._driver.machinery.slots.release(self._kind)
            self._pump()
        try:
            with super().waiting_for(wait):
                yield
        finally:
            if scope not in self.recall.awaited.values():
                self._take_back(scope)

    def call_ended(self, scope: str) -> None:
        if "recall" in self.__dict__:  # asked first, because it is asked for every item
            super().call_ended(scope)
            self._take_back(scope)

    def _take_back(self, scope: str) -> None:
        if scope in self._lent:
            self._lent.remove(scope)
            self._driver.machinery.slots.take_back(self._kind)

    @property
    def only_waits(self) -> bool:
        return super().only_waits and len(self.recall) == self._running

    @property
    def waits_for_items(self) -> bool:
        waiting = len(self.recall) if "recall" in self.__dict__ else 0
        return self._group is not None and self._running == waiting and (self._is_draining or not self._returned)

    @property
    def wants_items(self) -> bool:
        if self._group is None or self.is_unread or self._running >= self._most_at_once:
            return False
        return bool(self._returned) or not self._meeting.is_over

    def drain(self) -> None:
        super().drain()
        self._drained.set()

    def end_unread(self) -> None:
        super().end_unread()
        self._pump()

    def live_facts(self) -> NodeFacts | None:
        if self._group is None:
            return NodeFacts(running=0)
        return NodeFacts(
            running=self._running,
            total=self._meeting.total,
            is_blocked=not self._running and self._outbox.is_blocked,
            is_starved=not self._running and not self._returned and self._meeting.is_starved,
        )

    # Which item is next

    def _meet(self, lists: Mapping[str, Encoded]) -> Meeting:
        """Bring the streams and lists together over which the node is mapped."""
        stream = self._driver.projection.node(self.node_id).stream
        assert stream is not None, "the stream of a node that runs is open"
        is_latest = self._flow.join == "latest"
        sources: dict[str, Source] = {}
        for handle in (*self._flow.mapped, *self._wanted):
            start = max(0, stream.consumed.get(handle, 0) - 1) if is_latest else self._outbox.low
            if (edge := self._live.get(handle)) is not None:
                sources[handle] = self._driver.streams.inbox(edge, start=start, on_news=self._pump)
            else:
                items = items_of_list(lists[handle], handle, self._driver.machinery.values)
                sources[handle] = ListSource(items, start=start)
        if is_latest:
            return Latest(sources, position=self._outbox.low, has_begun=bool(stream.consumed))
        return Together(self.node_id, sources, start=self._outbox.low, leftovers=self._flow.leftovers)

    def _next(self) -> Work | None:
        """Return the next item that has no entry; None if there is none at the moment."""
        if self.is_unread or self._is_draining or self._undecided:
            return None
        if self._outbox.is_blocked:
            self._outbox.when_unblocked(self._pump)
            return None
        if self._returned:
            return self._returned.pop()
        while (position := self._meeting.position) < self._outbox.low + MAX_AHEAD:
            met = self._meeting.take()
            if met is None:
                return None
            if not self._outbox.has(position):
                return position, met
        return None

    def _pump(self) -> None:
        """Have calls made, as many at once as may be. Called whenever there may be something to do.

        Bodies on the loop that never wait are called one after the other by one worker; only while those there are wait are more
        set to work, twice as many each time.
        """
        group = self._group
        if group is None or self._problem is not None or self._is_told_to_stop or self._is_pumping:
            return
        try:
            wanted = max(1, self._running) if self._kind == "loop" else self._most_at_once
            if all(self._set_to_work(group) for _ in range(wanted)):
                self._is_pumping = True
                asyncio.get_running_loop().call_soon(self._pump_again)
            elif not self._running and (self.is_unread or (not self._returned and self._meeting.is_over)):
                self._is_through.set()
        except Exception as error:  # streams that end unevenly, say: the attempt is to hear of it
            self._fail(error)

    def _pump_again(self) -> None:
        """See who waits, now that all workers have begun."""
        self._is_pumping = False
        self._pump()

    def _set_to_work(self, group: asyncio.TaskGroup) -> bool:
        """Start a worker. False if there is nothing for it to do, or no place."""
        if not self._has_place_for(1) or (work := self._next()) is None:
            return False
        if not self._driver.machinery.slots.acquire(self._kind, self):
            self._returned.append(work)
            return False
        self._start_worker(group, work)
        return True

    def slot_granted(self, kind: SlotKind) -> Grant:
        """See `Claimant`: there is a place for one more call."""
        group = self._group
        if group is None or self._problem is not None or self._is_told_to_stop or not self._has_place_for(1):
            return Grant.UNNEEDED
        try:
            work = self._next()
        except Exception as error:  # as in `_pump`
            self._fail(error)
            return Grant.UNNEEDED
        if work is None:
            return Grant.UNNEEDED
        self._start_worker(group, work)
        return Grant.TAKEN

    def _start_worker(self, group: asyncio.TaskGroup, work: Work) -> None:
        self._running += 1
        group.create_task(self._work(work))

    def _has_place_for(self, more: int) -> bool:
        """Whether so many more calls may be made: what would be repeated after a crash is never more than runs at once."""
        unrecorded = 0 if self._may_trail else self._outbox.unrecorded
        return self._running + unrecorded + more <= self._most_at_once

    def _fail(self, error: Exception) -> None:
        self._problem = self._problem or error
        self._is_through.set()

    async def _work(self, work: Work | None) -> None:
        calls = 0
        try:
            while work is not None:
                await self._call(*work)
                calls += 1
                if calls % CALLS_PER_TURN == 0:
                    await asyncio.sleep(0)
                work = self._next() if self._problem is None and self._has_place_for(0) else None
        except Exception as error:  # a body may raise anything
            self._fail(error)
        finally:
            self._worker_ended()
        self._pump()

    # One item

    async def _call(self, position: int, met: Met) -> None:
        """Call the body for one item until there is an entry for it. Raises ItemGivenUp if there will be none."""
        consumed = self._meeting.consumed
        name = item_name(position, consumed)
        attempt = self._failed_before(position) + 1
        given_up: ErrorRecord | None = None
        worker = asyncio.current_task()
        assert worker is not None
        while True:
            try:
                packed = await self._entry(position, name, attempt, met)
                if worker.cancelling() and self._group is not None:
                    await self._take_back_cancellations(worker)
            except (Exception, asyncio.CancelledError) as error:  # a body may raise anything, and cancel itself
                if self._is_told_to_stop or self.unwinding is not None or self._is_beyond_the_body(error):
                    raise
                if self._group is None:  # all calls are being ended
                    raise
                if worker.cancelling():
                    await self._take_back_cancellations(worker)
                if await self._is_excused():
                    self._tell_of_lost(name, error)
                    self._returned.append((position, met))
                    return
                delay = self._item_failed(position, attempt, error)
                self._pump()  # others may begin again
                if delay is not None:
                    if await self._drained_within(delay):
                        self._returned.append((position, met))
                        return
                    attempt += 1
                    continue
                packed = await self._given_up(position, attempt, met, error)
                given_up = record_of(error, self._plan.policy.retry_on)
            if packed.blobs:
                kept = (
                    self._driver.machinery.values.used(packed.blobs)
                    if packed.are_kept
                    else await self.kept(packed.blobs)
                )
                self._driver.use_blobs(kept)
            if given_up is not None:  # with its entry, in one transition
                self._driver.flow.item_failed(self, position, attempt, given_up, final=True)
            self._outbox.put(position, packed.entry, consumed=consumed)
            return

    async def _is_excused(self) -> bool:
        """Whether a failure says nothing, because the engine stops. Until that is known no other call begins: the node may have
        failed with this one."""
        self._undecided += 1
        try:
            await self._driver.all_heard()
        finally:
            self._undecided -= 1
        return self._reports.is_excused(self.node_id)

    def _tell_of_lost(self, name: str, error: BaseException) -> None:
        """Say what is recorded nowhere: the item is called again as if it had not been."""
        record = record_of(error, self._plan.policy.retry_on)
        place = {"run_id": self._driver.run_id, "node_id": self.node_id, "item": name}
        log.warning("item_lost", extra={**place, "error": f"{record.type}: {record.message}"})

    async def _drained_within(self, seconds: float) -> bool:
        """Wait so long, but not if the run is being let go; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        return self._is_draining

    async def _entry(self, position: int, name: str, attempt: int, met: Met) -> PackedEntry:
        items: dict[str, Encoded] = {}
        for handle, item in met.items():
            if item is None:
                return PackedEntry(hole())
            brought = picked(item, self._paths[handle], handle) if handle in self._paths else item
            if handle not in self._wanted:
                items[handle] = msgspec.Raw(brought)
            elif is_true(msgspec.Raw(brought)) != self._wanted[handle]:
                return PackedEntry(hole())
        outlet = NestedOutlet(self) if self._flow.is_generator else None
        services = ItemServices(self, position, name)
        try:
            decode = self._decode_held
            if any(map(content_refs, items.values())):
                if self._kind == "process":
                    items = await self._inlined(items)
                else:
                    decode = await self.patiently(functools.partial(self._reader, items))
            task = self._item_task(services, position, name, attempt, items, outlet, decode)
            result = await self._called(task, services)
        finally:
            services.close()
        if outlet is not None:
            return await outlet.entry()
        if isinstance(result, PackedEntry):
            return result
        if is_light_result(result):
            return self.pack(result)
        return await self._driver.machinery.values.beside(self._pack_beside, result)

    def _called(self, task: Task, services: ItemServices) -> Coroutine[Any, Any, Any]:
        limit = self._plan.policy.timeout
        return self._session.call(task) if limit is None else self._in_time(task, services, limit.total_seconds())

    async def _inlined(self, given: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Return arguments for another process, which reads no blobs."""
        inlined = self._driver.machinery.values.inlined
        return {handle: await self.patiently(functools.partial(inlined, value)) for handle, value in given.items()}

    async def _reader(self, items: Mapping[str, Encoded]) -> Decode:
        return await self._driver.machinery.values.reader(*self._held.values(), *items.values())

    async def _in_time(self, task: Task, services: ItemServices, seconds: float) -> Any:
        limit = services.limit = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        try:
            async with limit:
                # What it waits for before it begins does not count.
                task = msgspec.structs.replace(task, on_begin=lambda: limit.reschedule(loop.time() + seconds))
                return await self._session.call(task)
        except TimeoutError:
            if limit.expired():
                raise AttemptTimeout(f"the attempt took longer than {seconds:g} s") from None
            raise

    def _item_task(
        self,
        services: ItemServices,
        position: int,
        name: str,
        attempt: int,
        items: dict[str, Encoded],
        outlet: NestedOutlet | None,
        decode: Decode,
    ) -> Task:
        return Task(
            node_type=self._type,
            info=AttemptInfo(
                run_id=self._driver.run_id,
                node_id=self.node_id,
                attempt=attempt,
                idempotency_key=self._key_of(position, name),
                from_outside=self._plan.from_outside,
                item=position,
            ),
            arguments={**self._held, **items} if self._held else items,
            properties={},
            decode=decode,
            services=services,
            outlet=outlet,
            finish=self._pack_beside if self._kind == "thread" and outlet is None else None,
        )

    def _pack_beside(self, result: Any) -> PackedEntry:
        """Pack what a body returned in a thread that can wait: it keeps the blobs, too."""
        packed = self.pack(result)
        if packed.blobs:
            try:
                self._driver.machinery.values.keep_at_once(packed.blobs)
            except StoreError:  # others have patience
                return packed
        return msgspec.structs.replace(packed, are_kept=True)

    # Failures

    def _failed_before(self, position: int) -> int:
        stream = self._driver.projection.node(self.node_id).stream
        return 0 if stream is None else stream.attempts.get(position, 0)

    def _is_beyond_the_body(self, error: BaseException) -> bool:
        """Whether the value of an item cannot be read here: that is left to others, and no failure of the node."""
        return self._driver.was_taken_up and failure_of(error).is_a(ValueNotReadable)

    def _item_failed(self, position: int, attempt: int, error: BaseException) -> float | None:
        """Record that an attempt at an item failed. Return how long to wait before the next one; None if there is none and
        the others go on: that is recorded with its entry. Raises ItemGivenUp if the node fails with it, and with that it is
        recorded."""
        policy = self._plan.policy
        record = record_of(error, policy.retry_on)
        budget = max(policy.retries, RESOURCE_RETRIES) if record.error_class is ErrorClass.RESOURCE else policy.retries
        is_final = not record.retryable or attempt > budget
        if is_final and policy.on_item_error != "fail":
            return None
        if is_final:
            raise ItemGivenUp(position, attempt, record) from error
        self._driver.flow.item_failed(self, position, attempt, record, final=False)
        return pause_micros(policy.backoff, attempt - 1, self._driver.machinery.chance) / 1_000_000

    async def _given_up(self, position: int, attempts: int, met: Met, error: BaseException) -> PackedEntry:
        """Return the entry of an item that has failed for good, where the others go on."""
        if self._plan.policy.on_item_error != "collect":
            return PackedEntry(hole())
        annotations = {handle.name: handle.annotation for handle in self._type.inputs}
        encoded = {
            handle: msgspec.Raw(item) for handle, item in met.items() if item is not None and handle not in self._wanted
        }
        decode = await self.patiently(lambda: self.values.reader(*encoded.values()))
        items = {handle: decode(item, annotations.get(handle, Any)) for handle, item in encoded.items()}
        for handle in items.keys() & set(self._plan.from_outside):
            items[handle] = from_outside(items[handle], annotations.get(handle, Any))
        record = record_of(error, self._plan.policy.retry_on)
        failure = ItemFailure(
            position=position,
            item=next(iter(items.values())) if len(items) == 1 else items,
            error=record.type,
            message=record.message,
            attempts=attempts,
        )
        return self.pack(Outputs(**{ERRORS: failure}))

    def _report(self, error: BaseException) -> None:
        if isinstance(error, ItemGivenUp):
            self._given_up_item = (error.position, error.attempt, error.record)
        super()._report(error)

    def record_what_failed(self) -> None:
        if self._given_up_item is not None:
            with suppress(AttemptOver):
                self._driver.flow.item_failed(self, *self._given_up_item, final=True, fails_node=True)

    def _record_of(self, error: BaseException) -> ErrorRecord:
        if isinstance(error, ItemGivenUp):
            record: ErrorRecord = error.record
            return msgspec.structs.replace(record, message=f"item {error.position}: {record.message}", retryable=False)
        return super()._record_of(error)


def _place_of(edge: Edge) -> str:
    """Return where an edge brings its items: to a handle, or to a condition, of which there may be several."""
    return edge.id if edge.target_handle == CONDITION else edge.target_handle


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what went wrong first: all others were told to stop because of it."""
    first = errors.exceptions[0]
    return (
        _first_of(cast("BaseExceptionGroup[BaseException]", first)) if isinstance(first, BaseExceptionGroup) else first
    )
