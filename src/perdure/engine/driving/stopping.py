"""How the bodies of one run are brought to an end before they have come to theirs.

cancelled, failing, out of time   told to stop when the record of why is durable
paused, or let go                 given a grace period first; what only waits is ended at once

What has not stopped by the end of the run's own grace period is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.engine.driving.bodies import PAUSING, STOPPING, Bodies
from perdure.engine.recording.pending import Pending
from perdure.journal.states import RunStatus

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

LOOK_AGAIN_SECONDS = 0.05
"""How often a run that is being let go looks whether all its bodies only wait."""


class Stopping:
    """Tells bodies to stop, and counts the time that they have left."""

    def __init__(self, driver: Driver, bodies: Bodies, pending: Pending) -> None:
        self._driver = driver
        self._bodies = bodies
        self._pending = pending
        self._timers: list[asyncio.TimerHandle] = []
        self._is_time_watched = False
        self.is_winding_down = False
        """No body is launched here any more, whatever follows: the run is being paused, or let go."""

    def when_durable(self, reason: str) -> None:
        """Have bodies stopped when the record of why is durable."""
        self._pending.acts.append(lambda: self._stop(reason))

    def if_failing(self, was_running: bool) -> None:
        """Have bodies stopped if the run has just begun to fail."""
        if was_running and self._driver.projection.run.status is RunStatus.FAILING:
            self.when_durable(STOPPING[RunStatus.FAILING])

    def pause(self, grace_seconds: float) -> None:
        """Let bodies end within the grace period, when the record that the run is being paused is durable."""
        self.is_winding_down = True
        self._pending.acts.append(lambda: self.wind_down(PAUSING, grace_seconds))

    def wind_down(self, reason: str, grace_seconds: float) -> None:
        """Let what runs end, and what only waits at once. What has not ended after the grace period is told to stop."""
        self.is_winding_down = True
        self._after(grace_seconds, lambda: self._stop(reason))
        self._bodies.drain()
        self._stop_if_all_wait()

    def watch_time(self, spent_seconds: float) -> None:
        """Count the time that the run is driven: by the loop's own clock here, and by its owners' before."""
        run = self._driver.projection.run
        if run.settings.timeout_seconds is None or run.started_at is None or self._is_time_watched:
            return
        self._is_time_watched = True
        self._after(max(0.0, run.settings.timeout_seconds - spent_seconds), self._time_is_over)

    def close(self) -> None:
        """Tell nobody anything any more."""
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()

    def _stop(self, reason: str) -> None:
        """Tell running bodies to stop; those that do not within the grace period are left behind."""
        if self._driver.is_gone:
            return
        self._bodies.stop(reason)
        grace = 0.0 if self._driver.is_draining else self._driver.projection.run.settings.grace_seconds
        self._after(grace, self._leave_behind)

    def _leave_behind(self) -> None:
        self._bodies.leave_behind()
        self._driver.submit_if_over()

    def _stop_if_all_wait(self) -> None:
        """While the run is being let go or paused: unwind bodies that wait for something from outside at once, and those that
        wait for items when nobody is left who could give any."""
        driver = self._driver
        if driver.is_gone or not len(self._bodies):
            return
        driver.waiting.unwind_waiting("the run is let go")
        if not driver.has_news and self._bodies.all_wait:
            driver.waiting.unwind_all("the run is let go")
        self._after(LOOK_AGAIN_SECONDS, self._stop_if_all_wait)

    def _time_is_over(self) -> None:
        driver = self._driver
        if driver.is_gone or driver.projection.run.status is not RunStatus.RUNNING:
            return
        driver.decider.time_out(at=driver.machinery.clock.now_micros())
        self.when_durable("the run took too long")
        driver.happened()

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._timers.append(self._driver.later(seconds, work))
