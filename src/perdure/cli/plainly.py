"""Showing a run where nothing can be drawn: lines in a pipe, or nothing at all."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import click

from perdure.cli.flowing import progress_line, summary
from perdure.cli.forecast import Forecast
from perdure.cli.lines import RUN, is_news, line_of
from perdure.cli.options import Place
from perdure.cli.waits import how_to_end
from perdure.cli.watch import Watch
from perdure.cli.words import counted, plain, time_of_day
from perdure.clock import Clock, SystemClock
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.events import Recorded
from perdure.journal.states import NodeStatus

PROGRESS_SECONDS = 5.0
"""How often a node that works item by item has a line."""
FORECAST_SECONDS = 30.0
"""How often it is told how long the run will take; the first time as soon as a node would have a line."""
MOST_FAILURES = 3
"""How many items of a node are said to have failed in that time; the others are counted."""


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Lines:
    """Prints a line for each event that matters to somebody who watches, and now and then how far the run and its streams have
    come."""

    interval_seconds = 5.0

    def __init__(self, clock: Clock | None = None, *, place: Place | None = None, head: str = "") -> None:
        """With a `place`, the commands that end what the run waits for are told whenever it comes to rest and is stayed with. The
        `head` is told before all else."""
        self._place = place
        self._head = head
        self._clock = clock or SystemClock()
        self._told_at = self._clock.monotonic()
        self._told: dict[NodeId, str] = {}
        self._forecast = Forecast(self._clock)
        self._foretold: str = ""
        self._foretold_at = float("-inf")
        self._failures: Counter[NodeId] = Counter()

    def begin(self) -> None:
        if self._head:
            say(self._head)

    def heard(self, watch: Watch, entries: Sequence[Recorded]) -> None:
        for entry in entries:
            if entry.seq > watch.known and is_news(entry.event) and not self._is_one_of_many(entry.event):
                say(line_of(entry) + self._done(watch, entry.event))
        has_come_to_rest = watch.rests and any(isinstance(entry.event, e.RunSuspended) for entry in entries)
        if self._place is not None and has_come_to_rest and watch.is_stayed_with:
            for why, command in how_to_end(watch.run_id, watch.awaited(), self._place):
                say(f"{why}: {command}")

    def draw(self, watch: Watch) -> None:
        if self._clock.monotonic() - self._told_at < PROGRESS_SECONDS:
            return
        self._told_at = self._clock.monotonic()
        self._failures.clear()
        now = self._clock.now_micros()
        for node_id, flowing in watch.flowing(now=now).items():
            if watch.projection.status(node_id) is not NodeStatus.RUNNING:
                continue
            told = progress_line(flowing)
            if told != self._told.get(node_id):
                self._told[node_id] = told
                say(f"{time_of_day(now)} {plain(node_id)} {told}")
        self._foretell(watch, now)

    def _foretell(self, watch: Watch, now: int) -> None:
        """Say how long the run will take, unless that was said of late or nothing has changed."""
        if watch.rests or self._clock.monotonic() - self._foretold_at < FORECAST_SECONDS:
            return
        line = self._forecast.line(watch)
        if line and line != self._foretold:
            self._foretold, self._foretold_at = line, self._clock.monotonic()
            say(f"{time_of_day(now)} {RUN} {line}")

    def _is_one_of_many(self, event: e.AnyEvent) -> bool:
        """Whether so many items of the node have failed of late that this one is only counted."""
        if not isinstance(event, e.ItemFailed):
            return False
        self._failures[event.node_id] += 1
        return self._failures[event.node_id] > MOST_FAILURES

    def _done(self, watch: Watch, event: e.AnyEvent) -> str:
        """Return how many items a node that has completed has done."""
        if not isinstance(event, e.NodeCompleted):
            return ""
        headway = watch.headway(event.node_id, now=self._clock.now_micros())
        return "" if headway is None else f": {summary(headway)}"

    def stopping(self, watch: Watch) -> None:
        say(stopping_text(watch))

    def close(self) -> None:
        pass


class Silence:
    """Shows nothing on standard output: for those who want one document at the end."""

    interval_seconds = 5.0

    def begin(self) -> None:
        pass

    def heard(self, watch: Watch, entries: Sequence[Recorded]) -> None:
        pass

    def draw(self, watch: Watch) -> None:
        pass

    def stopping(self, watch: Watch) -> None:
        click.echo(stopping_text(watch), err=True)

    def close(self) -> None:
        pass


def stopping_text(watch: Watch) -> str:
    """Return what is said when a signal has come."""
    running = watch.counts()[NodeStatus.RUNNING]
    waiting = f": waiting for {counted(running, 'running node')} to end" if running else ""
    return f"stopping{waiting} (again to stop at once)"
