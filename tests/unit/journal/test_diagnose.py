"""The doctor's pure half: whether a run looks wrong at first sight, and whether it fits another version."""

from __future__ import annotations

import msgspec
import pytest

from perdure.ids import ROOT_BRANCH, BranchId, Epoch, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.ailments import CATALOGUE
from perdure.journal.dump import Mark
from perdure.journal.states import NodeState, NodeStatus, RunState, RunStatus, WaitKind, WaitState
from perdure.journal.suspicion import is_suspect


def run_with(status: RunStatus, **changes: object) -> RunState:
    run = RunState(
        run_id=RunId("r"),
        project_id="default",
        workflow="w",
        version=1,
        graph_hash="h",
        status=status,
        branch_id=ROOT_BRANCH,
        epoch=Epoch(1),
        inputs={},
        settings=e.RunSettings(),
        source={},
        last_seq=Seq(9),
    )
    return msgspec.structs.replace(run, **changes)


def ending_with(*types: type[e.Event]) -> list[Mark]:
    first = 10 - len(types)
    return [
        Mark(seq=Seq(seq), branch_id=ROOT_BRANCH, epoch=Epoch(1), type=found.__name__)
        for seq, found in enumerate(types, start=first)
    ]


def node_with(status: NodeStatus, **changes: object) -> NodeState:
    node = NodeState(node_id=NodeId("n"), branch_id=ROOT_BRANCH, status=status)
    return msgspec.structs.replace(node, **changes)


ASKED = WaitState(wait_id="r/n/1", node_id=NodeId("n"), branch_id=ROOT_BRANCH, kind=WaitKind.ASK, name="ask")
RESTED = ending_with(e.NodeSuspended, e.RunSuspended)
MOVED = ending_with(e.NodeScheduled, e.NodeStarted)


def test_what_agrees_is_not_suspected():
    suspended, running = node_with(NodeStatus.SUSPENDED), node_with(NodeStatus.RUNNING)

    assert not is_suspect(run_with(RunStatus.AWAITING_INPUT), [suspended], [ASKED], RESTED)
    assert not is_suspect(run_with(RunStatus.RUNNING), [running], [], MOVED)
    assert not is_suspect(run_with(RunStatus.RUNNING), [running], [], ending_with(e.RunResumed, e.NodeResumed))


@pytest.mark.parametrize(
    "status", [status for status in RunStatus if status.value not in ("suspended", "awaiting_input")]
)
def test_another_status_than_that_of_the_log_is_suspected(status: RunStatus):
    assert is_suspect(run_with(status), [node_with(NodeStatus.SUSPENDED)], [ASKED], RESTED)


@pytest.mark.parametrize(
    "change", [{"last_seq": Seq(8)}, {"last_seq": Seq(10)}, {"branch_id": BranchId(2)}, {"epoch": Epoch(2)}]
)
def test_a_row_that_is_not_at_the_end_of_the_log_is_suspected(change: dict[str, object]):
    assert is_suspect(run_with(RunStatus.RUNNING, **change), [node_with(NodeStatus.RUNNING)], [], MOVED)
    assert is_suspect(run_with(RunStatus.RUNNING), [node_with(NodeStatus.RUNNING)], [], [])


def test_rows_that_contradict_each_other_are_suspected():
    asking, running = run_with(RunStatus.AWAITING_INPUT), run_with(RunStatus.RUNNING)

    assert is_suspect(asking, [node_with(NodeStatus.SUSPENDED)], [], RESTED)
    assert is_suspect(asking, [node_with(NodeStatus.SUSPENDED, due=1)], [ASKED], RESTED)
    assert is_suspect(running, [node_with(NodeStatus.COMPLETED)], [], MOVED)
    assert is_suspect(running, [node_with(NodeStatus.FAILED)], [], MOVED)


def test_a_jump_without_its_branch_is_suspected():
    running = [node_with(NodeStatus.RUNNING)]

    assert is_suspect(run_with(RunStatus.RUNNING), running, [], ending_with(e.RunReopened, e.JumpRequested))
    made = ending_with(e.JumpRequested, e.BranchCreated, e.BranchActivated, e.NodeScheduled)
    assert not is_suspect(run_with(RunStatus.RUNNING), running, [], made)


def test_the_catalogue_is_whole():
    codes = ["A1", "A2", "A3", "A4", "B1", "B2", "C1", "C2", "D1", "D2", "E1", "E2", "F1", "F2", "G1", "R1", "R2"]

    assert list(CATALOGUE) == codes
    assert all(ailment.explanation and ailment.remedy for ailment in CATALOGUE.values())
