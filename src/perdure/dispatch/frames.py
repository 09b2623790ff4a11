"""What the engine and its child processes say to each other, and how it is written on the line between them.

    frame = length of the head (4 bytes, big-endian), head, values
    head  = JSON: the message, and the length of each value

Values are carried as the bytes they are: neither side reads them to pass them on. Nothing that arrives is ever
taken for code or for the name of an error to be raised.

    engine → child   Execute, Reply, Refusal, Cancel, Close
    child → engine   Ready, Started, Logged, Progressed, Published, Ask, Returned, Failed
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.dispatch.base import AttemptInfo, BlobName, StepCall
from perdure.dispatch.failure import Failure
from perdure.dispatch.waits import WaitFor
from perdure.errors import ValueTooLarge
from perdure.graph.source import Source
from perdure.journal.truth import Look

MAX_FRAME_BYTES: Final = 1 << 30
"""The default for what may travel in one frame."""
MAX_HEAD_BYTES: Final = 1 << 24
READ_AHEAD_BYTES: Final = 1 << 20
_JOINED_MAX_BYTES: Final = 1 << 16
_PREFIX_BYTES: Final = 4

Value = bytes | memoryview


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something one side says to the other."""


class Execute(Message, frozen=True, kw_only=True):
    """Run a body. Values: arguments, properties, the restored state if there is one."""

    node_type: str
    source: Source
    path: tuple[str, ...]
    """Where modules are looked for."""
    info: AttemptInfo
    arguments: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    has_restored: bool = False
    looks: tuple[Look, ...] = ()


class Cancel(Message, frozen=True, kw_only=True):
    """The attempt that is executed is over."""


class Close(Message, frozen=True, kw_only=True):
    """Nothing more will come."""


class Reply(Message, frozen=True, kw_only=True):
    """The answer to `Ask`. Values: what was asked for, if there is such a thing."""

    ask: int


class Refusal(Message, frozen=True, kw_only=True):
    """What was asked for cannot be had."""

    ask: int
    failure: Failure


class Ready(Message, frozen=True, kw_only=True):
    """The child can be given work."""


class Started(Message, frozen=True, kw_only=True):
    """The child is about to call code of the user's."""


class Logged(Message, frozen=True, kw_only=True):
    level: str
    message: str
    fields: dict[str, Any] = {}


class Progressed(Message, frozen=True, kw_only=True):
    done: float
    total: float | None = None


class Published(Message, frozen=True, kw_only=True):
    """Values: what was published."""


class SaveCheckpoint(Message, frozen=True, kw_only=True):
    """Values: the state."""


class FindStep(Message, frozen=True, kw_only=True):
    call: StepCall


class SaveStep(Message, frozen=True, kw_only=True):
    """Values: the result."""

    call: StepCall


class AwaitOutcome(Message, frozen=True, kw_only=True):
    """Value: what goes with it, if there is such a thing. The answer's first value is `Came` without its value, which is the
    second one if there is one."""

    wanted: WaitFor
    has_value: bool = False


class FindSecret(Message, frozen=True, kw_only=True):
    name: str


class FindScratch(Message, frozen=True, kw_only=True):
    """The answer is a path."""


class KeepFile(Message, frozen=True, kw_only=True):
    """Values: a path. The answer is digest and size, as JSON."""


class FindFile(Message, frozen=True, kw_only=True):
    """The answer is a path."""

    blob: BlobName
    suffix: str


Question = SaveCheckpoint | FindStep | SaveStep | AwaitOutcome | FindSecret | FindScratch | KeepFile | FindFile


class Ask(Message, frozen=True, kw_only=True):
    """A question, and the number by which it is answered."""

    ask: int
    question: Question


class Returned(Message, frozen=True, kw_only=True):
    """The body has returned. Values: one per handle, or one if it has not named any."""

    handles: tuple[str, ...] | None = None
    truths: dict[str, bool] = {}
    """See `Judged`."""


class Failed(Message, frozen=True, kw_only=True):
    """The body has raised, or could not be called."""

    failure: Failure


