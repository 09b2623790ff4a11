"""A trigger that fires by the clock: `ticks = schedule("30 2 * * *", tz="Europe/Berlin")`.

Between two times nothing is in memory. The cursor is the last time that fired, so that after a downtime it is known what was
missed, and `catch_up` says what becomes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, cast, get_args
from zoneinfo import ZoneInfo

from perdure.graph.declare import NodeDecorator, Stream
from perdure.graph.model import SCHEDULE
from perdure.graph.triggers import Trigger, TriggerInput, require_no_problems

CatchUp = Literal["all", "latest", "skip"]
"""What becomes of times that were missed: each fires, only the last one does, or none."""
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = 5
_IN_FIELDS = "It has five fields: minute, hour, day, month, weekday."
ON_TIME_SECONDS = 60.0
"""How late a time may fire without having been missed."""
LONGEST = timedelta(days=36_525)
TIMES_PER_TURN = 1_000
"""After how many times that were missed others get a turn."""


@dataclass(frozen=True)
class Tick:
    """A time has come."""

    at: datetime
    """The time itself, in the zone of the schedule; not when somebody got round to it."""
    missed: int = 0
    """How many times before it were left out."""


class Schedule(Trigger[datetime, Tick]):
    """Fires at times, which a cron expression or an interval gives."""

    cron: str | None = None
    tz: str = "UTC"
    every: float | None = None
    catch_up: str = "latest"

    async def inputs(self, ctx: Any, cursor: datetime | None) -> AsyncIterator[TriggerInput[datetime, Tick]]:
        last = cursor or await ctx.step(ctx.now)  # which is the same each time, though nothing may have fired yet
        while True:
            await ctx.sleep(next(self.after(last)))
            now = ctx.now()
            count = 0
            for time in self._times(last, now):
                last = time
                count += 1
                if count % TIMES_PER_TURN == 0:
                    await asyncio.sleep(0)
                if self.catch_up == "all":
                    yield _fired(Tick(time))
            is_on_time = (now - last).total_seconds() <= ON_TIME_SECONDS
            if count and (self.catch_up == "latest" or (self.catch_up == "skip" and is_on_time)):
                yield _fired(Tick(last, missed=count - 1))

    def problems(self) -> Iterator[str]:
        if (self.cron is None) == (self.every is None):
            yield "A schedule has either a cron expression or an interval: cron='0 7 * * *' or every=3600."
        if self.every is not None and _interval(self.every) is None:
            yield f"An interval is a number of seconds above zero, a century at most, and {self.every!r} is none."
        if self.cron is not None and (problem := _cron_problem(self.cron)):
            yield problem
        if not _is_zone(self.tz):
            yield f"There is no time zone {self.tz!r}. Names are like 'Europe/Berlin'."
        if self.catch_up not in get_args(CatchUp):
            yield f"There is no catch_up {self.catch_up!r}: choose one of {', '.join(get_args(CatchUp))}."

    def is_after(self, cursor: datetime, last: datetime) -> bool:
        # Of two times in the same zone Python compares what clocks show, and in autumn they show an hour twice.
        return cursor.astimezone(UTC) > last.astimezone(UTC)

    def after(self, last: datetime) -> Iterator[datetime]:
        """Return the times that come after another one, without end."""
        zone = ZoneInfo(self.tz)
        if self.cron is None:
            return _steps(last.astimezone(zone), timedelta(seconds=self.every or 0))
        return _cron(self.cron, last.astimezone(zone))

    def _times(self, last: datetime, now: datetime) -> Iterator[datetime]:
        return takewhile(lambda time: time <= now, self.after(last))


Schedule.__name__ = "schedule"  # what its nodes are called
_schedule = NodeDecorator(SCHEDULE)(Schedule)


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
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    given = {"cron": cron, "tz": tz, "every": seconds, "catch_up": catch_up}
    wanted = Schedule()
    for name, value in given.items():
        setattr(wanted, name, value)
    require_no_problems(wanted)
    return _schedule(**{name: value for name, value in given.items() if value is not None})


def next_times(cron: str, tz: str, after: datetime, count: int) -> list[datetime]:
    """Return the next times of a cron expression. Raises GraphError if it is none, or there is no such time zone."""
    wanted = Schedule()
    wanted.cron, wanted.tz = cron, tz
    require_no_problems(wanted)
    return list(islice(wanted.after(after), count))


def _fired(tick: Tick) -> TriggerInput[datetime, Tick]:
    return TriggerInput(tick, id=tick.at.isoformat(), cursor=tick.at)


def _interval(seconds: float) -> timedelta | None:
    """Return an interval that a schedule can have; None if there is none of this length."""
    try:
        interval = timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
    return interval if timedelta(0) < interval <= LONGEST else None


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except Exception:  # zoneinfo raises whatever the lookup of a file raises
        return False
    return True


def _cron_problem(expression: str) -> str | None:
    from cronsim import CronSimError

    fields = len(ALIASES.get(expression.strip(), expression).split())
    if fields > FIELDS:  # some take the first of six for seconds, and others do not
        return f"{expression!r} is no cron expression ({fields} fields). {_IN_FIELDS}"
    try:
        next(_cron(expression, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return f"{expression!r} is no cron expression ({error}). {_IN_FIELDS}"
    except StopIteration:
        return f"{expression!r} never comes: there is no such day."
    return None


def _cron(expression: str, after: datetime) -> Iterator[datetime]:
    # Only who has a schedule needs it.
    from cronsim import CronSim

    return cast("Iterator[datetime]", CronSim(ALIASES.get(expression.strip(), expression), after))


def _steps(last: datetime, step: timedelta) -> Iterator[datetime]:
    moment = last.astimezone(UTC)  # what clocks show is put forward and back
    while True:
        moment += step
        yield moment.astimezone(last.tzinfo)
