"""A store in front of a store: every call passes one door, where a test can stand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from perdure.store.base import Store
from perdure.testing.loop import VirtualLoop


class StoreProxy:
    """Passes every call on to `inner`. Subclasses decide in `passing` what becomes of it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url

    @property
    def as_store(self) -> Store:
        """This proxy for those who want a `Store`: it has whatever methods `inner` has."""
        return cast("Store", self)

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        """Make the call, which is of the method `name` with these positional arguments, or do something else."""
        return await call()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def passed(*args: Any, **kwargs: Any) -> Any:
            return await self.passing(name, lambda: method(*args, **kwargs), *args)

        # The next access finds it without asking here again.
        self.__dict__[name] = passed
        return passed


class OutsideStore(StoreProxy):
    """A store with a server of its own. While that works, the time of a virtual loop stands still, and its answers come when
    nothing else is left to do: how fast it is makes no difference."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return await call()
        with loop.outside():
            try:
                answer = await call()
            except Exception:
                await loop.idle()
                raise
            await loop.idle()
            return answer


def innermost(store: Store | StoreProxy) -> Any:
    """Return the store behind all proxies."""
    while isinstance(store, StoreProxy):
        store = store.inner
    return store
