"""What must run at most once, runs that end while they are lost, and how values read where no annotation helps."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import msgspec
import pytest

from perdure import Engine, node, text, when, workflow
from perdure.graph.plan import compile_plan
from perdure.ids import ROOT_BRANCH, EngineId, Epoch, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.evolve import create_run
from perdure.journal.projection import Projection
from perdure.journal.states import NodeStatus, RunStatus


@dataclass
class Point:
    x: int
    y: int


@node
async def point(x: int) -> Point:
    return Point(x, 1)


@node
async def shift(p: Point) -> Point:
    return Point(p.x + 1, p.y)


@node
async def double(n: int) -> int:
    return n * 2


@node
async def large(n: int) -> dict[str, object]:
    return {"wanted": n > 0, "padding": "x" * 400_000}


@node
async def price() -> Decimal:
    return Decimal("1.50")


@node
async def shown(words: str) -> str:
    return words


@node(once=True)
async def charge(n: int) -> int:
    return n


@workflow
def points(x: int):
    return {"first": point(x), "second": shift(point(x))}


@workflow
def asked(n: int) -> int:
    with when(large(n)["wanted"]):
        doubled = double(n)
    return doubled


@workflow
def label() -> str:
    return shown(text("costs ", price(), " EUR"))


@workflow
def payment(n: int) -> int:
    return double(charge(n))


async def test_models_in_several_outputs_and_of_runs_found_by_id_are_read(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(points, x=1)

        assert await run.result() == {"first": Point(1, 1), "second": Point(2, 1)}
        assert await (await engine.get(run.run_id)).result() == {"first": Point(1, 1), "second": Point(2, 1)}


@pytest.mark.parametrize(("n", "expected"), [(4, 8), (-4, None)])
async def test_a_condition_looks_into_a_value_that_is_a_blob(sqlite_url: str, n: int, expected: int | None):
    async with Engine(sqlite_url) as engine:
        assert await (await engine.start(asked, n=n)).result() == expected


async def test_a_text_holds_the_words_of_a_value_and_not_how_it_is_stored(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        assert await (await engine.start(label)).result() == "costs 1.50 EUR"


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_what_must_run_once_waits_for_its_start_to_be_durable(sqlite_url: str, durability: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(payment, n=3, durability=durability)  # pyright: ignore[reportArgumentType]
        driver = engine.driver_of(run.run_id)

        assert driver is None or not driver.launching._may_run_early(NodeId("charge"))  # pyright: ignore[reportPrivateUsage]
        assert await run.result() == 6


def a_lost_run(losses: int) -> Decider:
    created = e.RunCreated(workflow="payment", version=1, graph_hash="h", inputs={"n": msgspec.Raw(b"3")})
    plan = compile_plan(payment.graph, payment.types)
    projection = Projection(create_run(RunId("r"), created, at=1, branch_id=ROOT_BRANCH, epoch=Epoch(0)))
    decider = Decider(projection, plan)
    decider.claim(EngineId("e0"), Epoch(1), previous=None, lost=False, at=2)
    decider.start(at=2)
    decider.proceed(at=2)
    for loss in range(losses):
        decider.claim(EngineId(f"e{loss + 1}"), Epoch(loss + 2), previous=EngineId(f"e{loss}"), lost=True, at=3)
        decider.proceed(at=3)
    return decider


def test_an_attempt_that_must_not_repeat_is_in_doubt_after_a_loss():
    decider = a_lost_run(0)
    decider.start_attempt(NodeId("charge"), at=3)

    decider.claim(EngineId("e1"), Epoch(2), previous=EngineId("e0"), lost=True, at=4)
    decider.proceed(at=4)

    assert decider.projection.node(NodeId("charge")).status is NodeStatus.IN_DOUBT
    assert decider.projection.run.status is RunStatus.SUSPENDED


@pytest.mark.parametrize("losses", [5, 6])
def test_a_run_is_quarantined_when_its_budget_of_losses_is_spent(losses: int):
    decider = a_lost_run(losses)

    assert (decider.projection.run.status is RunStatus.QUARANTINED) == (losses == 6)


def test_a_run_that_is_being_cancelled_is_never_quarantined():
    decider = a_lost_run(5)
    decider.start_attempt(NodeId("charge"), at=4)
    decider.cancel(reason="enough", at=4)

    decider.claim(EngineId("e9"), Epoch(7), previous=EngineId("e5"), lost=True, at=5)
    decider.proceed(at=5)

    assert decider.projection.run.status is RunStatus.CANCELLED
