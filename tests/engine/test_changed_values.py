"""Types that have changed since values were stored: the run is not harmed, and goes on where its values can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import field, make_dataclass
from typing import Any

import pytest

from perdure import Context, Engine, Outputs, node, workflow
from perdure.errors import RunCancelled, RunFailed, RunNotReadable
from perdure.graph.declare import Workflow
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.base import Store
from perdure.store.codecs import default_codecs
from perdure.store.codecs.codec import Conversion
from perdure.testing.loop import run_virtual
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, counted, engine_on, log_of

RUN = "run"
V1 = [("number", int)]
BROKEN = [("number", int), ("note", str)]
"""An added field without a default, so that what was stored before lacks it."""
REPAIRED = [("number", int), ("note", str, field(default="none"))]

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


def shop(fields: list[Any], **pack_options: Any) -> Workflow[..., Any]:
    """Declare a shop whose orders have these fields, as if its file had been edited."""
    order_type = make_dataclass("Order", fields, namespace={"__module__": __name__})

    async def take(number: int) -> Any:
        ran.append("take")
        return order_type(number)

    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def pack(order: Any, seconds: float) -> str:
        ran.append("pack")
        return f"packed {order}"

    async def bill(seconds: float) -> str:
        ran.append("bill")
        return "billed"

    take.__annotations__["return"] = order_type
    pack.__annotations__["order"] = order_type
    taken, waited, packed, billed = (
        node(name=f"shop.{body.__name__}", **options)(body)
        for body, options in ((take, {}), (wait, {}), (pack, pack_options), (bill, {}))
    )

    @workflow(name="shop")
    def flow(number: int) -> dict[str, str]:
        waiting = waited(5)
        return {"packed": packed(taken(number), waiting), "billed": billed(waited.named("longer")(waiting))}

    return flow


def line(fields: list[Any]) -> Workflow[..., Any]:
    """Declare a shop in which something follows that does not need the order."""
    order_type = make_dataclass("Order", fields, namespace={"__module__": __name__})

    async def take(number: int) -> Any:
        ran.append("take")
        return order_type(number)

    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def pack(order: Any, seconds: float) -> str:
        ran.append("pack")
        return f"packed {order.number}"

    async def send(parcel: str) -> str:
        ran.append("send")
        await asyncio.sleep(10)
        return f"{parcel}, sent"

    take.__annotations__["return"] = order_type
    pack.__annotations__["order"] = order_type
    taken, waited, packed, sent = (node(name=f"line.{body.__name__}")(body) for body in (take, wait, pack, send))

    @workflow(name="line")
    def flow(number: int) -> str:
        return sent(packed(taken(number), waited(5)))

    return flow


def remembering(fields: list[Any], **options: Any) -> Workflow[..., Any]:
    """Declare a node that memoises an order, and is then stopped."""
    order_type = make_dataclass("Order", fields, namespace={"__module__": __name__})

    def order() -> Any:
        return order_type(7)

    order.__annotations__["return"] = order_type

    async def keep(ctx: Context) -> str:
        kept = await ctx.step(order)
        ran.append("kept")
        if len(ran) == 1:
            await asyncio.sleep(1_000)
        return f"kept {kept.number}"

    kept = node(name="shop.keep", **options)(keep)

    @workflow(name="keeping")
    def flow() -> str:
        return kept()

    return flow


def an_engine(store: Store, flow: Workflow[..., Any], **options: Any) -> Engine:
    """Return an engine as of a process that knows this workflow and nothing else."""
    return engine_on(store, workflows=[flow], codecs=default_codecs(), **options)


async def stopped(store: Store, flow: Workflow[..., Any], **inputs: Any) -> None:
    async with an_engine(store, flow) as engine:
        await engine.start(flow, run_id=RUN, **inputs)
        await asyncio.sleep(2)
        await engine.stop(grace_seconds=0)


def in_a_store(url: str, test: Callable[[Store], Any]) -> None:
    async def main() -> None:
        opened: AbstractAsyncContextManager[Store] = opened_store(url)
        async with opened as store:
            await test(store)

    run_virtual(main())


def test_a_run_rests_where_its_values_cannot_be_read_and_goes_on_where_they_can(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, shop(V1), number=7)

        async with an_engine(store, shop(BROKEN)) as engine:
            run = await engine.get(RUN)
            with pytest.raises(
                RunNotReadable, match=r"node 'pack' .* as 'order' .* there is no 'note'.* a default"
            ) as told:
                await run.result()
            assert "perdure resume run" in str(told.value)
            assert ran == ["take", "bill"]  # what can go on does
            await asyncio.sleep(60)
            with pytest.raises(RunNotReadable):
                await run.wait()
            stored = await run.load()
            assert (stored.run.status, stored.owner) == (RunStatus.RUNNING, None)
            (pack,) = (state for state in stored.nodes if state.node_id == "pack")
            assert (pack.status, pack.attempt, pack.failures) == (NodeStatus.SCHEDULED, 2, 0)
            (lost,) = (
                x.event for x in await log_of(run) if isinstance(x.event, e.AttemptLost) and x.event.node_id == "pack"
            )
            assert "there is no 'note'" in lost.reason

        async with an_engine(store, shop(REPAIRED)) as engine:
            run = await engine.get(RUN)
            assert await run.result() == {"packed": "packed Order(number=7, note='none')", "billed": "billed"}
            assert ran == ["take", "bill", "pack"]
            await assert_whole(engine, run)

    in_a_store(sqlite_url, test)


def test_an_engine_that_can_read_takes_over_from_one_that_cannot(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, shop(V1), number=7)

        async with an_engine(store, shop(BROKEN)) as unable:
            with pytest.raises(RunNotReadable):
                await (await unable.get(RUN)).result()
            async with an_engine(store, shop(V1)) as able:
                assert (await (await able.get(RUN)).result())["packed"] == "packed Order(number=7)"
                assert (await (await unable.get(RUN)).wait()).status is RunStatus.COMPLETED

    in_a_store(sqlite_url, test)


def test_an_engine_that_could_not_read_goes_on_when_another_has_got_past_that(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, line(V1), number=7)

        async with an_engine(store, line(BROKEN)) as unable:
            with pytest.raises(RunNotReadable):
                await (await unable.get(RUN)).result()
            async with an_engine(store, line(V1)) as able:
                while "pack" not in ran:
                    await asyncio.sleep(0.5)
                await able.stop(grace_seconds=0)
            assert await (await unable.get(RUN)).status() is RunStatus.RUNNING

            async with asyncio.timeout(600):
                assert await (await unable.get(RUN)).result() == "packed 7, sent"
            assert ran == ["take", "pack", "send", "send"]

    in_a_store(sqlite_url, test)


@pytest.mark.slow
def test_several_engines_that_cannot_read_try_once_each(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, shop(V1), number=7)

        async with an_engine(store, shop(BROKEN)) as one, an_engine(store, shop(BROKEN)):
            await asyncio.sleep(600)
            run = await one.get(RUN)
            assert (await run.state()).epoch == 3
            assert (await run.state()).recoveries == 0
            await assert_whole(one, run)

    in_a_store(sqlite_url, test)


def test_what_must_run_once_is_not_in_doubt_if_it_has_not_begun(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, shop(V1, once=True), number=7)

        async with an_engine(store, shop(BROKEN, once=True)) as engine:
            with pytest.raises(RunNotReadable):
                await (await engine.get(RUN)).result()
        async with an_engine(store, shop(REPAIRED, once=True)) as engine:
            run = await engine.get(RUN)
            await run.result()
            assert (await counted(run))[e.NodeInDoubt] == 0
            assert ran.count("pack") == 1

    in_a_store(sqlite_url, test)


def test_a_run_that_cannot_be_read_can_be_cancelled(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, shop(V1), number=7)

        async with an_engine(store, shop(BROKEN), recover=False) as engine:
            run = await engine.get(RUN)
            with pytest.raises(RunNotReadable):
                await run.result()
            await run.cancel("enough")
            async with asyncio.timeout(60):
                async for _ in run.events():
                    pass
            with pytest.raises(RunCancelled):
                await run.result()
            assert await engine.not_readable(RunId(RUN)) is None

    in_a_store(sqlite_url, test)


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_that_is_written_late_is_let_go_as_well(sqlite_url: str, durability: Any):
    async def test(store: Store) -> None:
        flow = shop(V1)
        async with an_engine(store, flow) as engine:
            await engine.start(flow, run_id=RUN, number=7, durability=durability)
            await asyncio.sleep(2)
            await engine.stop(grace_seconds=0)

        async with an_engine(store, shop(BROKEN)) as engine:
            with pytest.raises(RunNotReadable):
                await (await engine.get(RUN)).result()
        async with an_engine(store, shop(REPAIRED)) as engine:
            assert (await (await engine.get(RUN)).result())["billed"] == "billed"

    in_a_store(sqlite_url, test)


def test_a_step_that_cannot_be_read_does_not_fail_its_node(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, remembering(V1))

        async with an_engine(store, remembering(BROKEN)) as engine:
            with pytest.raises(RunNotReadable, match="there is no 'note'"):
                await (await engine.get(RUN)).result()
        async with an_engine(store, remembering(REPAIRED)) as engine:
            assert await (await engine.get(RUN)).result() == "kept 7"

    in_a_store(sqlite_url, test)


def test_a_body_that_must_run_once_and_has_begun_is_in_doubt(sqlite_url: str):
    async def test(store: Store) -> None:
        await stopped(store, remembering(V1, once=True))

        async with an_engine(store, remembering(BROKEN, once=True)) as engine:
            run = await engine.get(RUN)
            await run.resolve("keep", "retry")
            async with asyncio.timeout(60):
                while (await counted(run))[e.NodeInDoubt] < 2:
                    await asyncio.sleep(1)
            assert (await run.wait()).status is RunStatus.SUSPENDED
        async with an_engine(store, remembering(REPAIRED, once=True)) as engine:
            run = await engine.get(RUN)
            await run.resolve("keep", "retry")
            async for _ in run.events():
                pass
            assert await run.result() == "kept 7"

    in_a_store(sqlite_url, test)


# Where nothing can have changed


class Lossy:
    """Can be stored and never read."""


def _unreadable(data: Any) -> Any:
    raise KeyError("a bug in a codec")


@node
async def lossy() -> Outputs:
    return Outputs(value=Lossy(), other=1)


@node
async def reader(value: Any) -> None:
    pass


@workflow
def reading() -> None:
    reader(lossy().value)


def test_what_the_engine_that_started_the_run_cannot_read_fails_the_node(sqlite_url: str):
    codecs = default_codecs()
    codecs.register(Conversion("lossy", Lossy, lambda _: 1, _unreadable))

    async def test(store: Store) -> None:
        async with engine_on(store, codecs=codecs) as engine:
            run = await engine.start(reading)
            with pytest.raises(RunFailed, match=r"reader.*ArgumentNotReadable.*a bug in a codec"):
                await run.result()

    in_a_store(sqlite_url, test)
