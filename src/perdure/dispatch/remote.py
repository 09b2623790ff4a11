"""The engine's services as a body in a child process reaches them: questions and news on the line to the engine."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from perdure.clock import SystemClock
from perdure.dispatch.base import AttemptInfo, BlobName, StepCall
from perdure.dispatch.failure import Failure, name_of_error, plain_fields, raised, storable
from perdure.dispatch.frames import (
    Ask,
    AwaitOutcome,
    FindFile,
    FindScratch,
    FindSecret,
    FindStep,
    FromChild,
    KeepFile,
    Line,
    Logged,
    Progressed,
    Published,
    Question,
    SaveCheckpoint,
    SaveStep,
    Value,
)
from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.errors import AttemptOver
from perdure.journal.events import Encoded


class ValueCodec(Protocol):
    """How a child turns values into what is stored and back. It is given from above, where the codecs are known."""

    def encode(self, value: Any, *, where: str) -> bytes:
        """Return the value with everything inside it. Raises ValueNotStorable."""
        ...

    def decode(self, raw: Encoded, annotation: Any) -> Any: ...


class Questions:
    """The questions of a child that the engine has not answered. Lives on the line's loop."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[list[bytes]]] = {}

    async def ask(self, question: Question, values: tuple[Value, ...] = ()) -> list[bytes]:
        """Return the values of the answer; raises what the engine refused it with."""
        number = next(self._numbers)
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            self._line.send(Ask(ask=number, question=question), values)
            await self._line.drain()
            return await answer
        finally:
            del self._open[number]

    def answer(self, number: int, values: list[bytes]) -> None:
        """Pass an answer on, if someone still waits for it."""
        if (waiting := self._open.get(number)) is not None and not waiting.done():
            waiting.set_result(values)

    def refuse(self, number: int, error: Exception) -> None:
        """Pass a refusal on, if someone still waits for it."""
        if (waiting := self._open.get(number)) is not None and not waiting.done():
            waiting.set_exception(error)


class RemoteServices:
    """The services of one attempt. Called on the line's loop only; silent once the attempt has ended."""

    def __init__(self, info: AttemptInfo, line: Line, questions: Questions, codec: ValueCodec) -> None:
        self._info = info
        self._line = line
        self._questions = questions
        self._codec = codec
        self.is_closed = False

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._say(Logged(level=level, message=storable(str(message)), fields=plain_fields(fields)))

    def progress(self, done: float, total: float | None) -> None:
        finite = [float(number) for number in (done, total) if number is not None and math.isfinite(number)]
        if len(finite) == 1 + (total is not None):
            self._say(Progressed(done=finite[0], total=None if total is None else finite[1]))

    def publish(self, value: Any) -> None:
        self._say(Published(), self._codec.encode(value, where=f"what node {self._info.node_id!r} publishes"))

    def now(self) -> datetime:
        return datetime.fromtimestamp(SystemClock().now_micros() / 1_000_000, UTC)

    async def checkpoint(self, state: Any) -> None:
        encoded = self._codec.encode(state, where=f"the checkpoint of node {self._info.node_id!r}")
        await self._questions.ask(SaveCheckpoint(), (encoded,))

    async def recorded_step(self, call: StepCall) -> Encoded | None:
        found = await self._questions.ask(FindStep(call=call))
        return Encoded(found[0]) if found else None

    async def record_step(self, call: StepCall, result: Any) -> None:
        encoded = self._codec.encode(result, where=f"step {call.name!r} of node {self._info.node_id!r}")
        await self._questions.ask(SaveStep(call=call), (encoded,))

    async def outcome(self, wanted: WaitFor, value: Any = NOT_GIVEN) -> Came:
        given = (
            () if value is NOT_GIVEN else (self._codec.encode(value, where=f"a wait of node {self._info.node_id!r}"),)
        )
        told, *came = await self._questions.ask(AwaitOutcome(wanted=wanted, has_value=bool(given)), given)
        outcome = msgspec.json.decode(told, type=Came)
        return msgspec.structs.replace(outcome, value=Encoded(came[0])) if came else outcome

    async def secret(self, name: str) -> str:
        (value,) = await self._questions.ask(FindSecret(name=name))
        return value.decode("utf-8", "surrogatepass")

    async def scratch(self) -> Path:
        (path,) = await self._questions.ask(FindScratch())
        return Path(os.fsdecode(path))

    async def keep_file(self, path: Path) -> BlobName:
        (blob,) = await self._questions.ask(KeepFile(), (os.fsencode(path),))
        return msgspec.json.decode(blob, type=BlobName)

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        (path,) = await self._questions.ask(FindFile(blob=blob, suffix=suffix))
        return Path(os.fsdecode(path))

    def _say(self, message: FromChild, *values: Value) -> None:
        if not self.is_closed:
            self._line.send(message, values)


def refused(failure: Failure, info: AttemptInfo) -> Exception:
    """Return the error with which a body learns that the engine has refused something."""
    if failure.type_name == name_of_error(AttemptOver):
        return AttemptOver(info.node_id, info.attempt)
    return KeyError(failure.message) if failure.type_name == KeyError.__name__ else raised(failure)
