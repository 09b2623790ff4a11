"""Work that an engine does for as long as it lives, beside its runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from perdure.clock import Clock

log = logging.getLogger("perdure.engine")

PAUSE_SECONDS = 1.0
"""How long to wait before what has failed is tried again."""
STUBBORN_SECONDS = 5
"""How long a stopping engine goes on telling bodies to stop that did not when they were told."""
BODIES_OF = "run "
"""How the name of a driver's task begins. The rest is the run's id, with which the names of its bodies' tasks begin."""


async def kept_up(name: str, work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Do work that has no end. A bug in it is reported, and then it begins anew: the engine's runs do not depend on it."""
    while True:
        try:
            await work()
        except Exception:  # a bug may raise anything, and none of this is worth the runs that would go down with it
            log.exception("background_work_failed", extra={"work": name})
        await clock.sleep(PAUSE_SECONDS)


async def end_bodies(driving: Collection[asyncio.Task[None]]) -> None:
    """Wait for drivers whose bodies were told to stop, and tell them again: some swallow the first cancellation.

    Those that swallow all of them are left behind, and the log says so.
    """
    for _ in range(STUBBORN_SECONDS):
        stubborn = [task for task in driving if not task.done()]
        if not stubborn:
            return
        await asyncio.wait(stubborn, timeout=1.0)
        for task in stubborn:
            task.cancel()
    if stubborn := [task for task in driving if not task.done()]:
        names = sorted(task.get_name() for task in stubborn)
        log.error("bodies_left_behind", extra={"count": len(names), "tasks": names[:10]})
        bodies = tuple(f"{name.removeprefix(BODIES_OF)}/" for name in names)
        _leave_behind((*stubborn, *(task for task in asyncio.all_tasks() if task.get_name().startswith(bodies))))


def _leave_behind(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Give up on tasks that do not end: `asyncio.run` waits for all that it knows of, and shall not know of these."""
    for task in tasks:
        unregister: Callable[[asyncio.Task[Any]], None] = getattr(asyncio, "_unregister_task")  # noqa: B009  # as documented
        unregister(task)
        setattr(task, "_log_destroy_pending", False)  # noqa: B010  # that it was still there has been said
