"""How far a run has come, and how long the rest of it will take, by what earlier runs of the same version took.

Each earlier run is a scenario: what is left of this run is laid out along its graph with the times of that run, and the longest
way through it is what would remain. The middle of the scenarios is the estimate, their spread the band. Nothing is said where too
few runs are known, where something endless is at work, or where all hangs on a node that has never taken so long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perdure.graph.model import Graph
from perdure.ids import NodeId
from perdure.journal.moments import Items, Moment
from perdure.journal.scenarios import BEGUN, Scenario, Shape, View, is_waiting
from perdure.journal.states import TERMINAL, NodeStatus, RunStatus, WaitState
from perdure.journal.times import PastRun

LEAST_RUNS = 3
"""Fewer earlier runs tell nothing."""
MOST_RUNS = 20
"""More do not tell more, and what is long ago may be different."""
MOST_TIMES = 20_000
"""How many times of nodes are looked at: of large graphs, those of fewer runs."""
MOST_NODES = 10_000
"""Larger graphs are not estimated: what three runs of them took is more than can be looked at once a second."""
LOWER, UPPER = 0.1, 0.9
"""Which part of the scenarios the band leaves out below, and up to where it goes."""
MARGIN = 0.1
"""The band is never narrower than this part of the estimate to either side: that runs were alike does not make them equal."""
OVERDUE = 1.1
OVERDUE_MICROS = 1_000_000
"""A node that has taken so many times as long as ever before, and so much longer, takes longer than ever."""
TRUSTED_ITEMS = 10
"""When so many items are done, their pace counts as much as that of earlier runs; when more are, more."""

_HOPELESS = frozenset((*TERMINAL, RunStatus.FAILING, RunStatus.CANCELLING, RunStatus.QUARANTINED))


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """How long something will take, in microseconds."""

    about: int
    low: int
    high: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a run that has not ended."""

    percent: float | None = None
    """How much of the work is done, by the time that it usually takes."""
    remaining: Remaining | None = None
    """How long the rest takes, without the time in which the run waits for people and signals."""
    based_on: int | None = None
    """How many earlier runs that is known from."""
    overdue: tuple[NodeId, ...] = ()
    """Nodes that take longer than in any of these runs."""
    waits: bool = False
    """Whether the run waits for people or signals, or earlier runs did where this one has yet to come."""


NOTHING = Estimate()


