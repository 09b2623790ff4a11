"""Assets in the hands of a body: what they are made from, and the files in which they are read.

Content is written to a file in a scratch folder, wherever the body runs, and the engine makes the file durable. A body in a
child process of the same machine does the same as one in a thread.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from perdure.dispatch.base import BlobName
from perdure.graph.assets import DEFAULT_MEDIA_TYPE, Asset
from perdure.ids import new_id

CHUNK_BYTES: Final = 1 << 20
_LONGEST_SUFFIX: Final = 12


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


Content = bytes | bytearray | memoryview | str | os.PathLike[str] | _Readable | Iterable[bytes]
"""What an asset can be made from: bytes, the path of a file, an open file, or chunks."""

Ask = Callable[..., Awaitable[Any]]
"""Calls a service, or a function that blocks, for somebody who waits for it."""


class _Keeper(Protocol):
    """The services of which assets are made."""

    async def scratch(self) -> Path: ...

    async def keep_file(self, path: Path) -> BlobName: ...


class AssetFile(os.PathLike[str]):
    """The content of an asset as a file, for reading only. It is there as long as the attempt, or the engine, that opened it.

    It can be given to whatever takes a path. `for` and `async for` go through its content in chunks.
    """

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"AssetFile({str(self.path)!r})"

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = iter(self)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What an asset will be, besides its content."""

    kind: type[Asset]
    name: str | None = None
    media_type: str | None = None
    meta: Mapping[str, Any] | None = None

    def of(self, blob: BlobName, content: Any) -> Asset:
        """Return the asset. One without a name is called like the file that it was made from."""
        name = _name_of(content) if self.name is None else self.name
        media_type = self.media_type or mimetypes.guess_type(name, strict=False)[0] or DEFAULT_MEDIA_TYPE
        return self.kind(blob.digest, blob.size, media_type=media_type, name=name, meta=self.meta)


async def make_asset(
    content: Content | AsyncIterable[bytes], description: Description, services: _Keeper, *, ask: Ask, call: Ask
) -> Asset:
    """Make content an asset; it is durable when this returns. `ask` calls services, and `call` what blocks."""
    if (path := await call(file_of, content)) is None:
        path = await ask(services.scratch) / new_id()
        if isinstance(content, AsyncIterable):
            await _write_as_it_comes(path, content, call)
        else:
            await call(write, path, content)
    return description.of(await ask(services.keep_file, path), content)


def file_of(content: Any) -> Path | None:
    """Return the file that content is said to be in, if it is; raises what is wrong with it where the body can see it."""
    if not isinstance(content, str | os.PathLike):
        return None
    path = Path(cast("str | os.PathLike[str]", content)).absolute()
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a file, and cannot become an asset.")
    return path


def write(path: Path, content: Any) -> None:
    """Write content to a file, chunk by chunk."""
    with path.open("xb", buffering=0) as file:
        for chunk in _chunks_of(content):
            _write_all(file, chunk)


async def write_async(path: Path, content: AsyncIterable[bytes]) -> None:
    """As `write`, for a body that is not async and runs this on a loop of its own."""
    with path.open("xb", buffering=0) as file:
        async for chunk in content:
            _write_all(file, chunk)


def suffix_of(asset: Asset) -> str:
    """Return the extension by which programs know what the file is; empty if there is none that is harmless."""
    suffix = os.path.splitext(asset.name)[1]
    if not suffix and asset.media_type != DEFAULT_MEDIA_TYPE:
        suffix = mimetypes.guess_extension(asset.media_type, strict=False) or ""
    is_harmless = suffix[1:].isascii() and suffix[1:].isalnum() and len(suffix) <= _LONGEST_SUFFIX
    return suffix if is_harmless else ""


def file_name(name: str) -> str:
    """Return a name if it is one of a file in a folder, and of nothing else. Raises ValueError."""
    if not name or name in (".", "..") or "/" in name or "\x00" in name:
        raise ValueError(f"{name!r} is not the name of a file: give one without slashes, such as 'out.mp4'.")
    return name


def _write_all(file: Any, chunk: Any) -> None:
    """Write a chunk. Raises TypeError if it is none."""
    try:
        remaining = memoryview(chunk)
    except TypeError:
        raise TypeError(f"An asset is made of bytes, and a chunk of it is a {type(chunk).__name__}.") from None
    while remaining:
        remaining = remaining[file.write(remaining) :]


async def _write_as_it_comes(path: Path, content: AsyncIterable[bytes], call: Ask) -> None:
    file = await call(open, path, "xb", 0)
    try:
        async for chunk in content:
            await call(_write_all, file, chunk)
    finally:
        file.close()


def _chunks_of(content: Any) -> Iterable[Any]:
    if isinstance(content, bytes | bytearray | memoryview):
        return (cast("bytes", content),)
    if hasattr(content, "read"):
        return iter(lambda: content.read(CHUNK_BYTES), b"")
    if isinstance(content, Iterable):
        return cast("Iterable[Any]", content)
    raise TypeError(
        f"A {type(content).__name__} cannot become an asset: give bytes, a path, a file opened for reading bytes, or chunks."
    )


def _name_of(content: Any) -> str:
    if isinstance(content, str | os.PathLike):
        return os.path.basename(cast("str", content))
    name: object = getattr(content, "name", "")  # an open file has one, which may be the number of its descriptor
    return os.path.basename(name) if isinstance(name, str) else ""
