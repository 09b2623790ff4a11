"""What is given to runs from outside: at one price however much waits, under ids of its own, before the end or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Engine, EngineSettings, collect, inbox, node, when, workflow
from perdure.engine.driving.sending import send_id
from perdure.engine.inspect import verify_run
from perdure.engine.runs.run import Run
from perdure.errors import CommandIdTaken, InputClosed
from perdure.ids import CommandId, RunId
from perdure.journal.states import RunStatus
from perdure.store.opening import open_store
from perdure.store.shapes import CLOSE, COMMANDS_PER_RUN, SEND, Command, StoredRun
from perdure.testing.proxy import StoreProxy

RARELY = EngineSettings(poll_seconds=3_600, recovery_seconds=3_600, hibernate_after=3_600)


@node
async def accept(item: int) -> int:
    return item


@node
async def unlocked() -> bool:
    await asyncio.sleep(3_600)
    return True


@workflow
def parcel_office() -> list[int]:
    return collect(accept.map(inbox.named("parcels")(int)))


@workflow
def two_offices() -> list[Any]:
    return [
        collect(accept.map(inbox.named("east")(int))),
        collect(accept.map(inbox.named("east/inner")(int))),
        collect(accept.map(inbox.named("east%2Finner")(int))),
    ]


@workflow
def locked_office() -> list[int]:
    with when(unlocked()):
        parcels = collect(accept.map(inbox.named("parcels")(int)))
    return parcels


class Counting(StoreProxy):
    """A store that counts what it is asked, and how many commands it reads for that."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.commands_read = 0

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        answer = await call()
        if name not in ("renew_engine", "wait_for_news", "find_woken", "find_claimable", "list_engines"):
            self.calls[name] += 1
        if isinstance(answer, StoredRun):
            self.commands_read += len(answer.commands)
        elif isinstance(answer, list) and answer and isinstance(answer[0], Command):
            self.commands_read += len(answer)
        return answer


async def paused(engine: Engine, flow: Any = parcel_office) -> Run[Any]:
    run = await engine.start(flow)
    await run.pause(grace=0)
    await run.wait()
    return run


async def kept(engine: Engine, run_id: RunId, count: int) -> None:
    """Keep items for a run that nobody takes yet, by the shortest way."""
    for number in range(count):
        payload = {"input": "parcels", "item": str(number), "blobs": [], "input_id": str(number), "cursor": None}
        command_id = send_id("parcels", str(number))
        at = engine.clock.now_micros()
        await engine.store.add_command(
            Command(command_id=command_id, run_id=run_id, kind=SEND, payload=payload, created_at=at)
        )


async def until(status: RunStatus, run: Run[Any]) -> None:
    async with asyncio.timeout(20):
        while await run.status() is not status:
            await asyncio.sleep(0.01)


# The price


@pytest.mark.parametrize(
    ("workflows", "is_paused"),
    [((), True), ((), False), (None, True)],
    ids=["paused, without the code", "left, without the code", "paused, with the code"],
)
@pytest.mark.slow
async def test_each_delivery_costs_the_same_however_many_wait(
    store_url: str, workflows: Any, *, is_paused: bool
) -> None:
    async with Engine(store_url) as engine:
        run = await paused(engine)
        if not is_paused:
            await run.resume()
            await until(RunStatus.RUNNING, run)
    store = await open_store(store_url)
    counting = Counting(store)
    async with Engine(counting.as_store, workflows=workflows, recover=False) as engine:
        again = await engine.get(run.run_id)
        counting.calls.clear()
        for number in range(300):
            assert await again.deliver("parcels", number, id=str(number), cursor=number)

        assert counting.calls.total() <= 300 * 7, counting.calls
        assert counting.calls["load_version"] <= 3
        assert counting.commands_read <= 300 * 10
    await store.close()


# Fairness


@pytest.mark.slow
async def test_what_one_run_was_sent_hides_nothing_that_another_was_told(store_url: str) -> None:
    async with Engine(store_url, settings=RARELY) as engine:
        full, other = await engine.start(locked_office), await engine.start(locked_office)
        await kept(engine, full.run_id, 5_000)
        dump = await engine.store.dump_run(full.run_id)
        assert dump is not None
        assert len(dump.stored.commands) == 5_000

        async with asyncio.timeout(10):
            await other.cancel()
            assert (await other.wait()).status is RunStatus.CANCELLED
            await full.cancel()
            assert (await full.wait()).status is RunStatus.CANCELLED


