"""What a body may ask of the engine while it runs: `Context` for async bodies, `SyncContext` for all others.

Both offer the same. What has to wait is awaited on a `Context` and blocks on a `SyncContext`. Once the attempt is over,
everything but `log` and `progress` raises `AttemptOver`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from perdure.dispatch.assets import (
    AssetFile,
    Content,
    Description,
    file_name,
    file_of,
    make_asset,
    suffix_of,
    write,
    write_async,
)
from perdure.dispatch.base import BlobName, StepCall, Task
from perdure.dispatch.counting import Counting
from perdure.dispatch.places import Place, ThreadPlace, is_async, without_partial
from perdure.dispatch.secret import Secret
from perdure.dispatch.waiting import AsyncWaits, SyncWaits
from perdure.graph.assets import Asset
from perdure.graph.surroundings import models_around
from perdure.ids import new_id

A = TypeVar("A", bound=Asset)
P = ParamSpec("P")
T = TypeVar("T")


class Context(AsyncWaits):
    """The context of an async body."""

    def __init__(self, task: Task, place: Place, counting: Counting) -> None:
        super().__init__(task, place, counting)
        self._place = place

    async def checkpoint(self, state: Any) -> None:
        """Store a state from which a later attempt can go on: there it is `restored`. Returns when it is stored.

        A later attempt does not come back to steps and waits that came before, and counts those that follow from here.
        """
        await self._place.ask(self._services.checkpoint, state)
        self.begin_counting_anew()

    @overload
    def step(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call the function once for all attempts: what it returned is stored, and later attempts get that instead.

        Steps are told apart by the function's name and by how many calls of it came before, since the last checkpoint if
        there was one, so call them in an order that is the same each time. One that is not async runs in a thread.
        """
        # Counted here and not in the coroutine: the order of the calls is what repeats, not that of the awaits.
        return self._step(self._counting.step(_name_of(function)), function, args, kwargs)

    async def secret(self, name: str) -> Secret:
        """Return a secret by its name. Raises KeyError, with the remedy, if there is none."""
        return Secret(await self._place.ask(self._services.secret, name))

    @overload
    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset: ...

    @overload
    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[A],
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> A: ...

    async def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[Asset] = Asset,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset:
        """Keep a large thing as a file, and return the reference to it that nodes pass on. Durable when this returns.

        It is given as bytes, as the path of a file, as an open file or in chunks. A file from `scratch` is moved, any other
        one is copied. Without a name it is called like the file; without a media type, that is guessed from the name.
        """
        description = Description(kind=kind, name=name, media_type=media_type, meta=meta)
        return await make_asset(content, description, self._services, ask=self._place.ask, call=self._place.call)

    async def scratch(self, name: str) -> Path:
        """Return the path of a file that the body may write, in a folder that ends with the attempt: see `asset`."""
        return await self._place.ask(self._services.scratch) / file_name(name)

    async def open(self, asset: Asset) -> AssetFile:
        """Return an asset as a file for reading, which ends with the attempt. Its content is checked."""
        blob = BlobName(asset.digest, asset.size)
        return AssetFile(await self._place.ask(self._services.local_file, blob, suffix_of(asset)))

    async def _step(
        self, call: StepCall, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        recorded = await self._place.ask(self._services.recorded_step, call)
        if recorded is not None:
            return self._task.decode(recorded, models_around(without_partial(function)))
        result = await self._place.call(function, *args, **kwargs)
        await self._place.ask(self._services.record_step, call, result)
        return result


class SyncContext(SyncWaits):
    """The context of a body that is not async. It may be used from threads that the body starts."""

    def __init__(self, task: Task, place: ThreadPlace, counting: Counting) -> None:
        super().__init__(task, place, counting)
        self._place = place

    def checkpoint(self, state: Any) -> None:
        """Store a state from which a later attempt can go on: there it is `restored`. Returns when it is stored.

        A later attempt does not come back to steps and waits that came before, and counts those that follow from here.
        """
        self._place.wait(self._services.checkpoint, state)
        self.begin_counting_anew()

    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def step(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def step(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function once for all attempts: what it returned is stored, and later attempts get that instead.

        Steps are told apart by the function's name and by how many calls of it came before, since the last checkpoint if
        there was one, so call them in an order that is the same each time.
        """
        call = self._counting.step(_name_of(function))
        recorded = self._place.wait(self._services.recorded_step, call)
        if recorded is not None:
            return self._task.decode(recorded, models_around(without_partial(function)))
        result = self._place.call_here(function, *args, **kwargs)
        self._place.wait(self._services.record_step, call, result)
        return result

    def secret(self, name: str) -> Secret:
        """Return a secret by its name. Raises KeyError, with the remedy, if there is none."""
        return Secret(self._place.wait(self._services.secret, name))

    @overload
    def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset: ...

    @overload
    def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[A],
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> A: ...

    def asset(
        self,
        content: Content | AsyncIterable[bytes],
        *,
        kind: type[Asset] = Asset,
        name: str | None = None,
        media_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Asset:
        """Keep a large thing as a file, and return the reference to it that nodes pass on. Durable when this returns.

        It is given as bytes, as the path of a file, as an open file or in chunks. A file from `scratch` is moved, any other
        one is copied. Without a name it is called like the file; without a media type, that is guessed from the name.
        """
        description = Description(kind=kind, name=name, media_type=media_type, meta=meta)
        if (path := file_of(content)) is None:
            path = self._place.wait(self._services.scratch) / new_id()
            self._place.call_here(write_async if isinstance(content, AsyncIterable) else write, path, content)
        return description.of(self._place.wait(self._services.keep_file, path), content)

    def scratch(self, name: str) -> Path:
        """Return the path of a file that the body may write, in a folder that ends with the attempt: see `asset`."""
        return self._place.wait(self._services.scratch) / file_name(name)

    def open(self, asset: Asset) -> AssetFile:
        """Return an asset as a file for reading, which ends with the attempt. Its content is checked."""
        blob = BlobName(asset.digest, asset.size)
        return AssetFile(self._place.wait(self._services.local_file, blob, suffix_of(asset)))


class Contexts:
    """The contexts of one attempt: parts of a class node may be of either colour, and count their steps together."""

    def __init__(self, task: Task, place: Place) -> None:
        self._task = task
        self._place = place
        self._counting = Counting()

    def for_part(self, function: Callable[..., Any]) -> Context | SyncContext:
        """Return the context for a part of the body: one that it can use as it is, async or not."""
        return self.of_colour(is_async=is_async(function))

    def of_colour(self, *, is_async: bool) -> Context | SyncContext:
        """Return the context for what runs on the loop of the place, or for what does not."""
        if is_async:
            return Context(self._task, self._place, self._counting)
        return SyncContext(self._task, self._place.beside(), self._counting)


def _name_of(function: Callable[..., Any]) -> str:
    """Return what a step is called."""
    named = without_partial(function)
    return getattr(named, "__qualname__", None) or type(named).__qualname__
