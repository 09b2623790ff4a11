"""A trigger that fires by the clock: `ticks = schedule("30 2 * * *", tz="Europe/Berlin")`.

Between two times nothing is in memory. The cursor is the last time that fired, so that after a downtime it is known what was
missed, and `catch_up` says what becomes of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Literal, cast, get_args
from zoneinfo import ZoneInfo

from perdure.errors import GraphError
from perdure.graph.declare import NodeDecorator, Stream
from perdure.graph.triggers import Trigger, TriggerInput

CatchUp = Literal["all", "latest", "skip"]
"""What becomes of times that were missed: each fires, only the last one does, or none."""
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ON_TIME_SECONDS = 60.0
"""How late a time may fire without having been missed."""


@dataclass(frozen=True)
class Tick:
    """A time has come."""

    at: datetime
    """The time itself, in the zone of the schedule; not when somebody got round to it."""
    missed: int = 0
    """How many times before it were left out."""


class Schedule(Trigger[datetime, Tick]):
    """Fires at times, which a cron expression or an interval gives."""

    cron: str = ""
    tz: str = "UTC"
    every: float = 0.0
    catch_up: str = "latest"

    async def inputs(self, ctx: Any, cursor: datetime | None) -> AsyncIterator[TriggerInput[datetime, Tick]]:
        last = cursor or await ctx.step(ctx.now)  # which is the same each time, though nothing may have fired yet
        while True:
            await ctx.sleep(next(self._after(last)))
            now = ctx.now()
            count = 0
            for time in self._times(last, now):
                last = time
                count += 1
                if self.catch_up == "all":
                    yield _fired(Tick(time))
            is_on_time = (now - last).total_seconds() <= ON_TIME_SECONDS
            if count and (self.catch_up == "latest" or (self.catch_up == "skip" and is_on_time)):
                yield _fired(Tick(last, missed=count - 1))

    def _times(self, last: datetime, now: datetime) -> Iterator[datetime]:
        return takewhile(lambda time: time <= now, self._after(last))

    def _after(self, last: datetime) -> Iterator[datetime]:
        zone = ZoneInfo(self.tz)
        if not self.cron:
            return _steps(last.astimezone(zone), timedelta(seconds=self.every))
        return _cron(self.cron, last.astimezone(zone))


Schedule.__name__ = "schedule"  # what its nodes are called
_schedule = NodeDecorator("perdure.schedule")(Schedule)


def schedule(
    cron: str | None = None,
    *,
    tz: str = "UTC",
    every: float | timedelta | None = None,
    catch_up: CatchUp = "latest",
) -> Stream[Tick]:
    """Fire at the times of a cron expression in a time zone, or in regular intervals. The run lives until it is stopped.

    Where clocks are put forward or back: a time that does not exist fires as soon as it is over, one that exists twice fires
    once.
    """
    if (cron is None) == (every is None):
        raise GraphError("A schedule has either a cron expression or an interval: schedule('0 7 * * *') or every=3600.")
    if catch_up not in get_args(CatchUp):
        raise GraphError(f"There is no catch_up {catch_up!r}: choose one of {', '.join(get_args(CatchUp))}.")
    try:
        ZoneInfo(tz)
    except Exception as error:  # zoneinfo raises whatever the lookup of a file raises
        raise GraphError(f"There is no time zone {tz!r}. Names are like 'Europe/Berlin'.") from error
    seconds = every.total_seconds() if isinstance(every, timedelta) else float(every or 0)
    if cron is None and not 0 < seconds < float("inf"):
        raise GraphError(f"An interval is a time, and {every!r} is none.")
    expression = "" if cron is None else ALIASES.get(cron.strip(), cron)
    if expression:
        _checked(expression)
    return _schedule(cron=expression, tz=tz, every=seconds, catch_up=catch_up)


def next_times(cron: str, tz: str, after: datetime, count: int) -> list[datetime]:
    """Return the next times of a cron expression."""
    times = _cron(_checked(ALIASES.get(cron.strip(), cron)), after.astimezone(ZoneInfo(tz)))
    return [next(times) for _ in range(count)]


def _fired(tick: Tick) -> TriggerInput[datetime, Tick]:
    return TriggerInput(tick, id=tick.at.isoformat(), cursor=tick.at)


def _checked(expression: str) -> str:
    from cronsim import CronSimError

    try:
        next(_cron(expression, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise GraphError(
            f"{expression!r} is no cron expression ({error}). It has five fields: minute, hour, day, month, weekday."
        ) from None
    except StopIteration:
        raise GraphError(f"{expression!r} never comes: there is no such day.") from None
    return expression


def _cron(expression: str, after: datetime) -> Iterator[datetime]:
    # Only who has a schedule needs it.
    from cronsim import CronSim

    return cast("Iterator[datetime]", CronSim(expression, after))


def _steps(last: datetime, step: timedelta) -> Iterator[datetime]:
    while True:
        last += step
        yield last