@pytest.mark.slow
async def test_more_than_is_read_at_once_is_taken_in_order_and_without_waiting(store_url: str) -> None:
    many = 2 * COMMANDS_PER_RUN + 100
    async with Engine(store_url, settings=RARELY) as engine:
        run = await paused(engine)
        await kept(engine, run.run_id, many)
        await run.stop()

        await run.resume()

        async with asyncio.timeout(30):
            assert await run.result() == list(range(many))
        assert await verify_run(engine, run.run_id) == []


# Ids


async def test_inputs_whose_names_hold_slashes_have_ids_of_their_own(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(two_offices)
        assert await run.deliver("east", 1, id="inner/7")
        assert await run.deliver("east/inner", 2, id="7")
        assert await run.deliver("east%2Finner", 3, id="7")
        assert not await run.deliver("east/inner", 2, id="7")
        await run.stop()

        assert await run.result() == [[1], [2], [3]]


def test_ids_of_items_are_those_of_rows_that_are_there_already() -> None:
    assert send_id("orders", "a/b") == "send/orders/a/b"


async def test_what_is_delivered_again_in_other_words_has_no_effect(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(parcel_office)
        assert await run.deliver("parcels", 1, id="1", cursor=1)
        assert not await run.deliver("parcels", 2, id="1", cursor=1)
        assert not await run.deliver("parcels", 1, id="1", cursor=7)
        await run.stop()
        assert not await run.deliver("parcels", 3, id="1")

        assert await run.result() == [1]
        assert not await run.deliver("parcels", 4, id="1")
        with pytest.raises(InputClosed):
            await run.deliver("parcels", 5, id="5")


async def test_of_two_who_deliver_under_one_id_at_once_one_learns_that_it_was_there(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await paused(engine)

        taken = await asyncio.gather(*(run.deliver("parcels", number, id="1") for number in range(5)))

        assert sorted(taken) == [False] * 4 + [True]
        assert len((await run.load()).commands) == 1


async def test_an_item_that_was_sent_is_there_also_after_the_end(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(parcel_office)
        await run.send("parcels", 1, item_id="1")
        await run.stop()
        await run.send("parcels", 1, item_id="1")
        with pytest.raises(CommandIdTaken):
            await run.send("parcels", 2, item_id="1")

        assert await run.result() == [1]


# The end


@pytest.mark.parametrize("is_paused", [True, False], ids=["undriven", "driven"])
async def test_an_item_comes_before_the_end_or_its_sender_hears_that_it_does_not(
    store_url: str, *, is_paused: bool
) -> None:
    async with Engine(store_url) as engine, Engine(store_url, workflows=(), recover=False) as other:
        for number in range(5):
            run = await (paused(engine) if is_paused else engine.start(parcel_office))
            outside = await other.get(run.run_id)
            accepted: list[int] = []

            async def send(item: int, by: Run[Any], accepted: list[int] = accepted) -> None:
                await asyncio.sleep(0.002 * (item % 3))
                try:
                    await by.send("parcels", item)
                except InputClosed:
                    return
                accepted.append(item)

            async def close(by: Run[Any], after: float = 0.001 * number) -> None:
                await asyncio.sleep(after)
                await by.close("parcels")

            senders = [send(item, outside if item % 2 else run) for item in range(20)]
            await asyncio.gather(*senders, close(outside))
            if is_paused:
                await run.resume()

            assert sorted(await run.result()) == sorted(accepted)
            assert await verify_run(engine, run.run_id) == []


class ClosedJustBefore(StoreProxy):
    """A store where somebody closes an input just before an item for it is kept."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "add_command" and args[0].kind == SEND:
            payload = {"input": "parcels", "item": "", "blobs": [], "input_id": None, "cursor": None}
            close = Command(
                command_id=CommandId("close/parcels"),
                run_id=args[0].run_id,
                kind=CLOSE,
                payload=payload,
                created_at=0,
            )
            await self.inner.add_command(close)
        return await call()


async def test_a_plain_item_that_loses_against_the_end_is_refused_and_not_kept(store_url: str) -> None:
    store = await open_store(store_url)
    async with Engine(ClosedJustBefore(store).as_store) as engine:
        run = await paused(engine)
        with pytest.raises(InputClosed):
            await run.send("parcels", 1)

        assert [command.kind for command in (await run.load()).commands] == [CLOSE]
    await store.close()
