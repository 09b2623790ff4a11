"""Bodies on the loop, all of them: for tests whose interleavings must be the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from perdure.dispatch.base import Task
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.local import LocalDispatch
from perdure.dispatch.threads import ThreadPool

T = TypeVar("T")


class InlineDispatch(LocalDispatch):
    """Calls blocking bodies on the spot. They must not ask anything of their context that waits."""

    async def _in_thread(self, task: Task) -> Any:
        return await self._on_loop(task, cast("asyncio.Task[Any]", asyncio.current_task()))

    async def _in_process(self, task: Task) -> Any:
        raise AssertionError("a body in a process is never deterministic")

    def _call_threads(self) -> ThreadPool:
        return _NoThreads(1, Inlet(asyncio.get_running_loop()))


class _NoThreads(ThreadPool):
    async def run(
        self,
        function: Callable[[], T],
        *,
        on_begin: Callable[[], None] | None = None,
        on_abandon: Callable[[], None] | None = None,
        on_late: Callable[[Exception | None], None] | None = None,
    ) -> T:
        return function()

    async def run_to_end(self, function: Callable[[], T]) -> T:
        return function()
