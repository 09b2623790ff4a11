"""Names for places in the log: what they name, which names there are, and what `verify` says of wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.errors import IllegalTransition
from perdure.ids import ROOT_BRANCH, EngineId, Epoch, EventId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.checkpointcheck import checkpoints_are_right
from perdure.journal.checkpoints import LONGEST_NAME, name_problem, periodic_name
from perdure.journal.decide import Decider
from perdure.journal.dump import Dump
from perdure.journal.projection import Projection
from perdure.journal.states import CheckpointState, RunStatus
from tests.unit.journal.test_decide import begun, complete

# Decisions


def saved_at(name: str, seq: int, periodic: int = 0, at: int = 5) -> CheckpointState:
    return CheckpointState(
        name=name, branch_id=ROOT_BRANCH, seq=Seq(seq), event_seq=Seq(seq + 1), periodic=periodic, saved_at=at
    )


def test_a_checkpoint_names_all_that_was_recorded_before_it():
    decider = begun()
    last = decider.projection.run.last_seq
    before = decider.projection.run

    decider.save_checkpoint("here", at=5)

    assert decider.take()[-1] == (e.CheckpointSaved(name="here", seq=last), 5)
    assert decider.take_saved() == (saved_at("here", last),)
    assert decider.take_saved() == ()
    assert decider.projection.run.last_seq == last + 1
    assert decider.projection.run.status is before.status


def test_nothing_follows_from_a_checkpoint():
    decider = begun()
    complete(decider, "root")
    decider.proceed(at=2)
    decider.take()

    decider.save_checkpoint("here", at=5)

    assert not decider.proceed(at=5)
    assert [type(event) for event, _ in decider.take()] == [e.CheckpointSaved]


def test_what_is_saved_by_itself_is_numbered_and_saved_only_if_something_has_happened():
    decider = begun()

    assert decider.save_periodic(at=5)
    assert not decider.save_periodic(at=6)
    complete(decider, "root")
    assert decider.save_periodic(at=7)
    decider.proceed(at=8)
    decider.save_checkpoint("by hand", at=9)
    assert not decider.save_periodic(at=10)

    saved = decider.take_saved()
    assert [(found.name, found.periodic) for found in saved] == [("periodic-1", 1), ("periodic-2", 2), ("by hand", 0)]


def test_what_has_ended_is_not_saved_by_itself():
    decider = begun()
    decider.cancel(reason="", at=3)
    decider.proceed(at=3)
    assert decider.projection.run.status is RunStatus.CANCELLED

    assert not decider.save_periodic(at=5)


def test_whoever_takes_a_run_up_goes_on_counting():
    lost = begun()
    lost.save_periodic(at=5)
    heir = Decider(lost.projection, lost.plan)
    heir.periodic, heir.saved_seq = 1, Seq(lost.projection.run.last_seq + 1)

    heir.claim(EngineId("other"), Epoch(2), previous=None, lost=False, at=6)
    assert not heir.save_periodic(at=6)
    complete(heir, "root")

    assert heir.save_periodic(at=7)
    assert heir.take_saved()[-1].name == "periodic-2"


@pytest.mark.parametrize("ahead", [0, 1, 100])
def test_a_place_that_is_not_there_yet_cannot_be_named(ahead: int):
    projection = begun().projection
    before = projection.run

    with pytest.raises(IllegalTransition):
        projection.apply(e.CheckpointSaved(name="x", seq=Seq(before.last_seq + 1 + ahead)), at=5)

    assert projection.run is before


# Names


@pytest.mark.parametrize("name", ["a", "before review", "v1.2/ünï", "x" * LONGEST_NAME, "periodic", "Periodic-1"])
def test_names_that_people_give(name: str):
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "needs a name"),
        ("  ", "needs a name"),
        (" a", "spaces around it"),
        ("a\nb", "cannot be shown"),
        ("a\x00b", "cannot be shown"),
        ("half \ud800 pair", "cannot be shown"),
        ("x" * (LONGEST_NAME + 1), "at most 200"),
        (periodic_name(1), "kept for checkpoints that are saved by themselves"),
        ("periodic-mine", "kept for checkpoints that are saved by themselves"),
        (7, "and 7 is none"),
        (None, "and None is none"),
    ],
)
def test_names_that_are_refused(name: object, complaint: str):
    assert complaint in (name_problem(name) or "")


# Checks


def log_of(*events: e.AnyEvent) -> tuple[e.Recorded, ...]:
    return tuple(
        e.Recorded(seq=Seq(seq), id=EventId(f"{seq}"), branch_id=ROOT_BRANCH, epoch=Epoch(1), at=seq, event=event)
        for seq, event in enumerate(events, start=1)
    )


def problems(events: Sequence[e.AnyEvent], *rows: CheckpointState) -> list[str]:
    projection: Projection = begun().projection
    dump = Dump(
        run=projection.run,
        owner=None,
        events=log_of(*events),
        nodes=(),
        steps={},
        version_hash=None,
        plan=None,
        checkpoints=rows,
    )
    return [f"{found.invariant}: {found.problem}" for found in checkpoints_are_right(dump)]


STARTED = e.RunStarted()
STEP = e.NodeScheduled(node_id=NodeId("root"), attempt=1)
CLAIM = e.RunClaimed(engine_id=EngineId("e"), epoch=Epoch(2))


def saving(name: str, seq: int, periodic: int = 0) -> e.CheckpointSaved:
    return e.CheckpointSaved(name=name, seq=Seq(seq), periodic=periodic)


def row(name: str, seq: int, event_seq: int, periodic: int = 0) -> CheckpointState:
    return CheckpointState(
        name=name,
        branch_id=ROOT_BRANCH,
        seq=Seq(seq),
        event_seq=Seq(event_seq),
        periodic=periodic,
        saved_at=event_seq,
    )


def test_checkpoints_as_they_are_saved_are_right():
    log = [STARTED, saving("a", 1), saving("b", 2), CLAIM, STEP, saving("periodic-1", 5, 1), STEP, saving("c", 7)]
    rows = [row("a", 1, 2), row("b", 2, 3), row("periodic-1", 5, 6, 1), row("c", 7, 8)]

    assert problems(log, *rows) == []


@pytest.mark.parametrize(
    ("log", "rows", "complaint"),
    [
        ([STARTED, saving("a", 1)], [], "I4: checkpoint 'a' has an event at 2 but no row"),
        ([STARTED, STEP], [row("a", 1, 2)], "I4: checkpoint 'a' has a row but no event at 2"),
        ([STARTED, STEP, saving("a", 2)], [row("a", 1, 3)], "in the table"),
        ([STARTED, STEP, saving("a", 9)], [row("a", 9, 3)], "I33: checkpoint 'a' names event 9, which is not in the log"),
        ([STARTED, saving("a", 2)], [row("a", 2, 2)], "I33: checkpoint 'a' was saved at 2, before event 2"),
        (
            [STARTED, saving("a", 1), STEP, saving("a", 3)],
            [row("a", 1, 2), row("a", 3, 4)],
            "I33: two checkpoints are called 'a'",
        ),
        ([STARTED, saving("periodic-2", 1, 2)], [row("periodic-2", 1, 2, 2)], "I33: checkpoint 'periodic-2' at 2 is number 1"),
        ([STARTED, saving("periodic-1", 1)], [row("periodic-1", 1, 2)], "I33: 'periodic-1' at 2 is no name"),
        ([STARTED, saving("mine", 1, 1)], [row("mine", 1, 2, 1)], "I33: 'mine' at 2 is no name"),
        (
            [STARTED, saving("a", 1), CLAIM, saving("periodic-1", 3, 1)],
            [row("a", 1, 2), row("periodic-1", 3, 4, 1)],
            "I33: checkpoint 'periodic-1' was saved, and nothing had happened",
        ),
    ],
)  # fmt: skip
def test_checkpoints_that_are_wrong_are_told(log: list[e.AnyEvent], rows: list[CheckpointState], complaint: str):
    assert any(complaint in problem for problem in problems(log, *rows))
