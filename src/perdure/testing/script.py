"""What others do about runs, written down beforehand: who answers what, which signals come, what is sent.

Everything is said under an id, so that it counts once however often the script is gone through, by however many processes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec

from perdure.engine.driving.interactions import Interaction
from perdure.engine.runs.run import Run
from perdure.engine.starting.inputs import stream_inputs
from perdure.errors import AnsweredAlready, InputClosed, RunEnded, WaitNotFound
from perdure.graph.declare import NodeType
from perdure.journal.states import TERMINAL, WaitKind

BY = "reply"
"""Who answers, with the number of the reply."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered to questions, or told to nodes that have suspended themselves."""

    number: int
    """Which of the script's replies it is: the last one that fits counts."""
    kind: WaitKind
    question: str = ""
    """The whole prompt, or the id of the node that asks."""
    pattern: str | None = None
    """What is found in the prompt."""
    flags: int = 0
    """How that is looked for, as of a compiled pattern."""
    node_type: str = ""
    values: tuple[Any, ...]
    """In turn: one for each question. The last one is for all that follow."""
    run_id: str | None = None

    def fits(self, question: Interaction, node_type: str) -> bool:
        if question.kind is not self.kind or self.run_id not in (None, question.run_id):
            return False
        if self.pattern is not None:
            return re.search(self.pattern, question.prompt, self.flags) is not None
        if self.node_type:
            return self.node_type == node_type
        return self.question in (question.prompt, question.node_id)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is sent."""

    id: str
    name: str
    value: Any
    run_id: str | None = None


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are sent to an input which is a stream."""

    id: str
    name: str
    items: tuple[Any, ...]
    closes: bool
    run_id: str | None = None


class Script(msgspec.Struct, kw_only=True):
    """All that others say to the runs of a test."""

    replies: list[Reply] = []
    signals: list[Signal] = []
    sendings: list[Sending] = []


class Actor:
    """Whoever goes through a script, for any number of runs."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._said: set[tuple[str, str]] = set()
        """What has been said to which run."""

    async def __call__(self, run: Run[Any]) -> bool:
        """Say to a run what is due. Whether anything was said that had not been said before."""
        state = await run.state()
        if state.status in TERMINAL:
            return False
        sent = [await self._signal(run, signal) for signal in self._script.signals if _is_for(signal, run)]
        given = [await self._send(run, sending) for sending in self._script.sendings if await _takes(sending, run)]
        answered: list[bool] = []
        if self._script.replies:
            answered = [await self._reply(run, question) for question in await run.questions()]
        return any((*sent, *given, *answered))

    async def _signal(self, run: Run[Any], signal: Signal) -> bool:
        if self._was_said(run, signal.id):
            return False
        with suppress(RunEnded):  # it has ended in this very moment
            await run.signal(signal.name, signal.value, id=f"{run.run_id}/{signal.id}")
        return self._say(run, signal.id)

    async def _send(self, run: Run[Any], sending: Sending) -> bool:
        if self._was_said(run, sending.id):
            return False
        with suppress(InputClosed):  # it was closed when this was said before, by a process that has died
            for number, item in enumerate(sending.items):
                await run.send(sending.name, item, item_id=f"{sending.id}/{number}")
            if sending.closes:
                await run.close(sending.name)
        return self._say(run, sending.id)

    async def _reply(self, run: Run[Any], question: Interaction) -> bool:
        types = {node.id: node.type for node in (await run.graph()).nodes}
        node_type = types[question.node_id]
        reply = next((reply for reply in reversed(self._script.replies) if reply.fits(question, node_type)), None)
        if reply is None or self._was_said(run, question.interaction_id):
            return False
        by = f"{BY} {reply.number}"
        value = reply.values[min(await _times_given(run, by), len(reply.values) - 1)]
        with suppress(AnsweredAlready, WaitNotFound):
            if question.kind is WaitKind.SUSPEND:
                await run.resume(question.node_id, value, by=by, command_id=question.interaction_id)
            else:
                await run.answer(question.interaction_id, value, by=by, answer_id=question.interaction_id)
        return self._say(run, question.interaction_id)

    def _was_said(self, run: Run[Any], what: str) -> bool:
        return (run.run_id, what) in self._said

    def _say(self, run: Run[Any], what: str) -> bool:
        self._said.add((run.run_id, what))
        return True


def question_of(asked: str | re.Pattern[str] | NodeType[..., Any]) -> dict[str, Any]:
    """Return how a reply names the questions that it is for."""
    match asked:
        case str():
            return {"question": asked}
        case re.Pattern():
            return {"pattern": asked.pattern, "flags": asked.flags}
        case NodeType():
            return {"node_type": asked.name}


async def _times_given(run: Run[Any], by: str) -> int:
    """How often a reply was given. The store knows: whoever gave it may have been killed."""
    stored = await run.load()
    said = [wait.by for wait in stored.waits] + [command.payload.get("by") for command in stored.commands]
    return said.count(by)


def _is_for(signal: Signal, run: Run[Any]) -> bool:
    return signal.run_id in (None, run.run_id)


async def _takes(sending: Sending, run: Run[Any]) -> bool:
    """Whether items are for a run: it was named, or its workflow has such an input."""
    if sending.run_id is not None:
        return sending.run_id == run.run_id
    return sending.name in stream_inputs(await run.graph())
