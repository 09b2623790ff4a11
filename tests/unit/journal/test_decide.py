"""What follows from what, decided whole or in portions."""

from __future__ import annotations

import msgspec
import pytest

from perdure import node, workflow
from perdure.graph.plan import compile_plan
from perdure.ids import ROOT_BRANCH, EngineId, Epoch, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.evolve import create_run
from perdure.journal.projection import Projection
from perdure.journal.states import NodeStatus, RunStatus

WIDTH = 20


@node
def step(x: int) -> int:
    return x


@node
def join(xs: list[int]) -> int:
    return sum(xs)


@workflow
def fan(x: int) -> int:
    root = step.named("root")(x)
    return join.named("join")([step.named(f"part_{number}")(root) for number in range(WIDTH)])


def begun() -> Decider:
    created = e.RunCreated(workflow="fan", version=1, graph_hash="h", inputs={"x": msgspec.Raw(b"1")})
    run = create_run(RunId("r"), created, at=1, branch_id=ROOT_BRANCH, epoch=Epoch(0))
    decider = Decider(Projection(run), compile_plan(fan.graph, fan.types))
    decider.claim(EngineId("e"), Epoch(1), previous=None, lost=False, at=1)
    decider.start(at=1)
    decider.proceed(at=1)
    return decider


def complete(decider: Decider, name: str) -> None:
    node_id = NodeId(name)
    attempt = decider.start_attempt(node_id, at=2)
    decider.attempt_completed(node_id, attempt, {"output": msgspec.Raw(b"1")}, duration_ms=0, at=2)


def scheduled(decider: Decider) -> int:
    return sum(node.status is NodeStatus.SCHEDULED for node in decider.projection.nodes.values())


@pytest.mark.parametrize("most", [1, 3, WIDTH, WIDTH + 1, None])
def test_portions_add_up_to_the_whole(most: int | None):
    decider = begun()
    complete(decider, "root")

    portions = 1
    while decider.proceed(at=2, most=most):
        assert most is not None
        assert scheduled(decider) == portions * most
        portions += 1

    assert scheduled(decider) == WIDTH
    assert portions == (1 if most is None else max(1, -(-WIDTH // most)))
    for number in range(WIDTH):
        complete(decider, f"part_{number}")
        decider.proceed(at=2)
    complete(decider, "join")
    decider.proceed(at=2)
    assert decider.projection.run.status is RunStatus.COMPLETED


def test_whoever_claims_a_run_finds_what_was_not_yet_looked_at():
    lost = begun()
    complete(lost, "root")
    lost.proceed(at=2, most=7)

    heir = Decider(lost.projection, lost.plan)
    heir.claim(EngineId("other"), Epoch(2), previous=EngineId("e"), lost=True, at=3)
    heir.proceed(at=3)

    assert scheduled(heir) == WIDTH
    assert heir.projection.run.status is RunStatus.RUNNING


def test_nothing_follows_in_a_run_that_is_being_cancelled():
    decider = begun()
    complete(decider, "root")
    decider.proceed(at=2, most=7)

    decider.cancel(reason="", at=3)
    decider.proceed(at=3)

    statuses = [node.status for node in decider.projection.nodes.values()]
    assert statuses.count(NodeStatus.CANCELLED) == 7
    assert scheduled(decider) == 0
    assert decider.projection.run.status is RunStatus.CANCELLED


def test_a_cancelled_run_goes_on_also_if_nothing_of_it_was_stopped():
    decider = begun()
    root = NodeId("root")
    attempt = decider.start_attempt(root, at=2)
    decider.cancel(reason="", at=3)
    decider.attempt_completed(root, attempt, {"output": msgspec.Raw(b"1")}, duration_ms=0, at=3)
    decider.proceed(at=4)
    assert decider.projection.run.status is RunStatus.CANCELLED

    assert decider.may_retry
    decider.retry(reason="", asked_as="", at=5)
    decider.proceed(at=5)

    assert decider.projection.status(root) is NodeStatus.COMPLETED
    assert scheduled(decider) == WIDTH
