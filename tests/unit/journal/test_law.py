"""The two state machines: every listed move works, everything else is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from perdure.errors import IllegalTransition
from perdure.ids import ROOT_BRANCH, EngineId, Epoch, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.evolve import create_run, evolve_node, evolve_run
from perdure.journal.states import NODE_LAW, RUN_LAW, TERMINAL, NodeState, NodeStatus, RunState, RunStatus, StreamState

NODE = NodeId("n")
ERROR = e.ErrorRecord(error_class=e.ErrorClass.BUG, type="E", message="m")
NULL = msgspec.Raw(b"null")

RUN_EVENTS: dict[type[e.Event], list[e.Event]] = {
    e.RunStarted: [e.RunStarted()],
    e.RunPausing: [e.RunPausing()],
    e.RunPaused: [e.RunPaused()],
    e.RunSuspended: [e.RunSuspended(), e.RunSuspended(awaiting_input=True)],
    e.RunResumed: [e.RunResumed()],
    e.RunReopened: [e.RunReopened()],
    e.RunClaimed: [
        e.RunClaimed(engine_id=EngineId("a"), epoch=Epoch(2)),
        e.RunClaimed(engine_id=EngineId("a"), epoch=Epoch(2), lost=True),
    ],
    e.RunRecovered: [e.RunRecovered(reason="r")],
    e.RunQuarantined: [e.RunQuarantined(recoveries=6)],
    e.RunCancelling: [e.RunCancelling()],
    e.RunFailing: [e.RunFailing(error=ERROR)],
    e.RunCompleted: [e.RunCompleted()],
    e.RunFailed: [e.RunFailed(error=ERROR)],
    e.RunCancelled: [e.RunCancelled()],
}


def node_events(attempt: int) -> dict[type[e.Event], list[e.NodeEvent]]:
    return {
        e.NodeScheduled: [e.NodeScheduled(node_id=NODE, attempt=attempt + 1)],
        e.NodeStarted: [e.NodeStarted(node_id=NODE, attempt=attempt)],
        e.NodeCheckpointed: [e.NodeCheckpointed(node_id=NODE, attempt=attempt, state=NULL)],
        e.StepCompleted: [e.StepCompleted(node_id=NODE, attempt=attempt, name="s", occurrence=0, result=NULL)],
        e.OutboxEnqueued: [e.OutboxEnqueued(node_id=NODE, attempt=attempt, ranges=((0, 1),), digest="d")],
        e.OutboxClosed: [e.OutboxClosed(node_id=NODE, attempt=attempt, entries=0)],
        e.ItemFailed: [e.ItemFailed(node_id=NODE, attempt=attempt, position=0, item_attempt=1, error=ERROR)],
        e.InteractionRequested: [
            e.InteractionRequested(node_id=NODE, attempt=attempt, name="ask", interaction_id="r/n/1", prompt="?")
        ],
        e.TimerSet: [e.TimerSet(node_id=NODE, attempt=attempt, name="sleep", timer_id="r/n/1", due=1)],
        e.SignalAwaited: [e.SignalAwaited(node_id=NODE, attempt=attempt, name="signal s", wait_id="r/n/1", signal="s")],
        e.TriggerRegistered: [e.TriggerRegistered(node_id=NODE, trigger_type="t")],
        e.TriggerInputReceived: [e.TriggerInputReceived(node_id=NODE, input_id="1")],
        e.TriggerCursorAdvanced: [e.TriggerCursorAdvanced(node_id=NODE, cursor=NULL)],
        e.InteractionResponded: [e.InteractionResponded(node_id=NODE, interaction_id="r/n/1")],
        e.TimerFired: [e.TimerFired(node_id=NODE, timer_id="r/n/1")],
        e.SignalTaken: [e.SignalTaken(node_id=NODE, wait_id="r/n/1")],
        e.NodeSuspended: [e.NodeSuspended(node_id=NODE, attempt=attempt, reason="r")],
        e.NodeResumed: [e.NodeResumed(node_id=NODE, attempt=attempt)],
        e.NodeCompleted: [e.NodeCompleted(node_id=NODE, attempt=attempt)],
        e.NodeFailed: [
            e.NodeFailed(node_id=NODE, attempt=attempt, error=ERROR),
            e.NodeFailed(node_id=NODE, attempt=attempt, error=ERROR, final=False),
        ],
        e.AttemptLost: [e.AttemptLost(node_id=NODE, attempt=attempt)],
        e.NodeSkipped: [e.NodeSkipped(node_id=NODE, reason="r")],
        e.NodeCancelled: [e.NodeCancelled(node_id=NODE, attempt=attempt)],
        e.NodeInDoubt: [e.NodeInDoubt(node_id=NODE, attempt=attempt)],
        e.NodeResolved: [
            e.NodeResolved(node_id=NODE, attempt=attempt, resolution="done"),
            e.NodeResolved(node_id=NODE, attempt=attempt, resolution="retry"),
            e.NodeResolved(node_id=NODE, attempt=attempt, resolution="fail", error=ERROR),
        ],
        e.AttemptResultDiscarded: [e.AttemptResultDiscarded(node_id=NODE, attempt=attempt, outcome="completed")],
    }


def run_in(status: RunStatus) -> RunState:
    created = e.RunCreated(workflow="w", version=1, graph_hash="h")
    run = create_run(RunId("r"), created, at=1, branch_id=ROOT_BRANCH, epoch=Epoch(1))
    return msgspec.structs.replace(run, status=status, error=ERROR)


def node_in(status: NodeStatus, *, attempt_ended: bool) -> NodeState:
    attempt = 0 if status is NodeStatus.IDLE else 1
    return NodeState(
        node_id=NODE,
        branch_id=ROOT_BRANCH,
        status=status,
        attempt=attempt,
        attempt_ended=attempt_ended,
        stream=StreamState(branch_id=ROOT_BRANCH),
    )


def test_the_law_covers_every_event_that_moves_a_run_or_a_node() -> None:
    assert set(RUN_EVENTS) == set(RUN_LAW)
    assert set(node_events(1)) == set(NODE_LAW)


@pytest.mark.parametrize(("status", "kind"), list(itertools.product(RunStatus, RUN_LAW)))
def test_a_run_moves_only_as_the_law_says(status: RunStatus, kind: type[e.Event]) -> None:
    reached: set[RunStatus] = set()
    for event in RUN_EVENTS[kind]:
        try:
            reached.add(evolve_run(run_in(status), event, seq=Seq(2), at=5).status)
        except IllegalTransition:
            continue
    assert reached == RUN_LAW[kind].get(status, frozenset())


@pytest.mark.parametrize(("status", "kind"), list(itertools.product(NodeStatus, NODE_LAW)))
def test_a_node_moves_only_as_the_law_says(status: NodeStatus, kind: type[e.Event]) -> None:
    reached: set[NodeStatus] = set()
    for ended in (False, True):
        node = node_in(status, attempt_ended=ended)
        for event in node_events(node.attempt)[kind]:
            try:
                reached.add(evolve_node(node, event, seq=Seq(2), at=5).status)
            except IllegalTransition:
                continue
    assert reached == NODE_LAW[kind].get(status, frozenset())


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_what_has_ended_stays_as_it_is(status: RunStatus) -> None:
    for kind, moves in RUN_LAW.items():
        if kind is not e.RunReopened:  # with which a branch begins
            assert moves.get(status, frozenset({status})) <= {status}, kind


@pytest.mark.parametrize("attempt", [0, 2, 7])
def test_only_the_current_attempt_can_end(attempt: int) -> None:
    running = node_in(NodeStatus.RUNNING, attempt_ended=False)
    late = e.NodeCompleted(node_id=NODE, attempt=attempt)

    with pytest.raises(IllegalTransition):
        evolve_node(running, late, seq=Seq(2), at=5)


def test_a_running_attempt_is_followed_only_after_it_has_ended() -> None:
    running = node_in(NodeStatus.RUNNING, attempt_ended=False)
    following = e.NodeScheduled(node_id=NODE, attempt=2)

    with pytest.raises(IllegalTransition):
        evolve_node(running, following, seq=Seq(2), at=5)
    lost = evolve_node(running, e.AttemptLost(node_id=NODE, attempt=1), seq=Seq(2), at=5)
    assert evolve_node(lost, following, seq=Seq(3), at=6).attempt == 2


def test_a_lost_attempt_does_not_use_the_retry_budget() -> None:
    lost = evolve_node(
        node_in(NodeStatus.RUNNING, attempt_ended=False), e.AttemptLost(node_id=NODE, attempt=1), seq=Seq(2), at=5
    )
    assert (lost.failures, lost.lost) == (0, 1)


def test_progress_resets_the_count_of_losses() -> None:
    run = run_in(RunStatus.RUNNING)
    lost = evolve_run(run, e.RunClaimed(engine_id=EngineId("b"), epoch=Epoch(2), lost=True), seq=Seq(2), at=5)
    assert lost.recoveries == 1
    assert evolve_run(lost, e.NodeCompleted(node_id=NODE, attempt=1), seq=Seq(3), at=6).recoveries == 0


def test_events_survive_storage() -> None:
    for event in itertools.chain(*RUN_EVENTS.values(), *node_events(1).values()):
        assert e.decode_event(e.encode_event(event)) == event
