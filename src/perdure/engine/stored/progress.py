"""How far runs have come, how long the rest of them takes, and how long their nodes took: for whoever looks at one.

Everything here reads one store, and needs none of the run's code.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.graph.model import Graph
from perdure.ids import NodeId, Seq
from perdure.journal.estimate import NOTHING, Estimate, Estimator, runs_to_look_at, waits_now
from perdure.journal.headway import Headway, Headways
from perdure.journal.moments import moment_of
from perdure.journal.pace import Pace
from perdure.journal.states import SETTLED, WAITING, RunState, RunStatus
from perdure.journal.times import by_node, took
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

EVENTS_PER_PAGE = 1_000
WHOLE = 100.0
ALMOST_WHOLE = 99.9
"""A run that has not completed is never whole."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come. What is not known is None: nothing is said by fewer than three earlier runs of the same version."""

    done: int
    """How many of its nodes are completed or skipped."""
    total: int
    percent: float | None = None
    """How much of the work is done, by the time that its nodes usually take."""
    remaining_seconds: float | None = None
    """How long the rest will take, without the time in which the run waits for people and signals. None if the run has ended, and
    while something endless is at work or all hangs on a node that takes longer than ever."""
    remaining_low_seconds: float | None = None
    remaining_high_seconds: float | None = None
    """The band in which that lies in most cases."""
    based_on_runs: int | None = None
    """How many earlier runs tell so."""
    overdue: tuple[NodeId, ...] = ()
    """Nodes that take longer than in any of these."""
    waits: bool = False
    """Whether the run waits for people or signals, or is likely to before it ends."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run beside its rows. Times are in microseconds."""

    estimate: Estimate = NOTHING
    took: Mapping[NodeId, int] = {}
    """How long nodes have worked in their last attempts, without waiting for people and signals."""
    usual: Mapping[NodeId, int] = {}
    """How long they do so usually."""


async def load_estimator(store: Store, run: RunState, graph: Graph | None) -> Estimator:
    """Return what earlier runs of the same version tell about a run."""
    limit = 0 if graph is None else runs_to_look_at(graph)
    past = await store.past_runs(run.workflow, run.version, limit=limit + 1) if limit else ()
    return Estimator(graph, [other for other in past if other.run_id != run.run_id][:limit])


async def load_pace(store: Store, stored: StoredRun) -> Pace:
    """Return how fast the streams of a run flow. The log of a run that has none is not read."""
    pace, after = Pace(), Seq(0)
    if all(node.stream is None for node in stored.nodes):
        return pace
    while page := await store.load_events(stored.run.run_id, after=after, limit=EVENTS_PER_PAGE):
        for entry in page:
            pace.hear(entry.event, at=entry.at)
        after = page[-1].seq
    return pace


def headway_of(stored: StoredRun, graph: Graph | None, pace: Pace, *, now: int | None) -> dict[NodeId, Headway]:
    """Return how far the nodes have come that give streams. `now` is the present if an engine drives the run, else None."""
    states = {node.node_id: node for node in stored.nodes}
    headways = Headways(graph)
    found = {name: headways.of(name, states, stored.run.inputs, pace, now=now) for name in states}
    return {name: headway for name, headway in found.items() if headway is not None}


def outlook_of(
    stored: StoredRun,
    graph: Graph | None,
    estimator: Estimator,
    streams: Mapping[NodeId, Headway],
    pace: Pace,
    *,
    now: int,
    is_driven: bool,
) -> Outlook:
    """Return what can be said of a run as it stands."""
    nodes = {node.node_id: node for node in stored.nodes}
    waits = by_node(stored.waits)
    present = now if is_driven or stored.run.status in WAITING else None
    spent = {name: took(node, waits.get(name, ()), now=present) for name, node in nodes.items()}
    usual = {name: estimator.usual(name) for name in (node.id for node in graph.nodes)} if graph is not None else {}
    estimate = NOTHING
    if graph is not None and estimator.knows_enough:
        estimate = estimator.estimate(
            moment_of(stored.run, nodes, stored.waits, streams, pace, graph, now=now, is_driven=is_driven)
        )
    return Outlook(
        estimate=estimate,
        took={name: micros for name, micros in spent.items() if micros is not None},
        usual={name: micros for name, micros in usual.items() if micros is not None},
    )


def progress_of(stored: StoredRun, graph: Graph | None, estimate: Estimate) -> Progress:
    """Return how far a run has come, as other programs read it."""
    remaining, percent = estimate.remaining, estimate.percent
    if stored.run.status is RunStatus.COMPLETED:
        percent = WHOLE
    elif percent is not None:
        percent = min(round(percent, 1), ALMOST_WHOLE)
    return Progress(
        done=sum(node.status in SETTLED for node in stored.nodes),
        total=len(stored.nodes) if graph is None else len(graph.nodes),
        percent=percent,
        remaining_seconds=None if remaining is None else seconds(remaining.about),
        remaining_low_seconds=None if remaining is None else seconds(remaining.low),
        remaining_high_seconds=None if remaining is None else seconds(remaining.high),
        based_on_runs=estimate.based_on,
        overdue=estimate.overdue,
        waits=estimate.waits or waits_now(stored.run.status, stored.waits),
    )


async def progress_now(store: Store, stored: StoredRun, graph: Graph, *, now: int, is_driven: bool) -> Progress:
    """Return how far a run has come."""
    estimator = await load_estimator(store, stored.run, graph)
    pace = await load_pace(store, stored) if estimator.knows_enough else Pace()
    streams = headway_of(stored, graph, pace, now=now if is_driven else None)
    outlook = outlook_of(stored, graph, estimator, streams, pace, now=now, is_driven=is_driven)
    return progress_of(stored, graph, outlook.estimate)


def seconds(micros: int) -> float:
    """Return a length of time in seconds, to the millisecond."""
    return round(micros / 1_000_000, 3)
