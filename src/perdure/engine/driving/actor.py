"""One attempt at one node: gather what it needs, run its body, turn what comes out into a result.

This is the one place where a failure of a node's body is caught. Anything else that goes wrong here is a bug of ours and
ends the run's task group.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.dispatch.base import AttemptInfo, StepCall, Task, slot_kind
from perdure.dispatch.failure import failure_of, storable
from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.engine.attempts.arguments import arguments_at_hand, gather_arguments
from perdure.engine.attempts.concluding import Concluded, conclude, conclude_plainly, is_light_result, looks_at
from perdure.engine.attempts.failures import AttemptTimeout, record_of
from perdure.engine.attempts.keys import idempotency_key
from perdure.engine.attempts.values import Decode
from perdure.engine.driving.emission import Emission, Unread
from perdure.engine.driving.recall import Recall
from perdure.engine.driving.serving import Serving
from perdure.engine.streams.entries import Entry
from perdure.engine.streams.live import NodeFacts
from perdure.engine.streams.outbox import Outbox
from perdure.engine.streams.packing import PackedEntry, collected_parts, pack_entry, streamed_looks
from perdure.engine.streams.reading import StreamFeed
from perdure.engine.streams.whole import Whole
from perdure.errors import (
    ArgumentNotReadable,
    AttemptOver,
    ValueNotReadable,
)
from perdure.graph.constants import from_constant
from perdure.graph.declare import NodeType
from perdure.graph.index import outputs_of_type
from perdure.graph.model import Edge
from perdure.graph.plan import Flow, NodePlan
from perdure.journal.events import Encoded, ErrorRecord, NodeCheckpointed
from perdure.journal.states import WaitKind, WaitState
from perdure.journal.truth import Look
from perdure.store.codecs import NewBlob, content_refs
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver


T = TypeVar("T")


class Actor(Serving):
    """Runs one attempt."""

    runs_code = True
    """Whether there is a body, or only something to be finished."""
    has_effects = True
    """Whether it does something that must not be done before the record of its start is durable."""

    # What few attempts come to know is here for all of them until they do.

    stop_reason: str | None = None
    """Why the engine has told the body to stop, if it has."""
    has_begun = False
    """Whether `run` has begun with the attempt: a task that is cancelled before that ends without a word."""
    task: asyncio.Task[Any] | None = None
    """The task in which `run` runs. Whoever starts it says so."""
    began = 0.0
    """When it began to run, or to run again, by the clock that never goes back."""
    is_unread = False
    """Whether nobody reads the stream of the node any more."""
    unwinding: str | None = None
    """Why the body is being ended because it waits, if it is."""
    unwound_from: tuple[str, ...] = ()
    """What it waited for when it was told so."""
    wanted_items = False
    """Whether it could have gone on with items of a stream when it was told so."""
    _prepared: Task | None = None
    _gate: asyncio.Future[None] | None = None
    """What `run` waits for before anything else, if its task is begun while the start is being written."""
    _timer: asyncio.TimerHandle | None = None
    _is_overdue = False
    _is_over = False
    _feeds: Mapping[str, StreamFeed] = MappingProxyType({})
    _emitting: Emission | None = None
    _is_draining = False
    _left_seconds: float | None = None
    """What is left of its time, while it waits for something from outside."""
    _late: tuple[Exception | None, ...] = ()
    """What the body came to, if that no longer counts: nothing, or what it raised."""

    def __init__(self, driver: Driver, plan: NodePlan, node_type: NodeType[..., Any], attempt: int) -> None:
        super().__init__(driver, plan.node.id, attempt)
        self._reports = driver.reports
        self._plan = plan
        self._type = node_type

    async def run(self) -> None:
        """Run the attempt to its end and report to the driver, whatever happens in the body."""
        if self._gate is not None:
            await self._gate  # who is cancelled here ends without a word, as those who were not entered
        self.has_begun = True
        self.began = self._driver.machinery.clock.monotonic()
        try:
            outputs, blobs = await self._attempt()
        except asyncio.CancelledError as error:
            if not self._is_told_to_stop and self.unwinding is None and self._driver.is_interrupted:
                raise
            self._report(error)  # if nobody has told it to stop, the body has cancelled itself
        except Exception as error:  # a body may raise anything
            if self._is_told_to_stop and not isinstance(error, AttemptOver):
                self._late += (error,)
            self._report(error)
        else:
            self._is_over = True
            if self.unwinding is not None:  # it has made something else of being ended
                self._reports.unwound(self)
                return
            self._reports.completed(self, outputs, blobs, self._elapsed_ms())
        finally:
            if self._files is not None:
                self._files.close()

    def wait_for_launch(self) -> None:
        """Have `run` wait for `go_ahead`."""
        self._gate = asyncio.get_running_loop().create_future()

    def go_ahead(self) -> bool:
        """Let `run` go on that waits for it. False if none does, or if it was cancelled meanwhile, by whomever."""
        gate, self._gate = self._gate, None
        if gate is None or gate.done() or self.task is None or self.task.cancelling():
            return False
        gate.set_result(None)
        return True

    def give_up_launch(self) -> None:
        """End the task if it waits for `go_ahead`, because that never comes."""
        if self._gate is not None and self.task is not None:
            self.task.cancel()

    @property
    def _is_told_to_stop(self) -> bool:
        return self.stop_reason is not None or self._is_overdue

    def _report(self, error: BaseException) -> None:
        self._is_over = True
        if self.stop_reason is not None:
            self._reports.stopped(self)
        elif self.unwinding is not None and not self._is_overdue:
            self._reports.unwound(self)
        elif (
            self._driver.was_taken_up and not self._is_overdue and (failure := failure_of(error)).is_a(ValueNotReadable)
        ):
            has_begun = not failure.is_a(ArgumentNotReadable)
            self._reports.unreadable(self, failure.message, has_begun=has_begun)
        else:
            self._reports.failed(self, self._record_of(error), self._elapsed_ms())
            return  # it reports what is late when it has decided
        self.report_late()

    def report_late(self) -> None:
        """Tell what the body has come to, if that no longer counts."""
        late, self._late = self._late, ()
        for error in late:
            self._driver.result_discarded(self, error)

    def record_what_failed(self) -> None:
        """Record which part of the attempt has failed, in one transition with the failure of its node, or not at all."""

    def _record_of(self, error: BaseException) -> ErrorRecord:
        if self._is_overdue and (limit := self._plan.policy.timeout) is not None:
            error = AttemptTimeout(f"the attempt took longer than {limit.total_seconds():g} s")
        return record_of(error, self._plan.policy.retry_on)

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        task = self._prepared or self._task_at_hand()
        self._prepared = None  # it knows its actor, and would be the second half of a circle
        if task is None:
            task = await self.patiently(self._fetch_task)
        if self._plan.flow is not None:
            return await self._attempt_with_streams(task, self._plan.flow)
        result = await self._execute(task)
        return self._concluded_at_once(result) or await self._concluded(result)

    async def _execute(self, task: Task) -> Any:
        try:
            result = await self._driver.machinery.dispatch.execute(task)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._is_told_to_stop:
            self._late += (None,)
            raise asyncio.CancelledError
        if self.task is not None and self.task.cancelling():
            await self._take_back_cancellations(self.task)
        return result

    def _concluded_at_once(self, result: Any) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]] | None:
        """Return what comes of a result if there is nothing to wait for, which is how most of them are."""
        if isinstance(result, Concluded):
            return None
        outputs = conclude_plainly(result, self.node_id, self._driver.decider.plan, self.values)
        if outputs is not None:
            return outputs, ()
        if not is_light_result(result):
            return None
        concluded = self._conclude(result)
        return None if concluded.blobs else (concluded.outputs, ())

    async def _concluded(self, result: Any) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        if isinstance(result, Concluded):
            concluded = result
        elif is_light_result(result):
            concluded = self._conclude(result)
        else:
            concluded = await self._driver.machinery.values.beside(self._conclude_beside, result)
        if not concluded.blobs:
            return concluded.outputs, ()
        if concluded.are_kept:
            return concluded.outputs, self._driver.machinery.values.used(concluded.blobs)
        return concluded.outputs, await self.kept(concluded.blobs)

    # Streams

    async def _attempt_with_streams(self, task: Task, flow: Flow) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Run a body that reads streams, yields one, or both."""
        self._feeds = {edge.target_handle: self._feed(edge) for edge in flow.live}
        task = msgspec.structs.replace(task, feeds=self._feeds)
        try:
            if not flow.is_generator:
                return await self._concluded(await self._execute(task))
            outbox = self._driver.streams.outbox(self.node_id)
            if self.is_unread:
                return await self._finish_stream(outbox)
            emission = self._emitting = await self._emission(outbox)
            if self.is_unread:  # it was told meanwhile
                emission.end()
            try:
                await self._execute(msgspec.structs.replace(task, outlet=emission))
                await emission.finish()
            except Unread:
                await emission.settle()
            outbox = self._driver.streams.outbox(self.node_id)  # it may be another, if the run has branched
        finally:
            for feed in self._feeds.values():
                feed.leave()
        return await self._finish_stream(outbox)

    def _feed(self, edge: Edge) -> StreamFeed:
        node = self._driver.projection.node(self.node_id)
        assert node.stream is not None, "a node that reads streams has told so"
        start = node.stream.consumed.get(edge.target_handle, 0)
        return StreamFeed(self._driver.streams, edge, start=start, inlined=self._inlined_item)

    async def _inlined_item(self, item: Encoded) -> Encoded:
        return await self.patiently(functools.partial(self._driver.machinery.values.inlined, item))

    async def _emission(self, outbox: Outbox) -> Emission:
        stream = self._driver.projection.node(self.node_id).stream
        assert stream is not None, "the stream of a node that runs is open"
        first = stream.checkpointed
        recorded = None
        if stream.entries > first:
            await self._driver.stored()
            recorded = self._driver.streams.read(outbox, first=first)
        return Emission(self, outbox, first=first, recorded=recorded)

    async def _finish_stream(self, outbox: Outbox) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Record that the stream is whole, and return it as one value."""
        self._driver.flow.stream_ended(self)
        if outbox.whole is None:
            await self._driver.stored()
        return await self.patiently(lambda: self._whole(outbox))

    async def _whole(self, outbox: Outbox) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Return a stream as one value: what is large is kept, in blobs."""
        declared = [handle.name for handle in outputs_of_type(self._type)]
        flow = self._plan.flow
        is_uneven = flow is not None and flow.is_generator and bool(flow.mapped)
        async with Whole(declared, self._collected, self.values, is_uneven=is_uneven) as whole:
            if (entries := outbox.whole) is not None:
                for entry in entries:
                    whole.add(entry)
            else:
                async with aclosing(self._driver.streams.pages(outbox)) as pages:
                    await whole.add_rows(pages)
            return await whole.value()

    @property
    def waits_for_items(self) -> bool:
        """Whether the body does nothing but wait for the next item of a stream, or to be stopped."""
        return (self._emitting is not None and self._emitting.waits) or any(
            feed.is_starved for feed in self._feeds.values()
        )

    @functools.cached_property
    def recall(self) -> Recall:
        """What the body waits for, and has waited for before."""
        recorded = [wait for wait in self._driver.projection.waits if wait.node_id == self.node_id]
        return Recall(recorded, self._scope_of)

    def leave_behind(self) -> None:
        super().leave_behind()
        if "recall" in self.__dict__:
            self.recall.forget()

    def call_ended(self, scope: str) -> None:
        """Whatever a call that has ended has left behind, and that waits, says nothing about the body."""
        if "recall" in self.__dict__:
            self.recall.ended(scope)

    @staticmethod
    def _scope_of(wait_name: str) -> str:
        return ""

    @property
    def is_on_loop(self) -> bool:
        """Whether the body runs on the loop, and what it does at once are tasks."""
        return slot_kind(self._type) == "loop"

    @property
    def wants_items(self) -> bool:
        """Whether the body would go on if there were another item, or a place for one."""
        return self.waits_for_items

    @property
    def waits_outside(self) -> bool:
        """Whether the body waits for something from outside, whatever else it does."""
        return "recall" in self.__dict__ and bool(self.recall)

    @property
    def only_waits(self) -> bool:
        """Whether the body waits for something from outside, and for nothing in the run, unless that is let go. What else it may
        do meanwhile is not seen."""
        return self.waits_outside and (self._is_draining or not self.wants_items)

    @property
    def is_idle(self) -> bool:
        """Whether the body does nothing but wait, for whatever it is, or is being ended for that. A node whose stream is whole is
        about to be completed."""
        if self.unwinding is not None or self._driver.flow.is_closed(self.node_id):
            return self.unwinding is not None
        return self.waits_for_items or self.only_waits

    def unwind(self, reason: str) -> None:
        """End the body, because it waits."""
        assert self.task is not None, "a body that waits has been started"
        self.unwinding = reason
        self.wanted_items = self.wants_items
        if "recall" in self.__dict__:
            self.unwound_from = (*self.recall.asked, *self.recall.awaited)
        self.task.cancel()

    @contextmanager
    def waiting_for(self, wait: WaitState) -> Generator[None]:
        """Meanwhile the body waits, and its time stands still."""
        if not self.recall:
            self._stop_time()
        try:
            with self.recall.waiting_for(wait.wait_id, self._scope_of(wait.name)):
                yield
        finally:
            if not self.recall:
                self._go_on_with_time()

    def drain(self) -> None:
        """Begin with no further item: the run is being let go."""
        self._is_draining = True
        if self._emitting is not None:
            self._emitting.hold_back()

    def end_unread(self) -> None:
        """Give no more: nobody reads it."""
        self.is_unread = True
        if self._emitting is not None:
            self._emitting.end()

    def live_facts(self) -> NodeFacts | None:
        """Return how the streams flow that the body reads and gives; None if there are none."""
        flow = self._plan.flow
        if flow is None:
            return None
        return NodeFacts(
            is_blocked=flow.is_generator and self._driver.streams.outbox(self.node_id).is_blocked,
            is_starved=any(feed.is_starved for feed in self._feeds.values()),
        )

    def replay_differs(self, position: int) -> tuple[Outbox, Outbox]:
        """See `Flowing.replay_differs`."""
        return self._driver.flow.replay_differs(self, position)

    @property
    def must_repeat_itself(self) -> bool:
        """Whether the body promises to give the same again, beginning with its checkpoint."""
        return self._plan.policy.replay == "checkpoint"

    def recorded_entries(self, outbox: Outbox) -> AsyncGenerator[Entry]:
        """Return what was recorded of a stream."""
        return self._driver.streams.read(outbox)

    def pack(self, value: Any) -> PackedEntry:
        """Encode an item that the node gives, in any thread."""
        return pack_entry(value, self.node_id, self.values, self._looks_at_items, self._collected)

    @functools.cached_property
    def _collected(self) -> tuple[Edge, ...]:
        return collected_parts(self._plan)

    @functools.cached_property
    def _looks_at_items(self) -> tuple[Look, ...]:
        return streamed_looks(self.node_id, self._driver.decider.plan)

    def use(self, blobs: Sequence[NewBlob]) -> None:
        """Note durable blobs that the next transition refers to."""
        self._driver.use_blobs(self.values.used(blobs))

    # What the body needs

    def settle_at_once(self) -> bool:
        """Record what comes of the attempt if nothing has to run for that, and return whether that was so."""
        return False

    def prepare(self) -> None:
        """Get ready what the body needs, if that is at hand: there is time for it while the start is being written."""
        if not self.has_begun:
            try:
                task = self._task_at_hand()
                self._prepared = None if task is None else self._driver.machinery.dispatch.prepare(task)
            except Exception:  # whatever is wrong, the attempt finds it again and reports it
                self._prepared = None

    def _task_at_hand(self) -> Task | None:
        """Return what is to be executed; None if something for it has to be fetched from blobs."""
        driver = self._driver
        given = arguments_at_hand(self._plan, driver.projection)
        restored = driver.projection.node(self.node_id).checkpoint
        if given is None or any(map(content_refs, given.values())) or (restored is not None and content_refs(restored)):
            return None
        if self._plan.constants:
            given = self._constants() | given
            if any(map(content_refs, given.values())):
                return None
        return self._task(given, driver.machinery.values.decode_whole, restored)

    async def _gather(self) -> dict[str, Encoded]:
        """Return the encoded value for each handle that has one."""
        values = self._driver.machinery.values
        return self._constants() | await gather_arguments(self._plan, self._driver.projection, values)

    async def _fetch_task(self) -> Task:
        values = self._driver.machinery.values
        given = await self._gather()
        if slot_kind(self._type) == "process":
            given = {handle: await values.inlined(value) for handle, value in given.items()}
        restored = self._driver.projection.node(self.node_id).checkpoint
        if restored is not None:
            restored = await values.inlined(restored)
        return self._task(given, await values.reader(*given.values()), restored)

    def _task(self, given: dict[str, Encoded], decode: Decode, restored: Encoded | None) -> Task:
        kind = slot_kind(self._type)
        own = {handle.name: given.pop(handle.name) for handle in self._type.properties if handle.name in given}
        return Task(
            node_type=self._type,
            info=self._info(restored),
            arguments=given,
            properties=own,
            decode=decode,
            services=self,
            looks=looks_at(self.node_id, self._driver.decider.plan) if kind == "process" else (),
            finish=self._conclude_beside if kind == "thread" else None,
            on_begin=None if self._plan.policy.timeout is None else self._watch_time,
            on_late=None if kind == "loop" else self._ended_late,
        )

    async def _take_back_cancellations(self, task: asyncio.Task[Any]) -> None:
        """Undo what the body has done to its own task: libraries end their waits by cancelling whoever waits."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # where a cancellation strikes that has not yet
        while task.cancelling():
            task.uncancel()

    # What comes of the body

    def _conclude(self, result: Any) -> Concluded:
        """Encode what the body returned, and note what decisions need to know of it. In any thread."""
        return conclude(result, self.node_id, self._driver.decider.plan, self.values.packed)

    def _conclude_beside(self, result: Any) -> Concluded:
        """As `_conclude`, in a thread that can wait: it keeps the blobs, too. If they cannot be kept, others have patience."""
        keeping = self.values.keeping()
        concluded = conclude(result, self.node_id, self._driver.decider.plan, keeping.packed)
        if not concluded.blobs or not keeping.are_kept:
            return concluded
        return msgspec.structs.replace(concluded, are_kept=True)

    def _ended_late(self, error: Exception | None) -> None:
        """Note that a body has ended whose attempt is over, or about to be."""
        if error is not None and failure_of(error).is_a(AttemptOver, asyncio.CancelledError):
            return
        self._late += (error,)
        if not self._driver.decider.is_current(self.node_id, self.attempt):
            self.report_late()  # else that is done with whatever the attempt comes to

    # Time

    def _watch_time(self) -> None:
        """Count from here: the body begins. What it waited for before does not count."""
        if self._plan.policy.timeout is not None and not self._is_over:
            self._timer = self._later(self._plan.policy.timeout.total_seconds(), self._run_out_of_time)

    def _stop_time(self) -> None:
        if self._timer is not None and not self._is_overdue:
            self._left_seconds = max(0.0, self._timer.when() - asyncio.get_running_loop().time())
            self._timer.cancel()
            self._timer = None

    def _go_on_with_time(self) -> None:
        if self._left_seconds is not None and not self._is_over:
            self._timer = self._later(self._left_seconds, self._run_out_of_time)
            self._left_seconds = None

    def _run_out_of_time(self) -> None:
        """Tell the body to stop. One that does not within the grace period is left behind."""
        if self.task is None or self._is_told_to_stop:
            return
        self._is_overdue = True
        self.task.cancel()
        self._timer = self._later(self._driver.projection.run.settings.grace_seconds, self._leave_behind)

    def _leave_behind(self) -> None:
        if not self._is_over and self.stop_reason is None:
            self._reports.overdue(self, self._record_of(AttemptTimeout()), self._elapsed_ms())

    def _later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, work)

    @property
    def elapsed_seconds(self) -> float:
        """How long ago the attempt began to run, or to run again."""
        return self._driver.machinery.clock.monotonic() - self.began

    def _elapsed_ms(self) -> int:
        return int(self.elapsed_seconds * 1_000)

    def _constants(self) -> dict[str, Encoded]:
        """Return the constants of the graph as the values that they stand for."""
        constants = self._plan.constants
        if not constants:
            return {}
        annotations = {handle.name: handle.annotation for handle in (*self._type.inputs, *self._type.properties)}
        encode = self._driver.machinery.values.codecs.encode
        where = f"node {self.node_id!r}"
        mapped = () if self._plan.flow is None else self._plan.flow.mapped

        def value_of(handle: str, constant: Any) -> Any:
            annotation = annotations.get(handle, Any)
            if handle in mapped:
                return [from_constant(item, annotation) for item in constant]
            return from_constant(constant, annotation)

        return {
            handle: msgspec.Raw(encode(value_of(handle, constant), where=where))
            for handle, constant in constants.items()
        }

    def _info(self, restored: Encoded | None) -> AttemptInfo:
        run = self._driver.projection.run
        node = self._driver.projection.node(self.node_id)
        return AttemptInfo(
            run_id=run.run_id,
            node_id=self.node_id,
            attempt=self.attempt,
            idempotency_key=idempotency_key(run.run_id, node),
            restored=restored,
            from_outside=self._plan.from_outside,
        )

    # What the body has recorded, and waits for

    async def checkpoint(self, state: Any, *, suspends: bool = False) -> None:
        consumed = {handle: feed.used for handle, feed in self._feeds.items()}
        emitted = 0
        if self._emitting is not None:
            emitted = self._emitting.position
            await self._emitting.settle()
        encoded, blobs = await self.packed(state, f"the checkpoint of node {self.node_id!r}")
        saved = NodeCheckpointed(
            node_id=self.node_id,
            attempt=self.attempt,
            state=encoded,
            emitted=emitted,
            consumed=consumed,
            suspends=suspends,
        )
        await self._reports.checkpoint(self, saved, blobs)

    async def record_step(self, call: StepCall, result: Any) -> None:
        encoded, blobs = await self.packed(result, f"step {call.name!r} of node {self.node_id!r}")
        if self.has_left_behind(call):
            self._driver.require_current(self)
        else:
            await self._reports.step_completed(self, storable(call.name), call.occurrence, encoded, blobs)

    async def outcome(self, wanted: WaitFor, value: Any = NOT_GIVEN, *, scope: str = "") -> Came:
        encoded: Encoded | None = None
        blobs: tuple[BlobUse, ...] = ()
        if wanted.kind is WaitKind.SUSPEND:
            name = storable(scope + wanted.name)
            is_new = self._driver.projection.waits.named(self.node_id, name, wanted.occurrence) is None
            if value is not NOT_GIVEN and is_new:
                await self.checkpoint(value, suspends=True)
        elif value is not NOT_GIVEN:
            encoded, blobs = await self.packed(value, f"what goes with a wait of node {self.node_id!r}")
        came = await self._driver.waiting.outcome(self, wanted, scope, encoded, blobs)
        if came.value is None:
            return came
        whole = await self.patiently(functools.partial(self._driver.machinery.values.inlined, came.value))
        return msgspec.structs.replace(came, value=whole)


class ClosingActor(Actor):
    """Goes on with a node whose stream was whole when its engine was lost: all that is missing is the one value of it."""

    runs_code = False

    def prepare(self) -> None:
        """No body will run."""

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        return await self._finish_stream(self._driver.streams.outbox(self.node_id))
