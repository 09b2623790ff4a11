"""A store whose n-th operation fails, whichever it is: once, or for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.base import Store
from perdure.testing.proxy import StoreProxy

UNCOUNTED = frozenset(("wait_for_news", "close"))
"""What is no operation on the database, or has no answer that could fail to come."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What fails, how, and for how long. Operations are counted from 1; `seconds` are the loop's, and 0 means once."""

    at: int
    error: type[StoreError] = StoreUnavailable
    is_executed: bool = False
    """The operation is done, and then the answer is lost."""
    seconds: float = 0.0


class FailingStore(StoreProxy):
    """Fails as its fault says, and from then on works."""

    def __init__(self, inner: Store, fault: Fault) -> None:
        super().__init__(inner)
        self.fault = fault
        self.operations: list[str] = []
        self.failures = 0
        self._heals_at: float | None = None

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name in UNCOUNTED:
            return await call()
        self.operations.append(name)
        if not self._fails():
            return await call()
        self.failures += 1
        if self.fault.is_executed:
            await call()
        raise self.fault.error(f"The test makes {name} fail.")

    def _fails(self) -> bool:
        now = asyncio.get_running_loop().time()
        if len(self.operations) == self.fault.at:
            self._heals_at = now + self.fault.seconds
            return True
        return self._heals_at is not None and now < self._heals_at
