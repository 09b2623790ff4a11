"""How far a run has come and how long the rest takes, in words, and again and again while it is watched."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.cli.watch import Watch
from perdure.cli.words import counted, plain
from perdure.clock import Clock
from perdure.journal.estimate import NOTHING, Estimate
from perdure.journal.states import MOVING, TERMINAL, RunState, RunStatus

REFRESH_SECONDS = 1.0
SHARE = 20
"""An estimate of a very large graph takes a while: no more than this part of the time is spent on it."""
MOST_OVERDUE = 3
"""How many nodes are named that take longer than ever."""

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


class Forecast:
    """Estimates a run that is watched, no more often than it is worth while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: Estimate = NOTHING
        self._next = float("-inf")

    def of(self, watch: Watch) -> Estimate:
        """Return what can be said of the run, perhaps a moment ago."""
        began = self._clock.monotonic()
        if began >= self._next:
            self._last = watch.estimate(now=self._clock.now_micros())
            cost = self._clock.monotonic() - began
            self._next = began + max(REFRESH_SECONDS, SHARE * cost)
        return self._last

    def line(self, watch: Watch) -> str:
        """Return it in words; nothing if the run has ended."""
        if watch.run.status in TERMINAL:  # what was said a moment ago is not true any more
            return ""
        return forecast_line(self.of(watch), watch.run, is_driven=True)


def forecast_line(estimate: Estimate, run: RunState, *, is_driven: bool) -> str:
    """Return an estimate as `62 %, about 3 min left (2 to 5 min, by 12 earlier runs)`; nothing if there is none."""
    runs = None if estimate.based_on is None else counted(estimate.based_on, "earlier run")
    told = ", ".join(_parts(estimate, is_held_up=_is_held_up(run, is_driven=is_driven)))
    if runs is None or not told:
        return ""
    line = f"{told} ({', '.join((*_band(estimate), f'by {runs}'))})"
    if estimate.overdue:
        line += f"; {_names(estimate)} longer than in any of them"
    return line


def roughly(micros: int) -> tuple[str, str]:
    """Return a length of time as a number and a unit, as exactly as a person would say it: `40 s`, `3 min`, `1.5 h`."""
    seconds = micros / 1_000_000
    if seconds < 10:
        return str(max(round(seconds), 1)), "s"
    if seconds < 1.5 * _MINUTE:
        return str(5 * round(seconds / 5)), "s"
    if seconds < 1.5 * _HOUR:
        return str(round(seconds / _MINUTE)), "min"
    unit, size = ("h", _HOUR) if seconds < 1.5 * _DAY else ("d", _DAY)
    return f"{round(2 * seconds / size) / 2:g}", unit


def _parts(estimate: Estimate, *, is_held_up: bool) -> Iterator[str]:
    if estimate.percent is not None:
        yield f"{min(int(estimate.percent), 99)} %"
    if estimate.remaining is not None:
        work = " of work" if estimate.waits and not is_held_up else ""
        later = " when it goes on" if is_held_up else ""
        yield f"about {' '.join(roughly(estimate.remaining.about))}{work} left{later}"


def _band(estimate: Estimate) -> Iterator[str]:
    if estimate.remaining is None:
        return
    low, high = roughly(estimate.remaining.low), roughly(estimate.remaining.high)
    if low != high:
        first = low[0] if low[1] == high[1] else " ".join(low)
        yield f"{first} to {' '.join(high)}"


def _names(estimate: Estimate) -> str:
    named = [plain(node_id) for node_id in estimate.overdue[:MOST_OVERDUE]]
    if more := len(estimate.overdue) - len(named):
        named.append(counted(more, "more node"))
    return f"{', '.join(named)} {'takes' if len(estimate.overdue) == 1 else 'take'}"


def _is_held_up(run: RunState, *, is_driven: bool) -> bool:
    """Whether nothing happens until somebody does something."""
    if run.status in MOVING:
        return not is_driven
    return run.status is not RunStatus.SUSPENDED or run.wake_at is None
