"""Lines of history: what a log adds up to in which a run has gone back to what it was."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from perdure.errors import JournalDamaged
from perdure.ids import BranchId, EngineId, Epoch, EventId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.lineage import lineage, lines, places_gone_back_to
from perdure.journal.projection import fold
from perdure.journal.states import NodeStatus, RunStatus

RUN = RunId("r")
A, B = NodeId("a"), NodeId("b")
DONE = {"output": msgspec.Raw(b"1")}


def recorded(events: Iterable[e.AnyEvent]) -> list[e.Recorded]:
    log: list[e.Recorded] = []
    branch_id = BranchId(1)
    for seq, event in enumerate(events, start=1):
        if isinstance(event, e.BranchActivated):
            branch_id = event.branch_id
        entry = e.Recorded(
            seq=Seq(seq), id=EventId(str(seq)), branch_id=branch_id, epoch=Epoch(1), at=seq * 1_000, event=event
        )
        log.append(entry)
    return log


def back(branch: int, parent: int, cut: int, *, retried: tuple[NodeId, ...] = ()) -> list[e.AnyEvent]:
    branch_id = BranchId(branch)
    created = e.BranchCreated(
        branch_id=branch_id, parent=BranchId(parent), cut=Seq(cut), retried=retried, restored=True
    )
    return [created, e.BranchActivated(branch_id=branch_id)]


BEGIN: list[e.AnyEvent] = [
    e.RunCreated(workflow="w", version=1, graph_hash="h"),
    e.RunClaimed(engine_id=EngineId("e"), epoch=Epoch(1)),
    e.RunStarted(),
    e.NodeScheduled(node_id=A, attempt=1),
    e.NodeStarted(node_id=A, attempt=1),
]
WENT_ON: list[e.AnyEvent] = [
    e.NodeCompleted(node_id=A, attempt=1, outputs=DONE),
    e.NodeScheduled(node_id=B, attempt=1),
    e.NodeStarted(node_id=B, attempt=1),
    e.NodeCompleted(node_id=B, attempt=1, outputs=DONE),
    e.RunCompleted(outputs=DONE),
]


def numbers(entries: Iterable[e.Recorded]) -> list[int]:
    return [entry.seq for entry in entries]


def test_a_log_in_which_nobody_went_back_is_one_line():
    log = recorded([*BEGIN, *WENT_ON])

    assert [numbers(line) for line in lines(log)] == [list(range(1, 11))]
    assert not places_gone_back_to(log)


def test_what_came_after_a_place_is_no_part_of_the_line_that_goes_on_from_there():
    log = recorded([*BEGIN, *WENT_ON, *back(2, 1, 5, retried=(A,)), *back(3, 1, 7, retried=(A,))])

    assert numbers(lineage(log)) == [1, 2, 3, 4, 5, 6, 7, 13, 14]
    assert [numbers(line) for line in lines(log)] == [
        list(range(1, 11)),
        [1, 2, 3, 4, 5, 11, 12],
        [1, 2, 3, 4, 5, 6, 7, 13, 14],
    ]
    assert places_gone_back_to(log) == {5, 7}


def test_a_line_goes_on_from_one_that_has_gone_back_itself():
    log = recorded([*BEGIN, *WENT_ON, *back(2, 1, 5), e.NodeStarted(node_id=A, attempt=2), *back(3, 2, 13)])

    assert numbers(lineage(log)) == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]


def test_a_branch_does_not_count_where_somebody_goes_back_to_just_before_the_run_goes_on_on_it():
    again = e.BranchCreated(branch_id=BranchId(2), parent=BranchId(1), cut=Seq(10), dropped=(A,))
    begun: list[e.AnyEvent] = [e.RunReopened(), again, e.BranchActivated(branch_id=BranchId(2))]
    log = recorded([*BEGIN, *WENT_ON, *begun, *back(3, 1, 12), *back(4, 2, 14)])

    assert [numbers(line) for line in lines(log)] == [
        list(range(1, 14)),
        [*range(1, 12), 14, 15],
        [*range(1, 14), 16, 17],
    ]
    assert fold(RUN, log[:15]).node(A).status is NodeStatus.COMPLETED
    assert fold(RUN, log).node(A).status is NodeStatus.IDLE


def test_a_run_is_what_it_was_and_what_was_at_work_is_followed_by_the_next_attempt():
    then = fold(RUN, recorded(BEGIN))

    gone_back = fold(RUN, recorded([*BEGIN, *WENT_ON, *back(2, 1, 5, retried=(A,))]))

    assert (gone_back.run.status, gone_back.run.outputs, gone_back.run.ended_at) == (RunStatus.RUNNING, None, None)
    assert (gone_back.run.branch_id, gone_back.run.last_seq) == (2, 12)
    a, b = gone_back.node(A), gone_back.node(B)
    assert (a.status, a.attempt, a.generation, a.started_at) == (NodeStatus.SCHEDULED, 2, 2, None)
    assert (b.status, b.attempt, b.generation) == (NodeStatus.IDLE, 0, 2)
    assert then.node(A).status is NodeStatus.RUNNING


def test_what_was_done_stays_and_its_next_beginning_has_a_key_of_its_own():
    dropped = e.BranchCreated(branch_id=BranchId(2), parent=BranchId(1), cut=Seq(10), dropped=(A,))
    again: list[e.AnyEvent] = [e.RunReopened(), dropped, e.BranchActivated(branch_id=BranchId(2))]

    gone_back = fold(RUN, recorded([*BEGIN, *WENT_ON, *again, *back(3, 1, 10)]))

    a = gone_back.node(A)
    assert (gone_back.run.status, gone_back.run.outputs) == (RunStatus.COMPLETED, DONE)
    assert (a.status, a.outputs, a.generation) == (NodeStatus.COMPLETED, DONE, 2)


def test_a_run_that_was_given_up_moves_when_somebody_goes_back_to_it():
    given_up: list[e.AnyEvent] = [
        e.AttemptLost(node_id=A, attempt=1),
        e.NodeScheduled(node_id=A, attempt=2),
        e.RunQuarantined(recoveries=6, node_id=A, reason="lost"),
    ]

    gone_back = fold(RUN, recorded([*BEGIN, *given_up, e.RunResumed(), *back(2, 1, 8)]))

    assert (gone_back.run.status, gone_back.run.failed_node, gone_back.run.recoveries) == (RunStatus.RUNNING, None, 0)
    assert gone_back.node(A).status is NodeStatus.SCHEDULED


def test_a_run_stays_on_its_version_wherever_it_goes_back_to():
    repinned = e.RunRecovered(reason="E2", code="E2", branch=BranchId(1), version=7, graph_hash="other")

    gone_back = fold(RUN, recorded([*BEGIN, *WENT_ON, repinned, *back(2, 1, 5)]))

    assert (gone_back.run.version, gone_back.run.graph_hash) == (7, "other")


def test_a_place_that_is_not_there_cannot_be_gone_back_to():
    with pytest.raises(JournalDamaged, match="goes back to 99, which is not known"):
        fold(RUN, recorded([*BEGIN, *back(2, 1, 99)]))
