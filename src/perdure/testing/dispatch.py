"""Bodies on the loop, all of them: for tests whose interleavings must be the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.dispatch.base import Task, slot_kind
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.local import LocalDispatch
from perdure.dispatch.threads import ThreadPool

T = TypeVar("T")


class InlineDispatch(LocalDispatch):
    """Calls blocking bodies on the spot. They must not ask anything of their context that waits."""

    async def _execute(self, task: Task) -> Any:
        assert slot_kind(task.node_type) != "process", "a body in a process is never deterministic"
        return await self._on_loop(task)

    def _call_threads(self) -> ThreadPool:
        return _NoThreads(1, Inlet(asyncio.get_running_loop()))


class _NoThreads(ThreadPool):
    async def run(self, function: Callable[[], T], *, on_abandon: Callable[[], None] | None = None) -> T:
        return function()

    async def run_to_end(self, function: Callable[[], T]) -> T:
        return function()
