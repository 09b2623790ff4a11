"""What can be said to a run, by whomever: it is kept as a command until whoever drives the run takes it up.

Durable when the call returns, and applied once. Whatever is wrong is said at once, and nothing is kept then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.attempts.concluding import conclude_for
from perdure.engine.attempts.resolution import Resolution, done
from perdure.engine.driving.interactions import Interaction, checked_answer, interaction_of
from perdure.engine.driving.waiting import (
    DEADLINE,
    Answer,
    Signal,
    answer_command,
    answer_in_time,
    is_late,
    signal_command_id,
)
from perdure.engine.stored.absence import look_for
from perdure.errors import (
    AnsweredAlready,
    AnswerRefused,
    CommandIdTaken,
    NotInDoubt,
    RunEnded,
    RunNotFound,
    WaitNotFound,
)
from perdure.graph.model import Graph
from perdure.graph.questions import text
from perdure.ids import ROOT_BRANCH, CommandId, RunId
from perdure.journal.states import (
    TERMINAL,
    NodeState,
    NodeStatus,
    RunState,
    RunStatus,
    WaitKind,
    WaitState,
    WaitStatus,
)
from perdure.store.shapes import Command, OpenWait, StoredRun

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

MANY_QUESTIONS = 1_000
"""How many questions of one run are shown at most."""


class Told:
    """The side of a run that listens."""

    def __init__(self, engine: Engine, run_id: RunId) -> None:
        self._engine = engine
        self.run_id = run_id

    async def load(self) -> StoredRun:
        """Return the run as the store holds it at this moment."""
        store = self._engine.store
        return await look_for(store, self.run_id, lambda: store.load_run(self.run_id))

    async def state(self) -> RunState:
        """Return the run's own state at this moment, without its nodes."""
        store = self._engine.store
        return await look_for(store, self.run_id, lambda: store.load_state(self.run_id))

    async def graph(self) -> Graph:
        """Return the graph that the run follows."""
        return await self._engine.graph_of(await self.state())

    async def cancel(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Ask the run to stop. Durable when this returns; the run is cancelled when its bodies have stopped.

        A run that has ended already stays as it is.
        """
        await self._command("cancel", {"reason": storable(reason)}, command_id)

    async def pause(
        self, reason: str = "", *, grace: float | timedelta | None = None, command_id: str | None = None
    ) -> None:
        """Ask the run to pause: no body begins any more, and those that run may end within the grace period; what they come to
        counts. With `grace=0` they are stopped at once, and run again when the run is resumed.

        A run that waits or has ended stays as it is, apart from not going on by itself.
        """
        seconds = grace.total_seconds() if isinstance(grace, timedelta) else grace
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise ValueError(f"a grace period cannot be {grace!r}")
        await self._command("pause", {"reason": storable(reason), "grace_seconds": seconds}, command_id)

    @overload
    async def resume(self, *, reason: str = "", command_id: str | None = None) -> None: ...

    @overload
    async def resume(self, node: str, value: Any = None, *, by: str = "", command_id: str | None = None) -> None: ...

    async def resume(
        self,
        node: str | None = None,
        value: Any = None,
        *,
        by: str = "",
        reason: str = "",
        command_id: str | None = None,
    ) -> None:
        """Let a run that rests go on: one that was paused or quarantined, or whose doubt is resolved.

        With a node, let that one go on from `ctx.suspend`, which returns the value. Raises WaitNotFound if it is not suspended
        so, and AnsweredAlready if it was told before.
        """
        if node is None:
            await self._command("resume", {"reason": storable(reason)}, command_id)
            return
        stored = await self.load()
        suspended = [wait for wait in stored.waits if wait.node_id == node and wait.kind is WaitKind.SUSPEND]
        if not suspended:
            there = [wait.node_id for wait in stored.waits if wait.kind is WaitKind.SUSPEND]
            raise WaitNotFound(self.run_id, node, open_ids=there)
        await self._settle(stored.run.status, suspended[-1], value, by=by, answer_id=command_id)

    # Questions and signals

    async def questions(self) -> Sequence[Interaction]:
        """Return what the run asks people and nobody has answered, and the nodes that wait to be told to go on, oldest first."""
        await self.state()
        found = await self._engine.store.list_waits(run_id=self.run_id, questions_only=True, limit=MANY_QUESTIONS)
        return [await interaction_of(wait, self._engine.values) for wait in found]

    async def answer(self, interaction_id: str, value: Any, *, by: str = "", answer_id: str | None = None) -> None:
        """Answer a question. The first answer counts; the same `answer_id` again has no effect.

        Raises AnswerRefused if it is not what was asked for, which leaves the question open; AnsweredAlready if there is an
        answer, or its deadline is over; WaitNotFound if the run has no such question.
        """
        asked = await self._question(interaction_id)
        wait = asked.wait
        if wait.kind is WaitKind.SUSPEND:
            raise AnswerRefused(
                self.run_id, interaction_id, [f"it is no question: use run.resume({wait.node_id!r}, value)"]
            )
        plain, problems = checked_answer(wait, value)
        if problems:
            raise AnswerRefused(self.run_id, interaction_id, problems)
        await self._settle(asked.run_status, wait, plain, by=by, answer_id=answer_id)

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002 -- as people say it
        """Send a signal. A node that waits for one of this name gets it; if none does, it is kept until one does, also if the run
        ends meanwhile and goes on later.

        The same `id` twice has no effect. Raises RunEnded if the run has ended before it could hear the signal: nothing comes of
        it then. One with an `id` that comes in the very moment in which the run ends may be kept.
        """
        if not text(name, "the name of a signal"):
            raise ValueError("a signal needs a name")
        signal_id = id or self._engine.chance.new_id()
        command_id = signal_command_id(signal_id)
        status = (await self.state()).status
        if status in TERMINAL and not await self._is_told(command_id):
            raise _not_sent(self.run_id, status, name)
        encoded, blobs = await self._engine.values.pack(value, where=f"signal {name!r}")
        signal = Signal(signal_id=storable(signal_id), name=storable(name), value=bytes(encoded).decode(), blobs=blobs)
        is_new = await self._add(self._worded("signal", msgspec.to_builtins(signal), command_id))
        await self._engine.commanded(self.run_id)
        # Under an id that others know, somebody may have been told that it is kept: then it stays, and counts if the run goes on.
        if is_new and id is None:
            status = (await self.state()).status
            if status in TERMINAL and await self._engine.store.withdraw_command(self.run_id, command_id):
                raise _not_sent(self.run_id, status, name)

    async def _question(self, wait_id: str) -> OpenWait:
        found = await self._engine.store.load_wait(wait_id)
        if found is not None and found.run_id == self.run_id:
            return found
        await self.state()
        owner = None if found is None else found.run_id
        there = await self._engine.store.list_waits(run_id=self.run_id, limit=MANY_QUESTIONS)
        raise WaitNotFound(self.run_id, wait_id, owner=owner, open_ids=[other.wait.wait_id for other in there])

    async def _settle(
        self, run_status: RunStatus, wait: WaitState, value: Any, *, by: str, answer_id: str | None
    ) -> None:
        is_open = wait.status is WaitStatus.OPEN and run_status not in TERMINAL
        if is_open and await self._is_over(wait):
            raise AnsweredAlready(self.run_id, wait.wait_id, _NOT_IN_TIME)
        encoded, blobs = await self._engine.values.pack(value, where=f"the answer to {wait.wait_id!r}")
        answer = Answer(
            wait_id=wait.wait_id,
            value=bytes(encoded).decode(),
            by=storable(by),
            answer_id=storable(answer_id or self._engine.chance.new_id()),
            blobs=blobs,
        )
        command = answer_command(self.run_id, answer, at=self._engine.clock.now_micros())
        # Also if it looks answered: if it was by the same answer, nothing is wrong.
        is_told = answer_id is not None and not is_open and await self._is_told(command.command_id)
        try:
            is_there = not await self._add(command) if is_open or is_told else False
        except CommandIdTaken:
            raise AnsweredAlready(self.run_id, wait.wait_id, _how(run_status, wait)) from None
        if not is_open and not is_there:
            raise AnsweredAlready(self.run_id, wait.wait_id, _how(run_status, wait))
        await self._engine.commanded(self.run_id)

    async def _is_over(self, wait: WaitState) -> bool:
        """Whether a question has nothing but its deadline as its answer. If its time is over, and nobody has said so, this does:
        no engine may have been there to see it."""
        at = self._engine.clock.now_micros()
        if not is_late(wait, at):
            return False
        try:
            is_new = await self._add(answer_command(self.run_id, answer_in_time(wait), at=at))
        except CommandIdTaken:
            return False  # somebody was faster, in time
        if is_new:
            await self._engine.commanded(self.run_id)
        return True

    async def _is_told(self, command_id: CommandId) -> bool:
        return await self._engine.store.load_command(self.run_id, command_id) is not None

    # Doubt

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
            plan = (await self._engine.prepared(stored.run)).plan  # it needs none of the run's code
            outputs, blobs = await conclude_for(output, node.node_id, plan, self._engine.values)
            wish = done(node, outputs, blobs, by=by)
        else:
            wish = Resolution(node_id=node.node_id, resolution=resolution, attempt=node.attempt, by=by)
        # One word for each attempt: of two who speak at once, the second learns that it was too late.
        on_branch = f"/{node.branch_id}" if node.branch_id > ROOT_BRANCH else ""  # a run may come back to an attempt
        only_one = f"resolve/{self.run_id}/{node_id}/{node.attempt}{on_branch}"
        try:
            await self._command("resolve", msgspec.to_builtins(wish), command_id or only_one)
        except CommandIdTaken:
            if command_id is not None:
                raise
            doubtful = [other for other in _doubtful(await self.load()) if other != node_id]
            raise NotInDoubt(self.run_id, node_id, "somebody has just resolved it otherwise", doubtful) from None

    def _in_doubt(self, stored: StoredRun, node_id: str) -> NodeState:
        said, doubtful = _resolutions(stored), _doubtful(stored)
        node = next((node for node in stored.nodes if node.node_id == node_id), None)
        if node is None:
            raise NotInDoubt(self.run_id, node_id, "nothing has happened to a node of this name", doubtful)
        if node.status is not NodeStatus.IN_DOUBT:
            raise NotInDoubt(self.run_id, node_id, f"it is {node.status.value}", doubtful)
        if node_id in said:
            raise NotInDoubt(self.run_id, node_id, f"it was resolved as {said[node_id]!r} before", doubtful)
        return node

    async def _command(self, kind: str, payload: dict[str, Any], command_id: str | None) -> bool:
        """Tell the run something, durably, unless it has ended. False if it has, or was told so before."""
        if (await self.state()).status in TERMINAL:
            return False
        is_new = await self._add(self._worded(kind, payload, command_id))
        await self._engine.commanded(self.run_id)
        return is_new

    async def _add(self, command: Command, *, before: CommandId | None = None) -> bool:
        """Keep a command for whoever drives the run; False if it was there before. Raises RunArchived if the run has left."""
        store = self._engine.store

        async def add() -> bool | None:
            try:
                return await store.add_command(command, before=before)
            except RunNotFound:
                return None

        return await look_for(store, self.run_id, add)

    def _worded(self, kind: str, payload: dict[str, Any], command_id: str | None) -> Command:
        return Command(
            command_id=CommandId(command_id or self._engine.chance.new_id()),
            run_id=self.run_id,
            kind=kind,
            payload=payload,
            created_at=self._engine.clock.now_micros(),
        )


def _resolutions(stored: StoredRun) -> dict[Any, Any]:
    """Return what somebody has said already, by node, and nobody has taken up yet."""
    told = (command.payload for command in stored.commands if command.kind == "resolve")
    return {said.get("node_id"): said.get("resolution") for said in told}


def _doubtful(stored: StoredRun) -> list[str]:
    """Return the nodes of which somebody still has to say what became of them."""
    said = _resolutions(stored)
    return [node.node_id for node in stored.nodes if node.status is NodeStatus.IN_DOUBT and node.node_id not in said]


_NOT_IN_TIME = "was not answered in time"


def _not_sent(run_id: RunId, status: RunStatus, signal: str) -> RunEnded:
    return RunEnded(run_id, status.value, f"Signal {signal!r} was not sent: nobody would take it.")


def _how(run_status: RunStatus, wait: WaitState) -> str:
    if wait.status is WaitStatus.PAST and wait.settled_at is None:
        return "is asked again, under another id"
    if wait.status is WaitStatus.WITHDRAWN:
        return "is not asked any more: its node has ended"
    if run_status in TERMINAL:
        return f"is not asked any more: the run is {run_status.value}"
    if wait.by == DEADLINE:
        return _NOT_IN_TIME
    return f"was answered by {wait.by!r}" if wait.by else "has been answered"
