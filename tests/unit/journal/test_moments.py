"""What of a run matters for how long it takes: which nodes have no end, and how far those have come that work item by item."""

from __future__ import annotations

import msgspec
import pytest

from perdure.graph.model import FOLDER, INBOX, REDIS_STREAM, SCHEDULE, STREAM_INPUT, Graph, Node
from perdure.ids import BranchId, Epoch, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.evolve import create_run
from perdure.journal.headway import Headway
from perdure.journal.moments import Items, Moment, moment_of
from perdure.journal.pace import Pace
from perdure.journal.states import NodeState, NodeStatus, RunState

SECOND = 1_000_000
A = NodeId("a")


def run(**inputs: object) -> RunState:
    given = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in inputs.items()}
    created = e.RunCreated(workflow="w", version=1, graph_hash="h", inputs=given)
    return create_run(RunId("r"), created, at=0, branch_id=BranchId(1), epoch=Epoch(1))


def moment(
    state: RunState,
    *,
    of_type: str = "t.work",
    pace: Pace | None = None,
    headway: Headway | None = None,
    is_driven: bool = True,
) -> Moment:
    node = NodeState(node_id=A, branch_id=BranchId(1), status=NodeStatus.RUNNING)
    return moment_of(
        state,
        {A: node},
        (),
        {} if headway is None else {A: headway},
        pace or Pace(),
        Graph(name="w", nodes=(Node(id=A, type=of_type),)),
        now=100 * SECOND,
        is_driven=is_driven,
    )


@pytest.mark.parametrize("of_type", [STREAM_INPUT, INBOX, SCHEDULE, FOLDER, REDIS_STREAM])
def test_what_is_fed_from_outside_has_no_end(of_type: str):
    assert list(moment(run(), of_type=of_type).endless) == [A]


def test_an_input_that_was_given_whole_has_an_end():
    assert list(moment(run(a=[1, 2]), of_type=STREAM_INPUT).endless) == []


def test_a_trigger_of_ones_own_is_known_by_the_log():
    pace = Pace()
    pace.hear(e.TriggerRegistered(node_id=A, trigger_type="t.work"), at=0)

    assert list(moment(run(), pace=pace).endless) == [A]
    assert list(moment(run()).endless) == []


def test_items_take_the_time_for_which_their_node_is_at_work():
    pace = Pace()
    pace.hear(e.NodeStarted(node_id=A, attempt=1, streams=True), at=0)
    pace.hear(e.OutboxEnqueued(node_id=A, attempt=1, ranges=((0, 4),), digest=""), at=10 * SECOND)
    pace.hear(e.NodeStarted(node_id=A, attempt=2, streams=True), at=80 * SECOND)
    headway = Headway(done=4, total=9, failed=0, retrying=0, closed=False, checkpointed=0, items_per_second=None)

    at_work = moment(run(), pace=pace, headway=headway)
    left = moment(run(), pace=pace, headway=headway, is_driven=False)

    assert at_work.items == {A: Items(done=4, total=9, seconds=30.0)}
    assert left.items == {A: Items(done=4, total=9, seconds=10.0)}
    assert moment(run(), headway=headway).items == {A: Items(done=4, total=9, seconds=None)}
