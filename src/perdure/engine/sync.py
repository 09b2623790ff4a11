"""The one bridge for synchronous callers: `workflow.run(…)` without an event loop in sight."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.errors.base import quoted
from perdure.graph.declare import Workflow
from perdure.journal.events import Durability, OnFailure
from perdure.journal.states import WAITING
from perdure.store.opening import DEFAULT_URL

R = TypeVar("R")
_Handler = Callable[[int, FrameType | None], Any] | int | None


def run_workflow(
    workflow: Workflow[..., R],
    *,
    inputs: Mapping[str, Any],
    store: str | None = None,
    run_id: str | None = None,
    durability: Durability | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | timedelta | None = None,
    checkpoint_every: float | timedelta | None = None,
) -> R:
    """Run the workflow to its end, durably, and return its result. A run with this id that is unfinished goes on.

    Ctrl-C and SIGTERM let running bodies end, and then raise KeyboardInterrupt or SystemExit; the second one ends the program
    at once. The run is kept either way, and standard error says how to go on with it.
    """
    started_as: list[str] = []
    url = store or os.environ.get("PERDURE_STORE") or DEFAULT_URL
    engine = Engine(url, workflows=[workflow], recover=False)

    async def run() -> R:
        async with engine:
            started = await engine.start(
                workflow,
                run_id=run_id,
                inputs=inputs,
                durability=durability,
                on_failure=on_failure,
                timeout=timeout,
                checkpoint_every=checkpoint_every,
            )
            started_as.append(started.run_id)
            if (await started.wait()).status in WAITING:
                _tell_of_waiting(started.run_id)
            return await started.result()

    if _has_loop():
        return _in_a_thread(run())
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(run())

    def stop() -> None:
        engine.drain()
        _tell_of_stopping(*started_as)

    with _Signals(stop) as signals:
        return asyncio.run(signals.heeded(run()))


def _in_a_thread(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end where this thread has a loop already (a notebook)."""
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


class _Stopped(Exception):
    """A signal came, and the engine has drained."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Signals:
    """Hears Ctrl-C and SIGTERM while a coroutine runs. What the program had made of them before is so again afterwards."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._before: dict[signal.Signals, _Handler] = {}
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, None)):
            handler = signal.getsignal(number)
            # What was switched off stays so (nohup), and a program that has made something of Ctrl-C of its own keeps it.
            if handler is not signal.SIG_IGN and (usual is None or handler is usual):
                self._before[number] = handler
        self._heard: int | None = None

    def __enter__(self) -> _Signals:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # None is one that was not set from Python, and cannot be set from here
                signal.signal(number, handler)
        if isinstance(error, _Stopped):
            if error.number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + error.number) from None

    async def heeded(self, work: Coroutine[Any, Any, R]) -> R:
        """Do the work, or raise _Stopped when it was cancelled because of a signal."""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in self._before:
            loop.add_signal_handler(number, self._hear, number, task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._heard is None:
                raise
            raise _Stopped(self._heard) from None
        finally:
            for number in self._before:
                if self._heard is None:
                    loop.remove_signal_handler(number)

    def _hear(self, number: int, task: asyncio.Task[Any]) -> None:
        self._heard = number
        for other in self._before:
            asyncio.get_running_loop().remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)  # the next one ends the program, with whatever does not end by itself
        self._on_first()
        task.cancel()


def _tell_of_stopping(run_id: str = "") -> None:
    """Say what goes on: without a word, a program that drains looks like one that hangs."""
    grace = EngineSettings().grace_seconds
    words = [f"perdure: stopping; nodes that run have up to {grace:g} s to end. The same again ends at once."]
    if run_id:
        words.append(
            f"perdure: the run is kept: `perdure resume {quoted(run_id)}`, or starting it again with run_id={run_id!r}, goes on."
        )
    _tell("\n".join(words))


def _tell_of_waiting(run_id: str) -> None:
    """Say why nothing goes on, once: a program that waits for a person looks like one that hangs, too."""
    _tell(
        f"perdure: run {run_id!r} waits for somebody: `perdure show {quoted(run_id)}` tells what for, and how to answer."
    )


def _tell(words: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
