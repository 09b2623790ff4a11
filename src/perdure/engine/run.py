"""A run as its user holds it: ask what it does, wait for it, tell it something. Works whichever engine drives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.driver import NotOurs
from perdure.engine.hub import Flash
from perdure.engine.inputs import check_item
from perdure.engine.resolution import Resolution, done
from perdure.engine.sending import CLOSE, SEND, Sent
from perdure.errors import (
    CommandIdTaken,
    InputClosed,
    NotInDoubt,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunResting,
    WrongInputs,
)
from perdure.graph.annotations import shaped
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.ids import CommandId, RunId, Seq
from perdure.journal.events import Encoded, Recorded
from perdure.journal.states import ENDED, TERMINAL, NodeState, NodeStatus, RunState, RunStatus
from perdure.store.base import Command, StoredRun

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

R = TypeVar("R")


def _unknown_stream(run: RunState, name: str, known: Mapping[str, Any]) -> WrongInputs:
    there = ", ".join(map(repr, known)) or "none"
    return WrongInputs(run.workflow, [f"there is no input {name!r} that is a stream (there is {there})"])


EVENTS_PER_PAGE = 500
_STUCK = frozenset((RunStatus.QUARANTINED, RunStatus.SUSPENDED, RunStatus.PAUSED))


class Run(Generic[R]):
    """A handle on one run."""

    def __init__(self, engine: Engine, run_id: RunId, annotation: Any = Any) -> None:
        self._engine = engine
        self._annotation = annotation
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    async def load(self) -> StoredRun:
        """Return the run as the store holds it at this moment."""
        stored = await self._engine.store.load_run(self.run_id)
        if stored is None:
            raise RunNotFound(self.run_id)
        return stored

    async def state(self) -> RunState:
        """Return the run's own state at this moment, without its nodes."""
        state = await self._engine.store.load_state(self.run_id)
        if state is None:
            raise RunNotFound(self.run_id)
        return state

    async def status(self) -> RunStatus:
        return (await self.state()).status

    async def result(self) -> R:
        """Wait for the end and return the outputs.

        Raises RunFailed or RunCancelled if that is how it ended, RunResting if it waits for someone to act.
        """
        run = await self.wait()
        match run.status:
            case RunStatus.COMPLETED:
                return cast("R", await self._outputs(run))
            case RunStatus.FAILED:
                assert run.error is not None
                raise RunFailed(run.run_id, run.failed_node, run.error.type, run.error.message, run.error.traceback)
            case RunStatus.CANCELLED:
                raise RunCancelled(run.run_id, run.reason)
            case _:
                raise RunResting(run.run_id, run.status.value, run.reason)

    async def wait(self) -> RunState:
        """Return the run's state once it has ended, or rests until someone acts.

        Raises RunNotReadable if the run was left here because of values that this process cannot read.
        """
        driver = self._engine.driver_of(self.run_id)
        if driver is not None:
            try:
                run = await asyncio.shield(driver.rested)
                if run.status in TERMINAL or run.status in _STUCK:
                    return run
            except NotOurs:
                pass  # another engine has it: watch it from outside
        is_asked_for = False
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                run = await self.state()
                if run.status in TERMINAL or (run.status in _STUCK and not (await self.load()).commands):
                    return run
                if (problem := await self._engine.not_readable(self.run_id)) is not None:
                    raise problem
                if not is_asked_for:  # nobody may be driving it, or nobody any more
                    await self._engine.commanded(self.run_id)
                    is_asked_for = True
                await self._engine.news(changed)

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[Recorded]:
        """Yield the run's events in order, each once; with `follow`, until the run has ended."""
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                run = await self.state()
                while page := await self._engine.store.load_events(
                    self.run_id, after=Seq(after), limit=EVENTS_PER_PAGE
                ):
                    for entry in page:
                        yield entry
                    after = page[-1].seq
                if not follow or (run.status in TERMINAL and after >= run.last_seq):
                    return
                await self._engine.news(changed)

    def flashes(self) -> AsyncIterator[Flash]:
        """Yield what bodies show with `ctx.progress` and `ctx.publish`, live; only what runs in this process."""
        return self._engine.hub.flashes(self.run_id)

    async def cancel(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Ask the run to stop. Durable when this returns; the run is cancelled when its bodies have stopped.

        A run that has ended already stays as it is.
        """
        await self._command("cancel", {"reason": storable(reason)}, command_id)

    async def send(self, name: str, item: Any, *, item_id: str | None = None) -> None:
        """Give an item to an input that is a stream. Durable when this returns; items arrive in the order of sending.

        The same `item_id` twice has no effect. Raises WrongInputs if there is no such input or the item does not fit, and
        InputClosed if no more items are taken.
        """
        await self._require_open(name, item)
        encoded, blobs = await self._engine.values.pack(item, where=f"an item for input {name!r}")
        sent = Sent(input=name, item=bytes(encoded).decode(), blobs=blobs)
        command_id = None if item_id is None else f"{SEND}/{name}/{item_id}"
        await self._command(SEND, msgspec.to_builtins(sent), command_id)

    async def close(self, name: str) -> None:
        """Say that no more items come for an input that is a stream. To do it again has no effect."""
        run = await self.state()
        known = await self._engine.stream_inputs(run)
        if name not in known:
            raise _unknown_stream(run, name, known)
        await self._command(CLOSE, msgspec.to_builtins(Sent(input=name)), f"{CLOSE}/{name}")

    async def _require_open(self, name: str, item: Any) -> None:
        stored = await self.load()
        known = await self._engine.stream_inputs(stored.run)
        if name not in known:
            raise _unknown_stream(stored.run, name, known)
        if (problem := check_item(item, known[name])) is not None:
            raise WrongInputs(stored.run.workflow, [f"{name!r}: {problem}"])
        node = next((node for node in stored.nodes if node.node_id == name), None)
        is_closing = any(command.kind == CLOSE and command.payload.get("input") == name for command in stored.commands)
        is_given = name in stored.run.inputs
        is_over = node is not None and (node.status in ENDED or (node.stream is not None and node.stream.is_closed))
        if stored.run.status in TERMINAL or is_closing or is_given or is_over:
            raise InputClosed(self.run_id, name)

    async def resume(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Let a run that rests go on: one that was quarantined, or whose doubt is resolved."""
        await self._command("resume", {"reason": storable(reason)}, command_id)

    async def resolve(
        self,
        node_id: str,
        resolution: Literal["done", "retry", "fail"],
        *,
        output: Any = None,
        by: str = "",
        command_id: str | None = None,
    ) -> None:
        """Say what became of an attempt in doubt: it is done (with this output), to be tried again, or failed.

        The output is what the body would have returned, with `Outputs` for several handles. Raises NotInDoubt if there is
        nothing to say about the node, or if it was said already; ValueNotStorable and TruthUnclear as for a body.
        """
        stored = await self.load()
        node = self._in_doubt(stored, node_id)
        if resolution == "done":
            outputs, blobs = await self._engine.conclude(stored.run, node.node_id, output)
            wish = done(node, outputs, blobs, by=by)
        else:
            wish = Resolution(node_id=node.node_id, resolution=resolution, attempt=node.attempt, by=by)
        # One word for each attempt: of two who speak at once, the second learns that it was too late.
        only_one = f"resolve/{self.run_id}/{node_id}/{node.attempt}"
        try:
            await self._command("resolve", msgspec.to_builtins(wish), command_id or only_one)
        except CommandIdTaken:
            if command_id is not None:
                raise
            raise NotInDoubt(self.run_id, node_id, "somebody has just resolved it otherwise", ()) from None

    def _in_doubt(self, stored: StoredRun, node_id: str) -> NodeState:
        doubtful = [node.node_id for node in stored.nodes if node.status is NodeStatus.IN_DOUBT]
        node = next((node for node in stored.nodes if node.node_id == node_id), None)
        if node is None:
            raise NotInDoubt(self.run_id, node_id, "nothing has happened to a node of this name", doubtful)
        if node.status is not NodeStatus.IN_DOUBT:
            raise NotInDoubt(self.run_id, node_id, f"it is {node.status.value}", doubtful)
        for command in stored.commands:
            if command.kind == "resolve" and command.payload.get("node_id") == node_id:
                said = command.payload.get("resolution")
                raise NotInDoubt(self.run_id, node_id, f"it was resolved as {said!r} before", doubtful)
        return node

    async def _command(self, kind: str, payload: dict[str, Any], command_id: str | None) -> None:
        """Tell the run something, durably, unless it has ended."""
        if (await self.state()).status in TERMINAL:
            return
        command = Command(
            command_id=CommandId(command_id or self._engine.chance.new_id()),
            run_id=self.run_id,
            kind=kind,
            payload=payload,
            created_at=self._engine.clock.now_micros(),
        )
        await self._engine.store.add_command(command)
        await self._engine.commanded(self.run_id)

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