ToChild = Execute | Cancel | Close | Reply | Refusal
FromChild = Ready | Started | Logged | Progressed | Published | Ask | Returned | Failed


class _HeadToChild(msgspec.Struct, frozen=True):
    message: ToChild
    sizes: tuple[int, ...] = ()


class _HeadFromChild(msgspec.Struct, frozen=True):
    message: FromChild
    sizes: tuple[int, ...] = ()


_to_child = msgspec.json.Decoder(_HeadToChild)
_from_child = msgspec.json.Decoder(_HeadFromChild)
_encode_head = msgspec.json.Encoder().encode


class LineBroken(Exception):
    """What arrives is not a frame: the other side has died in the middle of one, or something else writes there."""


class Line:
    """One side of the connection between the engine and a child. Each frame is sent whole, in the order of the calls."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_frame_bytes = max_frame_bytes

    def send(self, message: ToChild | FromChild, values: Sequence[Value] = ()) -> None:
        """Have a frame sent. Raises ValueTooLarge, and sends nothing, if it would be larger than allowed."""
        sizes = tuple(map(len, values))
        head = _encode_head({"message": message, "sizes": sizes})
        what = type(message).__name__
        if len(head) > MAX_HEAD_BYTES:
            raise ValueTooLarge(f"The description of {what}", len(head), MAX_HEAD_BYTES)
        if sum(sizes) > self._max_frame_bytes:
            raise ValueTooLarge(f"What {what} holds", sum(sizes), self._max_frame_bytes)
        parts = [len(head).to_bytes(_PREFIX_BYTES, "big"), head, *values]
        if sum(sizes) <= _JOINED_MAX_BYTES:
            self._writer.write(b"".join(parts))
            return
        for part in parts:
            self._writer.write(part)

    async def drain(self) -> None:
        """Wait until the other side has taken most of what was sent. If it is gone, reading will say so."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    @property
    def unsent(self) -> int:
        """How many bytes wait to be taken by the other side."""
        return self._writer.transport.get_write_buffer_size()

    async def receive_from_child(self) -> tuple[FromChild, list[bytes]] | None:
        """Return the next frame; None if the child has hung up. Raises LineBroken."""
        head = await self._receive_head()
        if head is None:
            return None
        try:
            decoded = _from_child.decode(head)
        except msgspec.MsgspecError as error:
            raise LineBroken(f"it wrote something that is no message ({error})") from error
        if len(decoded.sizes) != _values_expected(decoded.message):
            raise LineBroken(f"it sent {len(decoded.sizes)} values with {type(decoded.message).__name__}")
        return decoded.message, await self._receive_values(decoded.sizes)

    async def receive_to_child(self) -> tuple[ToChild, list[bytes]] | None:
        """Return the next frame; None if the engine has hung up."""
        head = await self._receive_head()
        if head is None:
            return None
        decoded = _to_child.decode(head)
        return decoded.message, await self._receive_values(decoded.sizes)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    async def _receive_head(self) -> bytes | None:
        try:
            size = int.from_bytes(await self._reader.readexactly(_PREFIX_BYTES), "big")
            if size > MAX_HEAD_BYTES:
                raise LineBroken(f"it announced a message of {size:,} bytes")
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _receive_values(self, sizes: tuple[int, ...]) -> list[bytes]:
        if sum(sizes) > self._max_frame_bytes or any(size < 0 for size in sizes):
            raise LineBroken(f"it announced values of {sum(sizes):,} bytes")
        try:
            return [await self._reader.readexactly(size) for size in sizes]
        except (asyncio.IncompleteReadError, ConnectionError):
            raise LineBroken("it stopped in the middle of a message") from None


def _values_expected(message: FromChild) -> int:
    match message:
        case Published() | Ask(question=SaveCheckpoint() | SaveStep() | KeepFile()):
            return 1
        case Ask(question=AwaitOutcome(has_value=has_value)):
            return int(has_value)
        case Returned(handles=handles):
            return 1 if handles is None else len(handles)
        case _:
            return 0