def runs_to_look_at(graph: Graph) -> int:
    """Return how many earlier runs of a graph tell enough about another one; 0 if it is too large to be estimated."""
    size = len(graph.nodes)
    return max(min(MOST_RUNS, MOST_TIMES // max(size, 1)), LEAST_RUNS) if size <= MOST_NODES else 0


class Estimator:
    """Estimates runs of one graph by earlier ones. What does not change from one moment to the next is made ready once."""

    def __init__(self, graph: Graph | None, past: Sequence[PastRun]) -> None:
        self._shape = Shape(graph) if graph is not None else None
        is_thin = graph is None or len(past) < LEAST_RUNS
        self._scenarios = [] if self._shape is None or is_thin else [Scenario(self._shape, run) for run in past]
        self._fill_gaps()
        self._weights: dict[tuple[int, ...], list[int]] = {}

    @property
    def knows_enough(self) -> bool:
        return bool(self._scenarios)

    def usual(self, node_id: NodeId) -> int | None:
        """Return how long a node usually works; None if too few runs tell. Those in which it was skipped tell nothing."""
        if self._shape is None or (place := self._shape.places.get(node_id)) is None:
            return None
        known = [time.worked for run in self._scenarios if (time := run.times[place]) is not None]
        return _middle(known) if len(known) >= LEAST_RUNS else None

    def estimate(self, moment: Moment) -> Estimate:
        """Return what can be said of a run as it stands."""
        if self._shape is None or not self._scenarios:
            return NOTHING
        view = View(self._shape, moment)
        chosen = self._alike(view)
        scenarios = [self._scenarios[number] for number in chosen]
        remaining, overdue = _remaining(view, scenarios, self._scenarios)
        return Estimate(
            percent=self._percent(view, chosen),
            remaining=remaining,
            based_on=len(scenarios),
            overdue=overdue,
            waits=moment.status not in _HOPELESS and _waits(view, scenarios),
        )

    def _fill_gaps(self) -> None:
        """Take the time of other runs where a node has given something without running, because somebody has said so."""
        for run in self._scenarios:
            for place in run.unknown:
                if known := _worked(place, self._scenarios):
                    run.took[place] = run.lengths[place] = _middle(known)

    def _alike(self, view: View) -> tuple[int, ...]:
        """Return the runs that have skipped what this one has skipped, and no other of what it has settled; all if these are too
        few."""
        settled = [(place, view.status(place) is NodeStatus.SKIPPED) for place in view.settled]
        alike = tuple(
            number
            for number, run in enumerate(self._scenarios)
            if all((place not in run.ran) == was_skipped for place, was_skipped in settled)
        )
        return alike if len(alike) >= LEAST_RUNS else tuple(range(len(self._scenarios)))

    def _percent(self, view: View, chosen: tuple[int, ...]) -> float | None:
        if not view.unfinished and view.is_fed:
            return None
        if (weights := self._weights.get(chosen)) is None:
            runs = [self._scenarios[number] for number in chosen]
            weights = [_middle([run.took[place] for run in runs]) for place in range(len(view.shape.order))]
            self._weights = {chosen: weights}
        total = sum(weight for place, weight in enumerate(weights) if place not in view.endless)
        if not total:
            return None
        whole = sum(weights[place] for place in view.settled)
        partly = sum(weights[place] * view.share(place, weights[place]) for place in view.unfinished)
        return 100 * (whole + partly) / total


def _remaining(
    view: View, scenarios: Sequence[Scenario], everything: Sequence[Scenario]
) -> tuple[Remaining | None, tuple[NodeId, ...]]:
    """Return how long the rest of a run takes, and which nodes take longer than ever."""
    if view.moment.status in _HOPELESS or view.is_fed:
        return None, ()
    if any(view.status(place) is NodeStatus.IN_DOUBT for place in view.unfinished):
        return None, ()
    lefts: dict[int, Sequence[int]] = {}
    overdue: list[int] = []
    for place in view.unfinished:
        if view.status(place) is NodeStatus.IDLE:
            continue
        expected = _worked(place, scenarios)
        if len(expected) < LEAST_RUNS and len(expected := _worked(place, everything)) < LEAST_RUNS:
            return None, ()
        worked = view.worked(place)
        if _is_overdue(view, place, worked, expected):
            overdue.append(place)
        lefts[place] = _lefts(view, place, worked, expected, scenarios)
    named = tuple(view.shape.order[place] for place in overdue)
    found = sorted(_longest(view, scenario, lefts, number) for number, scenario in enumerate(scenarios))
    if overdue:
        again: dict[int, Sequence[int]] = {
            place: [view.worked(place)] * len(scenarios) if place in overdue else left for place, left in lefts.items()
        }
        worse = sorted(_longest(view, scenario, again, number) for number, scenario in enumerate(scenarios))
        if worse != found:
            return None, named
    return _band(found), named


def waits_now(status: RunStatus, waits: Iterable[WaitState]) -> bool:
    """Whether a run waits for people or signals as it stands, whatever is known of others."""
    return status not in _HOPELESS and is_waiting(status, waits)


def _waits(view: View, scenarios: Sequence[Scenario]) -> bool:
    """Whether a run waits for something from outside, or others did where it has yet to come."""
    return view.waits_now or any(run.waited[place] for run in scenarios for place in view.unfinished)


def _worked(place: int, scenarios: Sequence[Scenario]) -> list[int]:
    """Return how long a node has worked where it did."""
    return [time.worked for scenario in scenarios if (time := scenario.times[place]) is not None]


def _is_overdue(view: View, place: int, worked: int, expected: Sequence[int]) -> bool:
    items = view.items(place)
    is_counted = items is not None and items.total is not None
    if view.status(place) is not NodeStatus.RUNNING or is_counted or view.sleeps_for(place) or view.reads(place):
        return False
    return worked > max(expected) * OVERDUE + OVERDUE_MICROS


def _lefts(
    view: View, place: int, worked: int, expected: Sequence[int], scenarios: Sequence[Scenario]
) -> Sequence[int]:
    """Return, for each scenario, how long a node that is certain to run has yet to work."""
    node, now = view.node(place), view.moment.now
    if node.status is NodeStatus.SCHEDULED:
        usual = _middle(expected)
        delay = max(node.due - now, 0) if node.due is not None else 0
        ready_for = now - node.scheduled_at if node.scheduled_at is not None and view.moment.is_driven else 0
        return [
            delay + usual if time is None else delay + max(time.queued - ready_for, 0) + time.worked
            for time in (scenario.times[place] for scenario in scenarios)
        ]
    items = view.items(place)
    if items is not None and items.total is not None:
        return _lefts_by_items(place, items, items.total, expected, scenarios)
    # What it has worked already rules out the runs in which it had ended by then: the others say how it goes on.
    longer = [took for took in expected if took > worked]
    usual = _middle(longer) if longer else worked
    least = view.sleeps_for(place)
    return [
        max((time.worked if time is not None and time.worked > worked else usual) - worked, least)
        for time in (scenario.times[place] for scenario in scenarios)
    ]


def _lefts_by_items(
    place: int, items: Items, total: int, expected: Sequence[int], scenarios: Sequence[Scenario]
) -> list[int]:
    """Return, for each scenario, how long the items take that are left: at the pace of that run, and the more are done, the more
    at that of this one."""
    left = max(total - items.done, 0)
    times = [scenario.times[place] for scenario in scenarios]
    paces = [time.worked / time.items if time is not None and time.items else None for time in times]
    known = sorted(pace for pace in paces if pace is not None)
    usual = known[len(known) // 2] if known else _middle(expected) / max(total, 1)
    own = items.seconds * 1_000_000 / items.done if items.seconds and items.done else None
    found: list[int] = []
    for pace in paces:
        past = usual if pace is None else pace
        blended = past
        if own is not None:
            trust = items.done / (items.done + TRUSTED_ITEMS)
            blended = trust * own * past / usual + (1 - trust) * past
        found.append(int(left * blended))
    return found


def _longest(view: View, scenario: Scenario, lefts: Mapping[int, Sequence[int]], number: int) -> int:
    """Return when the last node will have ended, from now, if things go on as they did in an earlier run."""
    shape = view.shape
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for place in view.unfinished:  # in the order of dependencies
        begin = 0
        left = lefts.get(place)
        beside = shape.beside[place]
        if view.status(place) not in BEGUN:
            for source in shape.before[place]:
                begin = max(begin, ends.get(source, 0))
            for source, is_streamed in beside:
                if not scenario.overlaps(source, place):
                    begin = max(begin, ends.get(source, 0))
                elif is_streamed:
                    begin = max(begin, begins.get(source, 0))
        end = begin + (scenario.lengths[place] if left is None else left[number])
        for source, is_streamed in beside:
            if is_streamed:
                end = max(end, ends.get(source, 0))
        begins[place], ends[place] = begin, end
    return max(ends.values(), default=0)


def _band(found: Sequence[int]) -> Remaining:
    """Return the middle and the spread of what scenarios say, in order."""
    last = len(found) - 1
    about = _middle(found)
    low, high = found[math.floor(LOWER * last)], found[math.ceil(UPPER * last)]
    return Remaining(about=about, low=min(low, int(about * (1 - MARGIN))), high=max(high, int(about * (1 + MARGIN))))


def _middle(values: Sequence[int]) -> int:
    """Return the median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2
