"""Driving one run from the command line: until it has ended or rests, or until a signal says to leave it.

The run is driven here if nobody living drives it, else it is watched; when whoever drives it dies, it is taken over. The
first signal lets running bodies end and then lets go of the run; the second ends the process at once. Whichever it is,
nothing that was recorded is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.cli.watch import Display, Watch
from perdure.clock import Clock
from perdure.engine.driver import Driver, NotOurs
from perdure.engine.engine import Engine
from perdure.engine.hub import Flash
from perdure.engine.inspect import events_of, load_graph, load_run, nodes_in_order
from perdure.engine.live import LiveStreams
from perdure.engine.settings import EngineSettings
from perdure.errors import EngineStopped
from perdure.ids import RunId
from perdure.journal.events import Recorded

TAKE_OVER_SECONDS = 2.0
"""How often to look whether a run that somebody else drives has lost its engine."""
NEWS_SECONDS = 0.02
"""What prints lines hears of news no more often: streams bring them by the thousand."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_after(number: int) -> int:
    """Return the exit code of a process that a signal has ended, as shells know it."""
    return 128 + number


async def drive(
    engine: Engine,
    run_id: RunId,
    display: Display,
    *,
    known: int,
    rested_at: int = -1,
    before_end: Callable[[], None] | None = None,
) -> int | None:
    """Drive or watch the run until it has ended or rests. Return the signal that made us leave it before, if one did.

    `known` is the last event that need not be shown. A run that rested at event `rested_at` and was asked to go on is
    waited for until it has. `before_end` is called if a second signal ends the process at once.
    """
    run = (await load_run(engine.store, run_id)).run
    graph = await load_graph(engine.store, run)
    watch = Watch(run_id, () if graph is None else nodes_in_order(graph), known=known, graph=graph)
    with (
        engine.hub.watching(run_id) as changed,
        engine.hub.showing(run_id) as shown,
        _Signals(changed, before_end=before_end or display.close) as signals,
    ):
        return await _Attendance(engine, watch, display, signals, changed, shown).attend(rested_at)


class _Attendance:
    """Keeps to one run until there is nothing more to do."""

    def __init__(
        self,
        engine: Engine,
        watch: Watch,
        display: Display,
        signals: _Signals,
        changed: asyncio.Event,
        shown: asyncio.Queue[Flash],
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._display = display
        self._signals = signals
        self._changed = changed
        self._shown = shown
        self._clock: Clock = engine.clock
        self._driver: Driver | None = None
        self._looked = float("-inf")
        self._is_draining = False
        watch.look = self._look

    async def attend(self, rested_at: int) -> int | None:
        while True:
            began = self._clock.monotonic()
            self._changed.clear()
            await self._take_up()
            is_let_go = self._let_go()
            await self._read()
            self._display.draw(self._watch)
            if self._watch.rests and self._watch.last_seq > rested_at:
                return None
            if self._signals.number is not None and (is_let_go or self._driver is None):
                return self._signals.number
            self._drain()
            await self._pause(began)

    async def _take_up(self) -> None:
        """Drive the run, unless somebody living does."""
        now = self._clock.monotonic()
        if self._driver is None and now - self._looked >= TAKE_OVER_SECONDS and self._signals.number is None:
            self._looked = now
            self._driver = await self._engine.adopt(self._watch.run_id)

    def _let_go(self) -> bool:
        """Whether this process has stopped driving the run. Raises what made it stop, unless it goes on elsewhere."""
        if self._driver is None or not self._driver.rested.done():
            return False
        problem = self._driver.rested.exception()
        self._driver = None
        if problem is not None and not isinstance(problem, NotOurs | EngineStopped):
            raise problem
        return True

    async def _read(self) -> None:
        entries: list[Recorded] = []
        async for entry in events_of(self._engine.store, self._watch.run_id, after=self._watch.last_seq):
            entries.append(entry)
        self._hear(entries)

    def _hear(self, entries: Sequence[Recorded]) -> None:
        while not self._shown.empty():
            self._watch.flash(self._shown.get_nowait())
        if entries:
            self._watch.hear(entries)
            self._display.heard(self._watch, entries)

    def _look(self) -> LiveStreams | None:
        return None if self._driver is None else self._driver.live_streams()

    def _drain(self) -> None:
        if self._signals.number is not None and self._driver is not None and not self._is_draining:
            self._is_draining = True
            self._display.stopping(self._watch)
            self._driver.drain(EngineSettings().grace_seconds)

    async def _pause(self, began: float) -> None:
        """Wait for news, or until it is time to draw again; what draws is not woken more often than it draws."""
        interval = self._display.interval_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(min(interval, TAKE_OVER_SECONDS)):
                await self._changed.wait()
        if not self._watch.rests:
            least = interval if interval < 1 else NEWS_SECONDS
            await self._clock.sleep(max(0.0, least - (self._clock.monotonic() - began)))


class _Signals:
    """Hears the signals that ask a process to end."""

    def __init__(self, changed: asyncio.Event, *, before_end: Callable[[], None]) -> None:
        self._changed = changed
        self._before_end = before_end
        self._heard: list[signal.Signals] = []
        self.number: int | None = None
        """The signal that came first, if one did."""

    def __enter__(self) -> _Signals:
        # What whoever started us has switched off stays so: nohup, or a job in the background of a script.
        self._heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._heard:
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)
        return self

    def __exit__(self, *exception: object) -> None:
        for number in self._heard:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _hear(self, number: int) -> None:
        if self.number is not None:
            with suppress(OSError):
                self._before_end()
            os._exit(exit_after(number))
        self.number = number
        self._changed.set()
