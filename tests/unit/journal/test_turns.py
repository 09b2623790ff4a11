"""Nodes have their turns: a log in which one was passed over, or in which nobody can move, is found to be wrong."""

from __future__ import annotations

import msgspec
import pytest

from perdure import first, node, when, workflow
from perdure.graph.declare import Workflow
from perdure.graph.plan import compile_plan
from perdure.ids import ROOT_BRANCH, EngineId, Epoch, EventId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.evolve import create_run
from perdure.journal.projection import Projection, fold
from perdure.journal.verify import Dump, verify

CREATED = e.RunCreated(workflow="w", version=1, graph_hash="h", inputs={"x": msgspec.Raw(b"1")})


@node
def step(x: int) -> int:
    return x


@workflow
def two_pairs(x: int) -> tuple[int, int]:
    left, right = step.named("left")(x), step.named("right")(x)
    return step.named("after_left")(left), step.named("after_right")(right)


@workflow
def alternatives(x: int) -> int:
    slow, quick = step.named("slow")(x), step.named("quick")(x)
    with when(quick):
        step.named("guarded")(slow)
    return step.named("either")(first(slow, quick))


def decider_for(flow: Workflow[..., int] | Workflow[..., tuple[int, int]]) -> Decider:
    run = create_run(RunId("r"), CREATED, at=1, branch_id=ROOT_BRANCH, epoch=Epoch(1))
    decider = Decider(Projection(run), compile_plan(flow.graph, flow.types), decided=[(CREATED, 1)])
    decider.claim(EngineId("e"), Epoch(1), previous=None, lost=False, at=1)
    decider.start(at=1)
    decider.proceed(at=1)
    return decider


def complete(decider: Decider, name: str, value: bytes = b"1") -> None:
    attempt = decider.start_attempt(NodeId(name), at=2)
    decider.attempt_completed(NodeId(name), attempt, {"output": msgspec.Raw(value)}, duration_ms=0, at=2)


def wrong_turns(decider: Decider, events: list[e.AnyEvent]) -> list[str]:
    log = tuple(
        e.Recorded(seq=Seq(seq), id=EventId(str(seq)), branch_id=ROOT_BRANCH, epoch=Epoch(1), at=1, event=event)
        for seq, event in enumerate(events, start=1)
    )
    folded = fold(RunId("r"), log)
    dump = Dump(
        run=folded.run,
        owner=None,
        events=log,
        nodes=tuple(folded.nodes.values()),
        steps={},
        version_hash="h",
        plan=decider.plan,
    )
    return [violation.problem for violation in verify(dump) if violation.invariant == "I17"]


def test_a_node_that_was_passed_over_is_found():
    decider = decider_for(two_pairs)
    for name in ("left", "right"):
        complete(decider, name)
    decider.proceed(at=2)
    events = [event for event, _ in decider.take()]
    assert wrong_turns(decider, events) == []

    events[-2], events[-1] = events[-1], events[-2]

    assert wrong_turns(decider, events) == [
        "node 'after_left' could be scheduled or skipped, and 'after_right' was before it"
    ]


@pytest.mark.parametrize("left_out", [1, 2])
def test_a_log_may_end_between_two_portions(left_out: int):
    decider = decider_for(two_pairs)
    for name in ("left", "right"):
        complete(decider, name)
    decider.proceed(at=2)
    events = [event for event, _ in decider.take()]

    assert wrong_turns(decider, events[:-left_out]) == []


def test_a_run_in_which_nothing_can_move_is_found():
    decider = decider_for(two_pairs)
    for name in ("left", "right"):
        complete(decider, name)
    decider.proceed(at=2)
    for name in ("after_left", "after_right"):
        complete(decider, name)
    events = [event for event, _ in decider.take()]

    assert wrong_turns(decider, events) == ["the run is running but nothing in it can move"]
    decider.proceed(at=3)
    assert wrong_turns(decider, [*events, *(event for event, _ in decider.take())]) == []


@workflow
def fallback(x: int) -> int:
    ok = step.named("ok")(x)
    with when(ok):
        options = [step.named(f"option_{number}")(x) for number in range(3)]
    return step.named("last")(first(*options))


@pytest.mark.parametrize("most", [1, 2, 3, 4, None])
def test_a_run_in_which_only_looks_in_vain_are_left_is_concluded(most: int | None):
    decider = decider_for(fallback)
    complete(decider, "ok", b"false")
    events = [event for event, _ in decider.take()]
    is_more = True
    while is_more:
        is_more = decider.proceed(at=2, most=most)
        events += [event for event, _ in decider.take()]
        assert wrong_turns(decider, events) == []

    assert isinstance(events[-1], e.RunCompleted)


def test_what_waits_for_the_first_of_several_may_come_early_and_a_false_condition_waits_for_all():
    decider = decider_for(alternatives)
    complete(decider, "quick", b"0")
    decider.proceed(at=2)
    assert wrong_turns(decider, events := [event for event, _ in decider.take()]) == []

    complete(decider, "slow")
    decider.proceed(at=2)

    assert wrong_turns(decider, [*events, *(event for event, _ in decider.take())]) == []
