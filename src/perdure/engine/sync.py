"""The one bridge for synchronous callers: `workflow.run(…)` without an event loop in sight."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from perdure.engine.engine import Engine
from perdure.graph.declare import Workflow
from perdure.journal.events import Durability, OnFailure
from perdure.store.opening import DEFAULT_URL

R = TypeVar("R")


def run_workflow(
    workflow: Workflow[..., R],
    *,
    inputs: Mapping[str, Any],
    store: str | None = None,
    run_id: str | None = None,
    durability: Durability | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | timedelta | None = None,
) -> R:
    """Run the workflow to its end, durably, and return its result. A run with this id that is unfinished goes on."""

    async def run() -> R:
        url = store or os.environ.get("PERDURE_STORE") or DEFAULT_URL
        async with Engine(url, workflows=[workflow], recover=False) as engine:
            started = await engine.start(
                workflow, run_id=run_id, inputs=inputs, durability=durability, on_failure=on_failure, timeout=timeout
            )
            return await started.result()

    return _in_a_loop(run())


def _in_a_loop(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end: here, or in a thread where this one has a loop already (a notebook)."""
    if not _has_loop():
        try:
            return asyncio.run(_until_terminated(work))
        except _Terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
    outcome: list[R] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # handed to the caller's thread whatever it is
            failure.append(error)

    thread = threading.Thread(target=target, name="perdure-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


class _Terminated(Exception):
    """SIGTERM came, and the engine has drained."""


async def _until_terminated(work: Coroutine[Any, Any, R]) -> R:
    """Treat SIGTERM as Ctrl-C is treated: the engine drains; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        return await work

    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if is_terminated:
            raise _Terminated from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
