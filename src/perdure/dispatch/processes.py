"""Child processes that run bodies: for code that holds the interpreter, or that may take the process down with it.

Children are interpreters of their own, started when they are needed and used again and again; the engine is never forked.
Each has a line to the engine on which frames travel (`frames`), and runs one body at a time (`child`). A body that is
cancelled is interrupted, and its process killed if it has not ended after a grace period; either way that child is not
used again. Everything a child writes to stdout or stderr goes to the engine's stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, assert_never

import msgspec

from perdure.dispatch.base import Judged, Services, Task
from perdure.dispatch.children import HUNG_UP_SECONDS, KILLED_SECONDS, Child, NotStarted, current_path, how_it_ended
from perdure.dispatch.failure import failure_of, raised
from perdure.dispatch.frames import (
    MAX_FRAME_BYTES,
    Ask,
    AwaitOutcome,
    Cancel,
    Execute,
    Failed,
    FindFile,
    FindScratch,
    FindSecret,
    FindStep,
    FromChild,
    KeepFile,
    Line,
    LineBroken,
    Logged,
    Progressed,
    Published,
    Ready,
    Refusal,
    Reply,
    Returned,
    SaveCheckpoint,
    SaveStep,
    Started,
    Value,
)
from perdure.dispatch.imports import check_importable
from perdure.errors import BodyCrashed, EngineStopped
from perdure.graph.handles import Outputs
from perdure.journal.events import Encoded

CLOSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class ProcessPool:
    """Runs bodies in at most `size` child processes. Belongs to the running loop."""

    def __init__(
        self, size: int, *, child: str, grace_seconds: float = 5.0, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        """`child` names the module whose `main` a child runs (see `Birth`)."""
        self._module = child
        self._grace_seconds = grace_seconds
        self._max_frame_bytes = max_frame_bytes
        self._slots = asyncio.Semaphore(size)
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._is_closed = False

    async def execute(self, task: Task) -> Any:
        """Run the body in a child: see `Dispatch.execute`. A child that dies raises BodyCrashed."""
        check_importable(task.node_type)
        async with self._slots:
            while True:
                child = await self._take_child(task)
                try:
                    outcome = await self._converse(child, task)
                finally:
                    await self._give_back(child)
                if self._is_closed and isinstance(outcome, _Death):
                    raise EngineStopped("The engine has stopped before this body has ended.")
                # One that died while it was idle, killed for want of memory perhaps, says nothing about this body.
                if not (isinstance(outcome, _Death) and child.is_seasoned and not outcome.has_started):
                    return _result(outcome, task)

    async def close(self) -> None:
        """End every child; one that does not end by itself is killed."""
        self._is_closed = True
        async with asyncio.TaskGroup() as closing:
            for child in tuple(self._children):
                closing.create_task(child.close(CLOSE_SECONDS if child in self._idle else 0.0))
        self._children.clear()
        self._idle.clear()

    async def _take_child(self, task: Task) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            await self._let_go(child)
        if self._is_closed:
            raise EngineStopped("The engine has stopped, and starts no more bodies.")
        child = Child(self._module, self._max_frame_bytes)
        self._children.add(child)
        try:
            await child.start()
        except BaseException as error:  # also when cancelled: no child is left that nobody knows
            await self._let_go(child)
            if isinstance(error, NotStarted):
                raise _crash(task, None, f"could not be started: it {error}") from error
            raise
        return child

    async def _give_back(self, child: Child) -> None:
        if child.is_alive and child.is_fit and not self._is_closed:
            child.is_seasoned = True
            self._idle.append(child)
        else:
            await self._let_go(child)

    async def _let_go(self, child: Child) -> None:
        await child.close(0.0)
        self._children.discard(child)

    async def _converse(self, child: Child, task: Task) -> _Outcome:
        """Have the body run, and answer it meanwhile."""
        child.line.send(*_order(task))
        child.is_fit = False
        try:
            async with asyncio.TaskGroup() as answers:
                outcome = await self._listen(child, task, answers)
        except asyncio.CancelledError:
            await self._stop(child, task)
            raise
        child.is_fit = not isinstance(outcome, _Death)
        return outcome

    async def _listen(self, child: Child, task: Task, answers: asyncio.TaskGroup) -> _Outcome:
        await child.line.drain()
        has_started = False
        while True:
            try:
                frame = await child.line.receive_from_child()
            except LineBroken as problem:
                return await self._death(child, has_started, str(problem))
            if frame is None:
                return await self._death(child, has_started, None)
            message, values = frame
            match message:
                case Returned() | Failed():
                    return _Reply(message, values)
                case Ask():
                    answers.create_task(_answer(child.line, task, message, values))
                case Started():
                    has_started = True
                    if task.on_begin is not None:
                        task.on_begin()
                case _:
                    _pass_on(task, message, values)

    async def _death(self, child: Child, has_started: bool, problem: str | None) -> _Death:
        """Return how a child has died that has hung up. One that lives on without its line is killed."""
        code = await child.exit_within(HUNG_UP_SECONDS)
        if code is None:
            child.kill()
            await child.exit_within(KILLED_SECONDS)
            return _Death(None, has_started, problem or "closed its line to the engine")
        return _Death(code, has_started, problem)

    async def _stop(self, child: Child, task: Task) -> None:
        """Tell the body that its attempt is over, and wait for its end. Past the grace period its process is killed."""
        child.line.send(Cancel())
        with suppress(TimeoutError, LineBroken):
            async with asyncio.timeout(self._grace_seconds):
                while (frame := await child.line.receive_from_child()) is not None:
                    message, values = frame
                    if isinstance(message, Returned | Failed):
                        if task.on_late is not None:
                            task.on_late(raised(message.failure) if isinstance(message, Failed) else None)
                        return
                    # What it asks is refused in the child itself, which knows that the attempt is over.
                    if not isinstance(message, Ask):
                        _pass_on(task, message, values)


class _Reply(msgspec.Struct, frozen=True):
    message: Returned | Failed
    values: list[bytes]


class _Death(msgspec.Struct, frozen=True):
    exit_code: int | None
    has_started: bool
    problem: str | None


_Outcome = _Reply | _Death


def _order(task: Task) -> tuple[Execute, list[Value]]:
    """Return the frame that has a body run."""
    restored = task.info.restored
    values = [*task.arguments.values(), *task.properties.values(), *([] if restored is None else [restored])]
    source = task.node_type.source
    file = None if source.file is None else os.path.abspath(source.file)
    order = Execute(
        node_type=task.node_type.name,
        source=msgspec.structs.replace(source, file=file),
        path=current_path(),
        info=msgspec.structs.replace(task.info, restored=None),
        arguments=tuple(task.arguments),
        properties=tuple(task.properties),
        has_restored=restored is not None,
        looks=task.looks,
    )
    return order, [memoryview(value) for value in values]


def _pass_on(task: Task, message: FromChild, values: list[bytes]) -> None:
    """Tell the services what the body says without asking."""
    try:
        _tell(task.services, message, values)
    except Exception:  # nobody in the child waits for this: it must not end the conversation
        _log.warning("message_lost", exc_info=True, extra={"node_id": task.info.node_id})


def _tell(services: Services, message: FromChild, values: list[bytes]) -> None:
    match message:
        case Logged(level=level, message=text, fields=fields):
            services.log(level, text, fields)
        case Progressed(done=done, total=total):
            services.progress(done, total)
        case Published():
            services.publish(Encoded(values[0]))
        case Ready() | Started() | Ask() | Returned() | Failed():
            return
        case _:
            assert_never(message)


async def _answer(line: Line, task: Task, message: Ask, values: list[bytes]) -> None:
    """Answer a question of the body."""
    try:
        found = await _found(task, message, values)
        line.send(Reply(ask=message.ask), found)
    except Exception as error:  # whatever the services raise is for the body to know
        failure = msgspec.structs.replace(failure_of(error), traceback="")
        if isinstance(error, KeyError) and error.args:
            failure = msgspec.structs.replace(failure, message=str(error.args[0]))
        line.send(Refusal(ask=message.ask, failure=failure))
    await line.drain()


async def _found(task: Task, message: Ask, values: list[bytes]) -> list[Value]:
    services = task.services
    match message.question:
        case SaveCheckpoint():
            await services.checkpoint(Encoded(values[0]))
            return []
        case FindStep(call=call):
            recorded = await services.recorded_step(call)
            return [] if recorded is None else [memoryview(recorded)]
        case SaveStep(call=call):
            await services.record_step(call, Encoded(values[0]))
            return []
        case AwaitOutcome(wanted=wanted):
            came = await services.outcome(wanted, *map(Encoded, values))
            told = msgspec.json.encode(msgspec.structs.replace(came, value=None))
            return [told] if came.value is None else [told, memoryview(came.value)]
        case FindSecret(name=name):
            return [(await services.secret(name)).encode("utf-8", "surrogatepass")]
        case FindScratch():
            return [os.fsencode(await services.scratch())]
        case KeepFile():
            return [msgspec.json.encode(await services.keep_file(Path(os.fsdecode(values[0]))))]
        case FindFile(blob=blob, suffix=suffix):
            return [os.fsencode(await services.local_file(blob, suffix))]


def _result(outcome: _Outcome, task: Task) -> Any:
    if isinstance(outcome, _Death):
        raise _crash(task, outcome.exit_code, outcome.problem or how_it_ended(outcome.exit_code))
    if isinstance(outcome.message, Failed):
        raise raised(outcome.message.failure)
    encoded = [Encoded(value) for value in outcome.values]
    handles = outcome.message.handles
    result = encoded[0] if handles is None else Outputs(**dict(zip(handles, encoded, strict=True)))
    return Judged(result, outcome.message.truths) if task.looks else result


def _crash(task: Task, exit_code: int | None, how: str) -> BodyCrashed:
    killed_by = -exit_code if exit_code is not None and exit_code < 0 else None
    is_out_of_memory = killed_by == signal.SIGKILL
    if is_out_of_memory:
        how += ", as happens when the machine runs out of memory"
    return BodyCrashed(
        task.info.node_id,
        how,
        exit_code=None if killed_by else exit_code,
        signal=killed_by,
        error_class="resource" if is_out_of_memory else "unknown",
    )
