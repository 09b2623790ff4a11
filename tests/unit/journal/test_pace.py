"""How fast streams flow and how far they have come, from logs that are written by hand."""

from __future__ import annotations

import msgspec
import pytest

from perdure.graph.model import INPUT, Edge, Graph, JoinMode, Node
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.headway import Headway, Headways
from perdure.journal.pace import RECENT_SECONDS, Pace
from perdure.journal.states import NodeState, NodeStatus, StreamState

SECOND = 1_000_000
SOURCE, CALL = NodeId("source"), NodeId("call")


def started(node_id: NodeId = CALL, attempt: int = 1, *, generates: bool = False, anew: bool = False) -> e.NodeStarted:
    return e.NodeStarted(node_id=node_id, attempt=attempt, streams=True, generates=generates, anew=anew)


def batch(*ranges: tuple[int, int], node_id: NodeId = CALL, attempt: int = 1) -> e.OutboxEnqueued:
    return e.OutboxEnqueued(node_id=node_id, attempt=attempt, ranges=ranges, digest="")


def pace_of(*log: tuple[float, e.AnyEvent]) -> Pace:
    pace = Pace()
    for seconds, event in log:
        pace.hear(event, at=int(seconds * SECOND))
    return pace


def test_all_items_count_over_the_time_from_the_start_to_the_last_of_them():
    pace = pace_of((10, started()), (11, batch((0, 20), (40, 10))), (14, batch((20, 10))))

    assert pace.overall(CALL) == pytest.approx(10)


def test_the_time_between_two_attempts_does_not_count():
    pace = pace_of((0, started()), (2, batch((0, 20))), (900, started(attempt=2)), (902, batch((20, 20), attempt=2)))

    assert pace.overall(CALL) == pytest.approx(10)


@pytest.mark.parametrize(
    "reset",
    [
        started(attempt=2, anew=True),
        e.BranchCreated(branch_id=BranchId(2), parent=BranchId(1), cut=Seq(1), replayed=CALL),
    ],
)
def test_a_stream_that_begins_anew_is_counted_anew(reset: e.AnyEvent):
    pace = pace_of((0, started()), (2, batch((0, 2_000))), (100, reset), (104, batch((0, 20), attempt=2)))

    assert pace.overall(CALL) == pytest.approx(5)


def test_what_was_done_of_late_counts_for_a_node_at_work():
    log = [(0.0, started()), *((float(second), batch((second, 100 if second < 80 else 5))) for second in range(1, 100))]

    assert pace_of(*log).recently(CALL, now=100 * SECOND) == pytest.approx(5)
    assert pace_of(*log).recently(CALL, now=(100 + 2 * RECENT_SECONDS) * SECOND) == 0


def test_nothing_is_said_of_what_has_no_rate():
    assert Pace().overall(CALL) is None
    assert pace_of((0, started())).overall(CALL) is None
    assert pace_of((0, started()), (0, batch((0, 5)))).overall(CALL) is None


def graph(*, join: JoinMode | None = None, source: NodeId = SOURCE, handle: str = "output") -> Graph:
    edge = Edge(id="e1", source=source, source_handle=handle, target=CALL, target_handle="x", mode="map")
    nodes = (Node(id=SOURCE, type="t.source"), Node(id=CALL, type="t.call", join=join))
    return Graph(name="g", nodes=nodes, edges=(edge,))


def node(node_id: NodeId, stream: StreamState | None, status: NodeStatus = NodeStatus.RUNNING) -> NodeState:
    return NodeState(node_id=node_id, branch_id=BranchId(1), status=status, stream=stream)


def stream(entries: int, *, is_closed: bool = False, failed: int = 0) -> StreamState:
    return StreamState(branch_id=BranchId(1), entries=entries, is_closed=is_closed, failed=failed, attempts={7: 1})


def headway(given: Graph, *states: NodeState, generates: bool = True) -> Headway | None:
    pace = pace_of((0, started(SOURCE, generates=generates)), (0, started()), (2, batch((0, 4))))
    return Headways(given).of(
        CALL, {state.node_id: state for state in states}, {"xs": msgspec.Raw(b"[1,2,3]")}, pace, now=None
    )


def test_the_headway_of_a_node_is_what_its_row_says():
    assert headway(graph(), node(SOURCE, stream(9)), node(CALL, stream(4, failed=1))) == Headway(
        done=4, total=None, failed=1, retrying=1, closed=False, checkpointed=0, items_per_second=2.0
    )


def test_a_node_that_only_reads_has_none():
    reader = Graph(name="g", nodes=(Node(id=CALL, type="t.read"),))

    assert headway(reader, node(CALL, stream(0))) is None


@pytest.mark.parametrize(
    ("given", "source", "generates", "total"),
    [
        (graph(), stream(9, is_closed=True), True, 9),
        (graph(join="zip"), stream(9, is_closed=True), True, 9),
        (graph(join="latest"), stream(9, is_closed=True), True, None),
        (graph(handle="even"), stream(9, is_closed=True), True, None),
        (graph(source=INPUT, handle="xs"), None, False, 3),
    ],
)
def test_the_total_is_known_when_the_source_has_ended_and_counts_as_its_reader_does(
    given: Graph, source: StreamState | None, generates: bool, total: int | None
):
    found = headway(given, node(SOURCE, source), node(CALL, stream(4)), generates=generates)

    assert found is not None
    assert found.total == total


def test_the_length_of_a_list_is_the_total():
    source = NodeState(
        node_id=SOURCE, branch_id=BranchId(1), status=NodeStatus.COMPLETED, outputs={"output": msgspec.Raw(b"[1,2]")}
    )

    found = headway(graph(), source, node(CALL, stream(1)), generates=False)

    assert found is not None
    assert found.total == 2
