"""Driving one run from the command line: until it has ended or rests, or until a signal says to leave it.

A run that rests until some time is waited for. One that rests until somebody acts is left, unless it is to be stayed with.
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
from perdure.engine.driving.driver import Driver, NotOurs
from perdure.engine.engine import Engine
from perdure.engine.inspect import events_of, load_graph, load_run
from perdure.engine.owning.adoption import is_woken
from perdure.engine.recording.hub import Flash
from perdure.engine.stored.following import LAST_EVENTS_SECONDS
from perdure.engine.stored.past import log_until
from perdure.engine.stored.progress import load_estimator
from perdure.engine.streams.live import LiveStreams
from perdure.errors import EngineStopped, StoreError
from perdure.graph.ordering import nodes_in_order
from perdure.ids import RunId
from perdure.journal.events import Recorded
from perdure.journal.lineage import places_gone_back_to
from perdure.journal.projection import Projection, fold
from perdure.journal.states import MOVING, TERMINAL
from perdure.journal.waiting import Waits

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
    stays: bool = False,
    give_up: Callable[[bool], None] | None = None,
) -> int | None:
    """Drive or watch the run until it has ended or, unless one `stays` with it, rests until somebody acts. Return the signal
    that made us leave it before, if one did.

    `known` is the last event that need not be shown. A run that rested at event `rested_at` and was asked to go on is
    waited for until it has. `give_up` is called if the process is about to end although the run has not been let go: a second
    signal has come, or the store cannot be used. It is told whether the run goes on in another process.
    """
    run = (await load_run(engine.store, run_id)).run
    graph = await load_graph(engine.store, run)
    watch = Watch(run_id, () if graph is None else nodes_in_order(graph), known=known, graph=graph)
    watch.stays = stays
    watch.estimator = await load_estimator(engine.store, run, graph)

    def before_end() -> None:
        display.close()
        if give_up is not None:
            give_up(watch.goes_on_elsewhere)

    with (
        engine.hub.watching(run_id) as changed,
        engine.hub.showing(run_id) as shown,
        _Signals(changed, before_end=before_end) as signals,
    ):
        display.begin()
        kind = _Attendance if run.audit is None else _AuditedAttendance
        try:
            return await kind(engine, watch, display, signals, changed, shown).attend(rested_at)
        except StoreError:
            before_end()
            raise


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
        signals.on_first = self._drain
        self._driver: Driver | None = None
        self._looked = float("-inf")
        self._has_told = False
        """Whether it was said that the run is being let go."""
        self._has_news = False
        """Whether something has happened in the store since the last turn."""
        watch.look = self._look

    async def attend(self, rested_at: int) -> int | None:
        while True:
            began = self._clock.monotonic()
            self._changed.clear()
            await self._take_up()
            self._watch.is_elsewhere = self._driver is None
            is_let_go = self._let_go()
            await self._read()
            self._display.draw(self._watch)
            if self._watch.last_seq > rested_at and await self._is_over():
                await self._read_rest()
                return None
            if self._signals.number is not None and (is_let_go or self._driver is None):
                return self._signals.number
            self._drain()
            await self._pause(began)

    async def _is_over(self) -> bool:
        """Whether nothing more will happen to the run by itself, and nothing that has come is left to be taken up."""
        run = self._watch.run
        if run.status in MOVING or run.status in TERMINAL:
            return run.status in TERMINAL
        if self._watch.is_stayed_with:
            return False
        stored = await load_run(self._engine.store, run.run_id)
        has_gone_on = stored.run.last_seq > run.last_seq  # since it was read
        return not has_gone_on and not is_woken(stored, self._clock.now_micros())

    async def _take_up(self) -> None:
        """Drive the run, unless somebody living does."""
        now = self._clock.monotonic()
        is_time = now - self._looked >= TAKE_OVER_SECONDS or self._may_be_woken
        if self._driver is None and is_time and self._signals.number is None:
            self._looked = now
            try:
                self._driver = await self._engine.adopt(self._watch.run_id)
            except EngineStopped:
                if self._signals.number is None:  # else that has come meanwhile
                    raise

    @property
    def _may_be_woken(self) -> bool:
        """Whether something may have come for a run that rests."""
        if not self._watch.last_seq or not self._watch.rests:
            return False
        wake_at = self._watch.run.wake_at
        return self._has_news or (wake_at is not None and wake_at <= self._clock.now_micros())

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
        store, run_id = self._engine.store, self._watch.run_id
        self._watch.pasts.update(
            {seq: fold(run_id, await log_until(store, run_id, seq)) for seq in places_gone_back_to(entries)}
        )
        self._hear(entries)
        self._watch.pasts.clear()

    async def _read_rest(self) -> None:
        """Read what may still be missing of a run that is over."""

    def _hear(self, entries: Sequence[Recorded]) -> None:
        self._hear_flashes()
        if entries:
            self._watch.hear(entries)
            self._display.heard(self._watch, entries)

    def _hear_flashes(self) -> None:
        while not self._shown.empty():
            self._watch.flash(self._shown.get_nowait())

    def _look(self) -> LiveStreams | None:
        return None if self._driver is None else self._driver.live_streams()

    def _drain(self) -> None:
        """Stop as soon as a signal has come, and say so as soon as anything is known of the run."""
        if self._signals.number is None:
            return
        self._engine.drain()
        if self._driver is not None and self._watch.last_seq and not self._has_told:
            self._has_told = True
            self._display.stopping(self._watch)

    async def _pause(self, began: float) -> None:
        """Wait for news, or until it is time to draw again; what draws is not woken more often than it draws."""
        interval = self._display.interval_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(min(interval, TAKE_OVER_SECONDS, self._until_waking())):
                await self._changed.wait()
        self._has_news = self._changed.is_set()
        if not self._watch.rests:
            least = interval if interval < 1 else NEWS_SECONDS
            await self._clock.sleep(max(0.0, least - (self._clock.monotonic() - began)))

    def _until_waking(self) -> float:
        """Return how long until time itself moves a run that rests."""
        wake_at = self._watch.run.wake_at if self._watch.rests else None
        return float("inf") if wake_at is None else max(0.01, (wake_at - self._clock.now_micros()) / 1_000_000)


class _AuditedAttendance(_Attendance):
    """Keeps to a run whose log is written on the side: what it is comes from its tables, and from its log what is told of it."""

    _heard_seq = 0

    async def _read(self) -> None:
        store, run_id = self._engine.store, self._watch.run_id
        stored = await load_run(store, run_id)
        entries = [entry async for entry in events_of(store, run_id, after=self._heard_seq)]
        self._hear_flashes()
        waits = Waits(stored.waits, stored.signals)
        self._watch.see(Projection(stored.run, stored.nodes, {}, waits, stored.given), entries)
        if entries:
            self._heard_seq = entries[-1].seq
            self._display.heard(self._watch, entries)

    async def _read_rest(self) -> None:
        await self._engine.write_trail(LAST_EVENTS_SECONDS)
        await self._read()
        self._display.draw(self._watch)


class _Signals:
    """Hears the signals that ask a process to end."""

    def __init__(self, changed: asyncio.Event, *, before_end: Callable[[], None]) -> None:
        self._changed = changed
        self._before_end = before_end
        self._heard: list[signal.Signals] = []
        self.on_first: Callable[[], None] | None = None
        """Called at once when the first one comes: what else has heard it may be failing already."""
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
        if number == self.number == signal.SIGHUP:
            return  # shells tell their jobs once more what the terminal has told them
        if self.number is not None:
            with suppress(OSError):
                self._before_end()
            os._exit(exit_after(number))
        self.number = number
        self._changed.set()
        if self.on_first is not None:
            self.on_first()
