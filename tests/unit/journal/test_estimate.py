"""What earlier runs tell about one that goes on, from histories that are made up: pure, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from perdure.graph.model import Edge, EdgeMode, Graph, Node
from perdure.ids import BranchId, NodeId, RunId
from perdure.journal.estimate import (
    LEAST_RUNS,
    MOST_NODES,
    MOST_RUNS,
    MOST_TIMES,
    NOTHING,
    Estimate,
    Estimator,
    Remaining,
    runs_to_look_at,
)
from perdure.journal.moments import Items, Moment
from perdure.journal.states import NodeState, NodeStatus, RunStatus, WaitKind, WaitState, WaitStatus
from perdure.journal.times import LEAST_MICROS, PastNode, PastRun, PastWait, covered

SECOND = 1_000_000
NOW = 10_000 * SECOND

Span = tuple[float, float]
"""When a node of an earlier run began, and when it ended, in seconds."""


def graph(*edges: str, nodes: str = "abcd") -> Graph:
    """Return a graph from edges such as `a>b`, or `a map b`."""
    built: list[Edge] = []
    for number, text in enumerate(edges):
        source, mode, target = text.partition(">") if ">" in text else text.split()
        chosen: EdgeMode | None = None if mode == ">" else mode  # pyright: ignore[reportAssignmentType]
        built.append(
            Edge(id=f"e{number}", source=NodeId(source), target=NodeId(target), target_handle=f"h{number}", mode=chosen)
        )
    return Graph(name="g", nodes=tuple(Node(id=NodeId(name), type="t.work") for name in nodes), edges=tuple(built))


CHAIN = graph("a>b", "b>c", "c>d")
DIAMOND = graph("a>b", "a>c", "b>d", "c>d")


def past(
    *,
    queued: float = 0,
    items: Mapping[str, int] | None = None,
    waits: Sequence[PastWait] = (),
    given: str = "",
    a: Span | None = None,
    b: Span | None = None,
    c: Span | None = None,
    d: Span | None = None,
) -> PastRun:
    spans = {name: span for name, span in {"a": a, "b": b, "c": c, "d": d}.items() if span is not None}
    nodes = [
        PastNode(
            node_id=NodeId(name),
            scheduled_at=int((start - queued) * SECOND),
            started_at=int(start * SECOND),
            ended_at=int(end * SECOND),
            duration_ms=None if name in given else int((end - start) * 1_000),
            items=(items or {}).get(name),
        )
        for name, (start, end) in spans.items()
    ]
    return PastRun(run_id=RunId("p"), nodes=tuple(nodes), waits=tuple(waits))


def chains(*lengths: Sequence[float]) -> list[PastRun]:
    """Return earlier runs of a chain, each from what its nodes took, as far as they ran."""
    runs: list[PastRun] = []
    for took in lengths:
        ends = [sum(took[: place + 1]) for place in range(len(took))]
        spans = [(end - length, end) for end, length in zip(ends, took, strict=True)]
        a, b, c, d = (*spans, None, None, None)[:4]
        runs.append(past(a=a, b=b, c=c, d=d))
    return runs


ALIKE = chains(*[(10, 20, 30, 40)] * 5)


def node(name: str, status: NodeStatus, *, since: float = 0, due: float | None = None) -> NodeState:
    began = NOW - int(since * SECOND)
    return NodeState(
        node_id=NodeId(name),
        branch_id=BranchId(1),
        status=status,
        attempt=1,
        scheduled_at=began,
        started_at=None if status is NodeStatus.SCHEDULED else began,
        due=None if due is None else NOW + int(due * SECOND),
    )


def running(name: str, since: float) -> NodeState:
    return node(name, NodeStatus.RUNNING, since=since)


def done(*names: str) -> list[NodeState]:
    return [node(name, NodeStatus.COMPLETED) for name in names]


def moment(
    *nodes: NodeState,
    status: RunStatus = RunStatus.RUNNING,
    waits: Sequence[WaitState] = (),
    items: Mapping[str, Items] | None = None,
    endless: str = "",
    is_driven: bool = True,
) -> Moment:
    return Moment(
        status=status,
        nodes={state.node_id: state for state in nodes},
        waits=waits,
        items={NodeId(name): found for name, found in (items or {}).items()},
        endless={NodeId(name) for name in endless},
        now=NOW,
        is_driven=is_driven,
    )


def seconds(estimate: Estimate) -> tuple[float, float, float]:
    assert estimate.remaining is not None
    remaining = estimate.remaining
    return remaining.low / SECOND, remaining.about / SECOND, remaining.high / SECOND


def about(estimate: Estimate) -> float:
    return seconds(estimate)[1]


# Chains and diamonds


def test_nodes_weigh_as_much_as_they_usually_take():
    estimate = Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b"), running("c", 15)))

    assert estimate.percent == pytest.approx(45)
    assert about(estimate) == pytest.approx(55)
    assert (estimate.based_on, estimate.overdue, estimate.waits) == (5, (), False)


def test_what_remains_is_the_longest_way_and_not_the_sum():
    runs = [past(a=(0, 10), b=(10, 40), c=(10, 110), d=(110, 115)) for _ in range(3)]

    estimate = Estimator(DIAMOND, runs).estimate(moment(*done("a"), running("b", 0), running("c", 0)))

    assert about(estimate) == pytest.approx(105)
    assert estimate.percent == pytest.approx(100 * 10 / 145)


def test_each_earlier_run_is_a_scenario_of_its_own():
    """In none of the runs were both long: a sum of what nodes take at most would tell of something that never was."""
    runs = chains((1, 10, 90, 1), (1, 90, 10, 1), (1, 50, 50, 1))

    low, middle, high = seconds(Estimator(CHAIN, runs).estimate(moment(*done("a"))))

    assert middle == pytest.approx(101)
    assert (low, high) == (pytest.approx(90.9), pytest.approx(111.1))


def test_the_band_leaves_out_the_extremes_of_many_runs_and_holds_all_of_few():
    few = chains(*[(1, 1, 1, length) for length in (10, 20, 60)])
    many = chains(*[(1, 1, 1, length) for length in (1, *range(100, 118), 900)])
    stands = moment(*done("a", "b", "c"))

    assert seconds(Estimator(CHAIN, few).estimate(stands)) == (10, 20, 60)
    low, middle, high = seconds(Estimator(CHAIN, many).estimate(stands))
    assert (low, high) == (pytest.approx(97.65), pytest.approx(119.35))
    assert middle == pytest.approx(108.5)


def test_runs_that_were_quite_alike_do_not_promise_that_the_next_one_is():
    low, middle, high = seconds(Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b", "c"))))

    assert (low, middle, high) == (pytest.approx(36), pytest.approx(40), pytest.approx(44))


def test_waiting_for_a_place_is_part_of_the_way():
    runs = [past(queued=5, a=(5, 15), b=(20, 30), c=(35, 45), d=(50, 60)) for _ in range(3)]
    estimator = Estimator(CHAIN, runs)

    assert about(estimator.estimate(moment(*done("a", "b")))) == pytest.approx(30)
    ready = node("c", NodeStatus.SCHEDULED, since=3)
    assert about(estimator.estimate(moment(*done("a", "b"), ready))) == pytest.approx(27)
    assert estimator.estimate(moment(*done("a", "b"), ready)).percent == pytest.approx(50)


def test_a_retry_that_waits_for_its_time_is_waited_for():
    again = node("d", NodeStatus.SCHEDULED, due=100)

    assert about(Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b", "c"), again))) == pytest.approx(140)


# What is not known


@pytest.mark.parametrize("runs", [[], ALIKE[:1], ALIKE[:2]])
def test_nothing_is_said_by_two_runs(runs: list[PastRun]):
    estimator = Estimator(CHAIN, runs)

    assert estimator.estimate(moment(*done("a"), running("b", 1))) == NOTHING
    assert estimator.usual(NodeId("a")) is None
    assert not estimator.knows_enough


def test_nothing_is_said_of_a_graph_that_is_gone():
    assert Estimator(None, ALIKE).estimate(moment()) == NOTHING
    assert Estimator(None, ALIKE).usual(NodeId("a")) is None


def test_of_large_graphs_fewer_runs_are_looked_at_and_of_too_large_ones_none():
    def of_size(size: int) -> int:
        nodes = tuple(Node(id=NodeId(f"n{number}"), type="t") for number in range(size))
        return runs_to_look_at(Graph(name="g", nodes=nodes))

    assert of_size(0) == of_size(MOST_TIMES // MOST_RUNS) == MOST_RUNS
    assert of_size(MOST_TIMES // 5) == 5
    assert of_size(MOST_NODES) == LEAST_RUNS
    assert of_size(MOST_NODES + 1) == 0


@pytest.mark.parametrize(
    "status",
    [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.FAILING, RunStatus.CANCELLING, RunStatus.QUARANTINED],
)
def test_what_does_not_go_on_has_nothing_left(status: RunStatus):
    estimate = Estimator(CHAIN, ALIKE).estimate(moment(*done("a"), status=status))

    assert estimate.remaining is None
    assert estimate.percent == pytest.approx(10)


def test_a_node_in_doubt_holds_everything_up():
    doubted = node("b", NodeStatus.IN_DOUBT)

    assert Estimator(CHAIN, ALIKE).estimate(moment(*done("a"), doubted)).remaining is None


def test_a_node_that_no_run_has_reached_before_is_unknown():
    runs = chains(*[(10, 20, 30)] * 5)

    estimator = Estimator(CHAIN, runs)

    assert estimator.estimate(moment(*done("a", "b", "c"), running("d", 1))).remaining is None
    assert about(estimator.estimate(moment(*done("a", "b"), running("c", 1)))) == pytest.approx(29)


def test_what_has_failed_takes_nothing_more_and_neither_does_what_depends_on_it():
    runs = [past(a=(0, 10), b=(10, 40), c=(10, 110), d=(110, 500)) for _ in range(3)]
    failed = node("c", NodeStatus.FAILED)

    estimate = Estimator(DIAMOND, runs).estimate(moment(*done("a"), running("b", 10), failed))

    assert about(estimate) == pytest.approx(20)


# Nodes that take long


def test_what_a_node_has_worked_rules_out_the_runs_in_which_it_had_ended():
    runs = chains(*[(10, 20, 30, length) for length in (5, 5, 5, 100, 120)])

    low, middle, high = seconds(Estimator(CHAIN, runs).estimate(moment(*done("a", "b", "c"), running("d", 60))))

    assert (low, high) == (pytest.approx(40), pytest.approx(60))
    assert middle == pytest.approx(50)


def test_nothing_is_said_while_all_hangs_on_a_node_that_takes_longer_than_ever():
    estimator = Estimator(CHAIN, ALIKE)

    late = estimator.estimate(moment(*done("a", "b"), running("c", 60)))

    assert late.remaining is None
    assert late.overdue == ("c",)
    assert late.percent == pytest.approx(30 + 30 * 0.99)


def test_a_little_longer_than_ever_is_no_news():
    slightly = Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b"), running("c", 33)))

    assert slightly.overdue == ()
    assert about(slightly) == pytest.approx(40)


def test_a_node_that_takes_longer_than_ever_beside_one_that_takes_longer_still_changes_nothing():
    runs = [past(a=(0, 10), b=(10, 15), c=(10, 1_000), d=(1_000, 1_010)) for _ in range(3)]

    estimate = Estimator(DIAMOND, runs).estimate(moment(*done("a"), running("b", 30), running("c", 30)))

    assert about(estimate) == pytest.approx(970)
    assert estimate.overdue == ("b",)


# What was skipped


def test_nodes_that_were_skipped_count_as_done_and_take_no_time():
    runs = [past(a=(0, 10), b=(10, 30), c=(30, 60), d=(60, 100)) for _ in range(3)]
    estimator = Estimator(CHAIN, runs)

    estimate = estimator.estimate(moment(*done("a"), node("b", NodeStatus.SKIPPED), running("c", 0)))

    assert estimate.percent == pytest.approx(30)
    assert about(estimate) == pytest.approx(70)


def test_a_node_that_earlier_runs_have_skipped_takes_nothing():
    runs = [*chains(*[(10, 20)] * 4), *chains((10, 20, 30, 40))]
    estimator = Estimator(CHAIN, runs)

    low, middle, high = seconds(estimator.estimate(moment(*done("a"))))

    assert (low, middle, high) == (pytest.approx(18), pytest.approx(20), pytest.approx(90))
    assert estimator.usual(NodeId("b")) == 20 * SECOND
    assert estimator.usual(NodeId("d")) is None


def test_runs_count_that_went_the_same_way():
    quick = [past(a=(0, 10), b=(10, 20), d=(20, 25)) for _ in range(9)]
    slow = [past(a=(0, 10), c=(10, 510), d=(510, 515)) for _ in range(3)]
    estimator = Estimator(graph("a when b", "a unless c", "b first d", "c first d"), [*quick, *slow])

    slowly = estimator.estimate(moment(*done("a"), node("b", NodeStatus.SKIPPED), running("c", 100)))

    assert slowly.based_on == 3
    assert about(slowly) == pytest.approx(405)
    assert slowly.percent == pytest.approx(100 * 110 / 515)
    assert estimator.estimate(moment(*done("a"))).based_on == 12


def test_nothing_is_said_of_a_way_that_too_few_runs_have_gone():
    quick = [past(a=(0, 10), b=(10, 20), d=(20, 25)) for _ in range(9)]
    slow = [past(a=(0, 10), c=(10, 510), d=(510, 515)) for _ in range(2)]
    estimator = Estimator(graph("a when b", "a unless c", "b first d", "c first d"), [*quick, *slow])

    slowly = estimator.estimate(moment(*done("a"), node("b", NodeStatus.SKIPPED), running("c", 100)))

    assert (slowly.based_on, slowly.remaining) == (11, None)


def test_a_node_that_was_said_to_have_given_something_takes_what_it_takes_elsewhere():
    runs = [*ALIKE[:2], past(given="d", a=(0, 10), b=(10, 30), c=(30, 60), d=(60, 60))]

    assert seconds(Estimator(CHAIN, runs).estimate(moment(*done("a", "b", "c")))) == (36, 40, 44)


# Waiting


def wait(name: str, kind: WaitKind, *, since: float, until: float | None = None, due: float | None = None) -> WaitState:
    return WaitState(
        wait_id="w",
        node_id=NodeId(name),
        branch_id=BranchId(1),
        kind=kind,
        name="n",
        status=WaitStatus.OPEN if until is None else WaitStatus.SETTLED,
        opened_at=NOW - int(since * SECOND),
        settled_at=None if until is None else NOW - int(until * SECOND),
        due=None if due is None else NOW + int(due * SECOND),
    )


def waited(kind: WaitKind, start: float, end: float, name: str = "b") -> PastWait:
    return PastWait(node_id=NodeId(name), kind=kind, opened_at=int(start * SECOND), settled_at=int(end * SECOND))


def test_waiting_for_people_and_signals_is_no_work():
    waits = [waited(WaitKind.ASK, 15, 900), waited(WaitKind.SIGNAL, 800, 990)]
    runs = [past(waits=waits, a=(0, 10), b=(10, 1_000), c=(1_000, 1_030)) for _ in range(3)]
    estimator = Estimator(CHAIN, runs)

    before = estimator.estimate(moment(*done("a")))
    asking = estimator.estimate(
        moment(*done("a"), node("b", NodeStatus.SUSPENDED, since=5_000), waits=[wait("b", WaitKind.ASK, since=4_995)])
    )
    answered = estimator.estimate(
        moment(*done("a"), running("b", 5_000), waits=[wait("b", WaitKind.ASK, since=4_995, until=8)])
    )

    assert estimator.usual(NodeId("b")) == 15 * SECOND
    assert (about(before), before.waits) == (pytest.approx(45), True)
    assert not estimator.estimate(moment(*done("a"), status=RunStatus.FAILED)).waits
    assert (about(asking), asking.waits, asking.overdue) == (pytest.approx(40), True, ())
    assert about(answered) == pytest.approx(32)
    after = estimator.estimate(moment(*done("a", "b"), running("c", 1)))
    assert not after.waits


def test_a_run_may_wait_where_no_other_has():
    estimator = Estimator(CHAIN, ALIKE)
    asks = wait("b", WaitKind.ASK, since=5)

    assert estimator.estimate(moment(*done("a"), running("b", 10), waits=[asks])).waits
    assert estimator.estimate(moment(*done("a"), status=RunStatus.PAUSED)).waits
    assert not estimator.estimate(moment(*done("a"), running("b", 10))).waits


def test_sleeping_takes_its_time_and_a_time_that_is_known_counts():
    runs = [past(waits=[waited(WaitKind.SLEEP, 10, 110)], a=(0, 10), b=(10, 110), c=(110, 120)) for _ in range(3)]
    estimator = Estimator(CHAIN, runs)
    asleep = node("b", NodeStatus.SUSPENDED, since=30)

    usual = estimator.estimate(moment(*done("a"), asleep, waits=[wait("b", WaitKind.SLEEP, since=30, due=70)]))
    longer = estimator.estimate(moment(*done("a"), asleep, waits=[wait("b", WaitKind.SLEEP, since=30, due=500)]))
    warm = estimator.estimate(
        moment(*done("a"), running("b", 130), waits=[wait("b", WaitKind.SLEEP, since=130, due=9)])
    )

    assert about(usual) == pytest.approx(80)
    assert about(longer) == pytest.approx(510)
    assert (about(warm), warm.overdue) == (pytest.approx(19), ())
    assert not usual.waits


def test_what_runs_while_nobody_drives_it_will_be_begun_again():
    left = Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b"), running("c", 25), is_driven=False))

    assert about(left) == pytest.approx(70)
    assert left.percent == pytest.approx(30)


def test_spans_that_overlap_count_once():
    assert covered([(5, 9), (1, 3), (2, 6), (0, 1), (8, 20)], 2, 10) == 8
    assert covered([(20, 30)], 2, 10) == 0


def test_a_node_that_ran_has_taken_some_time():
    runs = [past(a=(0, 0)) for _ in range(3)]

    assert Estimator(CHAIN, runs).usual(NodeId("a")) == LEAST_MICROS


# Streams


STREAM = graph("a map b", "b stream c", "c>d")
FLOWED = [past(items={"a": 100, "b": 100, "c": 0}, a=(0, 90), b=(1, 100), c=(2, 101), d=(101, 111)) for _ in range(3)]


def test_nodes_that_work_at_once_do_not_follow_each_other():
    estimate = Estimator(STREAM, FLOWED).estimate(moment(running("a", 50), running("b", 49), running("c", 48)))

    assert about(estimate) == pytest.approx(61)


def test_a_stream_that_has_yet_to_begin_ends_after_its_source():
    estimate = Estimator(STREAM, FLOWED).estimate(moment(running("a", 0)))

    assert about(estimate) == pytest.approx(109)


def test_a_reader_of_a_stream_that_takes_longer_waits_for_it():
    stands = moment(
        running("a", 0),
        running("b", 95),
        running("c", 95),
        items={"a": Items(done=0, total=100, seconds=None)},
    )

    assert about(Estimator(STREAM, FLOWED).estimate(stands)) == pytest.approx(100)


def test_who_reads_a_stream_that_takes_long_is_not_to_blame():
    stands = moment(
        *done("a"), running("b", 900), running("c", 900), items={"b": Items(done=90, total=100, seconds=900)}
    )

    estimate = Estimator(STREAM, FLOWED).estimate(stands)

    assert estimate.overdue == ()
    assert about(estimate) == pytest.approx(10 * (0.9 * 10 + 0.1 * 0.99) + 10)
    late = Estimator(STREAM, FLOWED).estimate(moment(*done("a", "b"), running("c", 900)))
    assert late.overdue == ("c",)


def test_items_tell_how_much_is_done():
    stands = moment(
        *done("a"), running("b", 10), running("c", 10), items={"b": Items(done=75, total=1_000, seconds=None)}
    )

    estimate = Estimator(STREAM, FLOWED).estimate(stands)

    assert about(estimate) == pytest.approx(925 * 0.99 + 10)
    total = 90 + 99 + 99 + 10
    assert estimate.percent == pytest.approx(100 * (90 + 99 * 0.075 + 10) / total)


def test_the_pace_of_this_run_counts_the_more_the_more_is_done():
    def after(items: int) -> float:
        stands = moment(
            *done("a", "c"),
            running("b", 10),
            items={"b": Items(done=items, total=items + 100, seconds=items * 4.0)},
        )
        return about(Estimator(graph("a map b", nodes="abc"), FLOWED).estimate(stands))

    assert after(0) == pytest.approx(99)
    assert 99 < after(10) < after(100) < 400
    assert after(10_000) == pytest.approx(400, rel=0.01)


def test_a_node_with_items_that_are_counted_is_not_overdue():
    stands = moment(*done("a"), running("b", 5_000), items={"b": Items(done=500, total=1_000, seconds=5_000)})

    estimate = Estimator(graph("a map b", nodes="ab"), FLOWED).estimate(stands)

    assert estimate.overdue == ()
    assert about(estimate) == pytest.approx(5_000, rel=0.05)


def test_a_stream_without_an_item_has_nothing_left():
    stands = moment(*done("a", "c"), running("b", 1), items={"b": Items(done=0, total=0, seconds=None)})

    assert about(Estimator(STREAM, FLOWED).estimate(stands)) == pytest.approx(10)


def test_a_reader_that_rested_with_its_run_has_worked_as_long_as_was_measured():
    rested = PastNode(
        node_id=NodeId("c"), scheduled_at=0, started_at=0, ended_at=9_000 * SECOND, duration_ms=20_000, items=0
    )
    run = PastRun(run_id=RunId("p"), nodes=(rested,))

    assert Estimator(STREAM, [run] * 3).usual(NodeId("c")) == 20 * SECOND


# What never ends


def test_what_never_ends_and_what_reads_from_it_weighs_nothing():
    fed = graph("a map b", "c>d")
    runs = [past(a=(0, 9_999), b=(0, 9_999), c=(0, 10), d=(10, 40)) for _ in range(3)]

    estimate = Estimator(fed, runs).estimate(
        moment(running("a", 60), running("b", 60), *done("c"), running("d", 0), endless="a")
    )

    assert estimate.percent == pytest.approx(25)
    assert estimate.remaining is None


def test_nothing_is_said_where_only_what_never_ends_is_left():
    runs = [past(a=(0, 9_999), b=(0, 9_999), c=(0, 10)) for _ in range(3)]
    fed = graph("a map b", nodes="abc")

    estimate = Estimator(fed, runs).estimate(moment(running("a", 60), running("b", 60), *done("c"), endless="a"))

    assert (estimate.percent, estimate.remaining) == (None, None)


def test_when_what_never_ends_was_stopped_the_rest_is_told():
    runs = [past(a=(0, 9_999), b=(0, 9_999), c=(9_999, 10_009)) for _ in range(3)]
    fed = graph("a map b", "b collect c", nodes="abc")

    estimate = Estimator(fed, runs).estimate(moment(*done("a", "b"), running("c", 4), endless="a"))

    assert about(estimate) == pytest.approx(6)
    assert estimate.percent == pytest.approx(40)


def test_a_remaining_time_is_three_numbers():
    assert Estimator(CHAIN, ALIKE).estimate(moment(*done("a", "b", "c"))).remaining == Remaining(
        about=40 * SECOND, low=36 * SECOND, high=44 * SECOND
    )
