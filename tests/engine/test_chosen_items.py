"""Chosen items of a map begin again, on a branch. All others keep their results, and nobody is called for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Outputs, ask, collect, failures, node, when, workflow
from perdure.engine.runs.branches import Span
from perdure.engine.runs.run import Run
from perdure.errors import CannotGoBack, RunFailed
from perdure.graph.itemfailure import ItemFailure
from perdure.journal.events import OutboxEnqueued
from tests.engine.engines import assert_whole, log_of
from tests.engine.test_waiting import asked

called: Counter[tuple[str, int]] = Counter()
keys: dict[tuple[str, int], list[str]] = {}
broken: set[int] = set()
extra: dict[str, int] = {}
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    called.clear()
    keys.clear()
    broken.clear()
    extra.clear()


def note(ctx: Context, x: int) -> None:
    called[ctx.node_id, x] += 1
    keys.setdefault((ctx.node_id, x), []).append(ctx.idempotency_key)


def calls(node_id: str) -> dict[int, int]:
    return {x: times for (name, x), times in called.items() if name == node_id}


@node
def numbers(ctx: Context, many: int) -> Iterator[int]:
    note(ctx, many)
    yield from range(many)


@node(concurrency=3)
async def tenfold(ctx: Context, x: int, more: int = 0) -> int:
    note(ctx, x)
    if x in broken:
        raise ValueError(f"{x} is broken")
    return x * 10 + more + extra.get("tenfold", 0)


@node(concurrency=3)
async def plus_one(ctx: Context, x: int) -> int:
    note(ctx, x // 10)
    return x + 1


@node
async def added(ctx: Context, xs: list[int]) -> int:
    note(ctx, 0)
    return sum(xs)


@node
async def beside(ctx: Context, x: int) -> int:
    note(ctx, x)
    return x


@workflow
def over_list(xs: list[int]) -> int:
    return added(collect(tenfold.map(xs)))


@workflow
def over_stream(many: int) -> Any:
    tens = tenfold.map(numbers(many))
    return {"sum": added(collect(plus_one.map(tens))), "beside": beside(many)}


async def began(engine: Engine, **inputs: Any) -> Run[Any]:
    flow: Any = over_list if "xs" in inputs else over_stream
    run = await engine.start(flow, **inputs)
    await run.result()
    return run


async def test_chosen_items_run_again_and_no_others(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, xs=list(range(20)))
        before = dict(keys)
        first = {name: list(found) for name, found in before.items()}
        called.clear()
        extra["tenfold"] = 1

        preview = await run.preview("tenfold", items=[17, 3])
        branch = await run.jump("tenfold", items=[17, 3], reason="again")

        assert await run.result() == sum(range(20)) * 10 + 2
        assert calls("tenfold") == {3: 1, 17: 1}
        assert calls("added") == {0: 1}
        assert branch == 2
        assert preview.items == {"tenfold": (3, 17)}
        assert preview.runs == ("tenfold", "added")
        assert preview.given_up is None
        found = (await run.branches())[-1]
        assert found.items == {"tenfold": (Span(first=3, last=3), Span(first=17, last=17))}
        assert (found.retried, found.dropped) == ((), ("added",))
        for x in range(20):
            own = keys["tenfold", x]
            assert len(set(own)) == len(own), "another piece of work has another key"
            assert own[0] == first["tenfold", x][0]
        await assert_whole(engine, run)


async def test_a_map_over_it_runs_again_for_the_same_items_and_what_collects_runs_whole(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=12)
        called.clear()
        extra["tenfold"] = 2

        preview = await run.preview("tenfold", items=[0, 5, 11])
        await run.jump("tenfold", items=[0, 5, 11])

        assert await run.result() == {"sum": sum(range(12)) * 10 + 12 + 6, "beside": 12}
        assert calls("tenfold") == {0: 1, 5: 1, 11: 1}
        assert calls("plus_one") == {0: 1, 5: 1, 11: 1}
        assert calls("added") == {0: 1}
        assert (calls("numbers"), calls("beside")) == ({}, {})
        assert preview.items == {"tenfold": (0, 5, 11), "plus_one": (0, 5, 11)}
        assert set(preview.kept) == {"numbers", "beside"}
        await assert_whole(engine, run)


async def test_the_last_map_alone_reads_its_items_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=12)
        called.clear()

        await run.jump("plus_one", items=[7])

        assert (await run.result())["sum"] == sum(range(12)) * 10 + 12
        assert called == {("plus_one", 7): 1, ("added", 0): 1}
        await assert_whole(engine, run)


async def test_items_are_chosen_again_and_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=6)
        for number, chosen in enumerate(([1], [1, 2], [2], [0, 1, 2, 3, 4, 5]), start=1):
            called.clear()
            extra["tenfold"] = number
            assert await run.jump("tenfold", items=chosen) == number + 1
            await run.result()
            assert calls("tenfold") == calls("plus_one") == dict.fromkeys(chosen, 1)
            await assert_whole(engine, run)
        assert (await run.result())["sum"] == sum(range(6)) * 10 + 6 + 6 * 4
        for own in keys.values():
            assert len(set(own)) == len(own)
        await run.jump("numbers")
        await run.result()
        assert len(set(keys["tenfold", 1])) == len(keys["tenfold", 1])
        await assert_whole(engine, run)


async def test_items_of_a_map_that_has_failed(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add(6)
        run = await engine.start(over_list, xs=list(range(10)))
        with pytest.raises(RunFailed):
            await run.result()
        done = {x for x in calls("tenfold") if x < 6}
        called.clear()
        broken.clear()

        await run.jump("tenfold", items=[2])

        assert await run.result() == 450
        again = calls("tenfold")
        assert again[2] == again[6] == 1
        assert not (done - {2}) & again.keys()
        assert len(set(keys["tenfold", 2])) == 2, "it was done, and is another piece of work"
        assert len(set(keys["tenfold", 6])) == 1, "it had failed, and is tried again"
        await assert_whole(engine, run)


async def test_what_is_not_done_between_chosen_items_keeps_its_keys(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add(6)
        run = await engine.start(over_list, xs=list(range(10)))
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()

        await run.jump("tenfold", items=[0, 2, 3, 9])

        assert await run.result() == 450
        assert len(set(keys["tenfold", 6])) == 1, "it had failed, and is tried again"
        for x in (0, 2, 3):
            assert len(set(keys["tenfold", x])) == 2
        assert len(keys["tenfold", 1]) == 1
        await assert_whole(engine, run)


@workflow
def over_constants(first: int) -> Any:
    return collect(tenfold.map([first, 1, 2, 3, 4, 5]))


@workflow
def over_failing_stream(many: int) -> Any:
    return collect(plus_one.map(tenfold.map(numbers(many))))


@workflow
def over_pairs(xs: list[int], many: int) -> Any:
    return collect(paired.map(tenfold.map(xs), numbers(many), join="zip", leftovers="drop"))


@pytest.mark.parametrize(
    ("flow", "inputs", "node_id", "there"),
    [
        (over_list, {"xs": list(range(10))}, "tenfold", 10),
        (over_failing_stream, {"many": 10}, "tenfold", 10),
        (over_failing_stream, {"many": 10}, "plus_one", 10),
        (over_constants, {"first": 6}, "tenfold", 6),
    ],
)
async def test_items_beyond_the_end_of_a_map_that_has_failed_are_refused(
    store_url: str, flow: Any, inputs: dict[str, Any], node_id: str, there: int
) -> None:
    async with Engine(store_url) as engine:
        broken.add(6 if flow is not over_constants else 4)
        run = await engine.start(flow, **inputs)
        with pytest.raises(RunFailed):
            await run.result()
        before = await log_of(run)

        for items in ([there], [0, there, there + 1], [10**9]):
            missing = ", ".join(str(item) for item in items if item >= there)
            problem = f"no item {missing} of '{node_id}': it has {there}, from 0 to {there - 1}. Choose among those"
            with pytest.raises(CannotGoBack, match=problem):
                await run.jump(node_id, items=items)
            assert problem in str((await run.preview(node_id, items=items)).given_up)

        assert await log_of(run) == before
        assert (await run.load()).commands == ()
        broken.clear()
        await run.jump(node_id, items=[there - 1])
        await run.result()
        await assert_whole(engine, run)


@node
async def three_and_no_more() -> AsyncIterator[int]:
    for number in range(3):
        yield number
    gates["given"].set()
    await gates["more"].wait()
    yield 3


@node
async def after_all_three(ctx: Context, x: int) -> int:
    note(ctx, x)
    if x == 2 and not gates["more"].is_set():
        await gates["given"].wait()
        raise ValueError("it has come too early")
    return x


@workflow
def over_open_stream() -> Any:
    return collect(after_all_three.map(three_and_no_more()))


async def test_items_that_have_not_come_yet_are_refused(store_url: str) -> None:
    async with Engine(store_url) as engine:
        gates.update(given=asyncio.Event(), more=asyncio.Event())
        run = await engine.start(over_open_stream)
        with pytest.raises(RunFailed):
            await run.result()

        with pytest.raises(CannotGoBack, match="no item 3 of 'after_all_three': it has 3 so far, from 0 to 2"):
            await run.jump("after_all_three", items=[3])

        gates["more"].set()
        await run.jump("after_all_three", items=[0, 2])
        assert await run.result() == [0, 1, 2, 3]
        assert calls("after_all_three")[0] == 2
        await assert_whole(engine, run)


async def test_of_streams_that_are_zipped_the_shortest_tells_how_many_items_there_are(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add(70)
        run = await engine.start(over_pairs, xs=list(range(10)), many=8)
        with pytest.raises(RunFailed):
            await run.result()

        with pytest.raises(CannotGoBack, match="no item 8 of 'paired': it has 8, from 0 to 7"):
            await run.jump("paired", items=[8])


@node(on_item_error="skip")
async def perhaps(ctx: Context, x: int) -> int:
    note(ctx, x)
    if x in broken:
        raise ValueError(f"{x} is broken")
    return x * 10


@node(on_item_error="collect")
async def or_error(ctx: Context, x: int) -> int:
    note(ctx, x)
    if x in broken:
        raise ValueError(f"{x} is broken")
    return x * 10


@node
async def gathered(xs: list[int], failures: list[ItemFailure]) -> list[Any]:
    return [xs, [failure.position for failure in failures]]


@workflow
def over_holes(xs: list[int]) -> Any:
    given = or_error.map(xs)
    return {
        "skipped": collect(plus_one.map(perhaps.map(xs))),
        "failed": gathered(collect(given), collect(failures(given))),
    }


@pytest.mark.parametrize("node_id", ["perhaps", "or_error"])
async def test_items_that_were_given_up_are_chosen_and_positions_stay(store_url: str, node_id: str) -> None:
    async with Engine(store_url) as engine:
        broken.update((1, 4))
        run = await engine.start(over_holes, xs=list(range(6)))
        assert await run.result() == {"skipped": [1, 21, 31, 51], "failed": [[0, 20, 30, 50], [1, 4]]}
        called.clear()
        broken.discard(4)

        await run.jump(node_id, items=[4, 5])

        expected: dict[str, Any] = {"skipped": [1, 21, 31, 51], "failed": [[0, 20, 30, 50], [1, 4]]}
        if node_id == "perhaps":
            expected["skipped"] = [1, 21, 31, 41, 51]
        else:
            expected["failed"] = [[0, 20, 30, 40, 50], [1]]
        assert await run.result() == expected
        assert calls(node_id) == {4: 1, 5: 1}
        assert calls("plus_one") == ({4: 1, 5: 1} if node_id == "perhaps" else {})
        found = {state.node_id: state for state in (await run.load()).nodes}[node_id]  # type: ignore[index]
        assert found.stream is not None
        assert found.stream.failed == 1
        await assert_whole(engine, run)
        called.clear()
        broken.clear()
        await run.jump(node_id, items=[1])
        await run.result()
        assert calls(node_id) == {1: 1}
        await assert_whole(engine, run)


@node
async def is_even(ctx: Context, x: int) -> bool:
    note(ctx, x)
    return x % 2 == 0


@node
async def both(ctx: Context, x: int) -> Outputs:
    note(ctx, x)
    return Outputs(low=x, high=x + 100)


@node
async def halves(ctx: Context, x: int) -> AsyncIterator[int]:
    note(ctx, x)
    for _ in range(x % 3):
        yield x


@workflow
def over_conditions(xs: list[int]) -> Any:
    with when(is_even.map(xs)):
        even = tenfold.map(xs)
    return collect(even)


@workflow
def over_parts(xs: list[int]) -> Any:
    parts = both.map(xs)
    some = halves.map(xs)
    return {"low": collect(plus_one.map(parts.low)), "high": collect(parts.high), "some": collect(some)}


async def test_items_for_which_a_condition_did_not_hold_keep_their_places(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_conditions, xs=list(range(8)))
        assert await run.result() == [0, 20, 40, 60]
        called.clear()
        extra["tenfold"] = 1

        await run.jump("tenfold", items=[4, 5])

        assert await run.result() == [0, 20, 41, 60]
        assert called == {("tenfold", 4): 1}
        await assert_whole(engine, run)


@pytest.mark.parametrize("node_id", ["both", "halves"])
async def test_items_with_several_outputs_and_several_results_keep_their_places(store_url: str, node_id: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_parts, xs=list(range(8)))
        expected = await run.result()
        called.clear()

        await run.jump(node_id, items=[2, 3, 7])

        assert await run.result() == expected
        assert calls(node_id) == {2: 1, 3: 1, 7: 1}
        await assert_whole(engine, run)


async def test_chosen_items_get_other_arguments(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, xs=[1, 2, 3])
        called.clear()

        await run.jump("tenfold", items=[1], inputs={"more": 5})

        assert await run.result() == 65
        assert calls("tenfold") == {2: 1}
        await assert_whole(engine, run)


async def test_what_cannot_be_chosen_is_refused_and_nothing_has_changed(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, xs=list(range(5)))
        before = await log_of(run)
        wrong: list[tuple[str, Any, str]] = [
            ("tenfold", [5], "no item 5 of 'tenfold': it has 5, from 0 to 4"),
            ("tenfold", [1, 99, 100], "no item 99, 100 of 'tenfold'"),
            ("tenfold", [], "no item of 'tenfold' is chosen"),
            ("tenfold", [2, 1, 2], "item 2 of 'tenfold' is chosen more than once"),
            ("tenfold", [-1], "-1 is no item of 'tenfold'"),
            ("tenfold", [True], "True is no item of 'tenfold'"),
            ("tenfold", ["1"], "'1' is no item of 'tenfold'"),
            ("added", [0], "'added' is not mapped"),
            ("nobody", [0], "no node 'nobody'"),
        ]
        for node_id, items, problem in wrong:
            with pytest.raises(CannotGoBack, match=problem):
                await run.jump(node_id, items=items)
        with pytest.raises(CannotGoBack, match="single items of 'tenfold'"):
            await run.jump("tenfold", items=[1], outputs=[1])
        assert (await run.preview("tenfold", items=[5])).given_up is not None
        assert await log_of(run) == before
        assert (await run.load()).commands == ()
        await assert_whole(engine, run)


@workflow
def over_question(xs: list[int]) -> Any:
    tens = tenfold.map(xs)
    with when(ask.named("may")("Go on?", schema=bool)):
        total = added(collect(tens))
    return total


@node
async def held(total: int) -> int:
    gates["held"].set()
    await gates["open"].wait()
    return total


@workflow
def over_gate(xs: list[int]) -> int:
    return held(added(collect(tenfold.map(xs))))


async def test_a_run_that_moves_does_not_go_back_to_items(store_url: str) -> None:
    async with Engine(store_url) as engine:
        gates.update(held=asyncio.Event(), open=asyncio.Event())
        run = await engine.start(over_gate, xs=[1, 2, 3])
        await gates["held"].wait()
        with pytest.raises(CannotGoBack, match="pause or cancel it first"):
            await run.jump("tenfold", items=[0])
        gates["open"].set()
        assert await run.result() == 60
        assert len(await run.branches()) == 1


async def test_a_run_that_was_paused_goes_back_to_items_and_stays_paused(store_url: str) -> None:
    async with Engine(store_url) as engine:
        gates.update(held=asyncio.Event(), open=asyncio.Event())
        run = await engine.start(over_gate, xs=[1, 2, 3])
        await gates["held"].wait()
        await run.pause(grace=0)
        while await run.status() != "paused":
            await asyncio.sleep(0.01)
        called.clear()
        extra["tenfold"] = 1
        gates["open"].set()

        assert await run.jump("tenfold", items=[2]) == 2
        assert await run.status() == "paused"
        assert called == {}
        await run.resume()

        assert await run.result() == 61
        assert calls("tenfold") == {3: 1}
        await assert_whole(engine, run)


async def test_a_run_that_waits_goes_back_to_items(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(over_question, xs=[1, 2, 3])
        (question,) = await asked(run)
        while await run.status() != "awaiting_input":
            await asyncio.sleep(0.01)
        called.clear()
        extra["tenfold"] = 1

        await run.jump("tenfold", items=[0])

        await run.answer(question.interaction_id, True)
        assert await run.result() == 61
        assert calls("tenfold") == {1: 1}
        await assert_whole(engine, run)


@node
async def stepped(ctx: Context, x: int) -> int:
    note(ctx, x)
    step = await ctx.step(_counted, x)
    answer = await ctx.ask(f"And {x}?", schema=int)
    return step + answer


async def _counted(x: int) -> int:
    called["step", x] += 1
    return x * 100


@workflow
def over_waits(xs: list[int]) -> Any:
    return collect(stepped.map(xs))


async def test_chosen_items_take_their_steps_and_ask_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_waits, xs=[1, 2, 3])
        for number in range(3):
            (question,) = await asked(run)
            await run.answer(question.interaction_id, number)
            while question in await run.questions():
                await asyncio.sleep(0.01)
        assert await run.result() == [100, 201, 302]
        earlier = {wait.wait_id for wait in (await run.load()).waits}
        called.clear()

        preview = await run.preview("stepped", items=[1])
        await run.jump("stepped", items=[1])
        (question,) = await asked(run)
        await run.answer(question.interaction_id, 50)

        assert await run.result() == [100, 250, 302]
        assert preview.asks == ("stepped",)
        assert question.prompt == "And 2?"
        assert question.interaction_id not in earlier
        assert calls("step") == {2: 1}
        await assert_whole(engine, run)


async def test_a_fork_chooses_items_of_what_it_has_taken_over(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=6)
        other = await run.fork()
        await other.result()
        called.clear()
        extra["tenfold"] = 1

        await other.jump("tenfold", items=[2])

        assert (await other.result())["sum"] == (await run.result())["sum"] + 1
        assert calls("tenfold") == calls("plus_one") == {2: 1}
        await assert_whole(engine, other)


async def test_a_fork_keeps_the_blobs_of_items_that_it_has_taken_over(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(inline_max_bytes=200)) as engine:
        run = await engine.start(over_large, xs=list(range(30)))
        expected = await run.result()
        other = await run.fork()
        await other.result()

        await other.jump("large", items=[4])

        assert await other.result() == expected
        await assert_whole(engine, other)


async def test_what_was_before_can_be_had_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=6)
        before = await run.result()
        extra["tenfold"] = 1
        await run.jump("tenfold", items=[2])
        after = await run.result()
        called.clear()

        await run.promote(1)
        assert await run.result() == before
        await run.promote(2)
        assert await run.result() == after

        assert called == {}
        await assert_whole(engine, run)
        await run.jump("tenfold", items=[3])
        await run.result()
        assert calls("tenfold") == {3: 1}
        assert len(set(keys["tenfold", 3])) == 2
        await assert_whole(engine, run)


async def test_large_results_are_kept(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(inline_max_bytes=200)) as engine:
        run = await engine.start(over_large, xs=list(range(30)))
        expected = await run.result()
        called.clear()

        await run.jump("large", items=[0, 29])

        assert await run.result() == expected
        assert calls("large") == {0: 1, 29: 1}
        await assert_whole(engine, run)


@node
async def large(ctx: Context, x: int) -> dict[str, str]:
    note(ctx, x)
    return {"name": str(x), "text": f"{x}" * 400}


@workflow
def over_large(xs: list[int]) -> Any:
    return collect(large.map(xs)["name"])


@pytest.mark.slow
async def test_ten_thousand_items_are_kept_quickly(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, xs=list(range(10_000)))
        called.clear()

        begun = time.perf_counter()
        await run.jump("tenfold", items=[3, 9_999])
        assert await run.result() == sum(range(10_000)) * 10
        took = time.perf_counter() - begun

        assert calls("tenfold") == {3: 1, 9_999: 1}
        assert took < 10, f"it took {took:.1f} s"
        await assert_whole(engine, run)


@pytest.mark.slow
async def test_a_map_over_every_second_of_ten_thousand_items_reads_nothing_back_that_is_at_hand(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=10_000)
        called.clear()
        pages = 0
        load_items = engine.store.load_items

        async def counted(*given: Any, **options: Any) -> Any:
            nonlocal pages
            pages += 1
            return await load_items(*given, **options)

        monkeypatch.setattr(engine.store, "load_items", counted)
        await run.jump("tenfold", items=range(0, 10_000, 2))
        assert (await run.result())["sum"] == sum(range(10_000)) * 10 + 10_000

        assert len(calls("tenfold")) == len(calls("plus_one")) == 5_000
        assert pages < 1_500, "that is what the two streams have when they become values"
        await assert_whole(engine, run)


@pytest.mark.slow
async def test_every_second_of_ten_thousand_items_begins_again_quickly(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, xs=list(range(10_000)))
        called.clear()

        begun = time.perf_counter()
        await run.jump("tenfold", items=range(0, 10_000, 2))
        assert await run.result() == sum(range(10_000)) * 10
        took = time.perf_counter() - begun

        assert calls("tenfold") == dict.fromkeys(range(0, 10_000, 2), 1)
        (state,) = [found for found in (await run.load()).nodes if found.node_id == "tenfold"]
        assert state.stream is not None
        assert state.stream.chosen == ((0, 9_999, 2),), "what is written with every batch of items is small"
        assert took < 10, f"it took {took:.1f} s"
        await assert_whole(engine, run)


@node(once=True)
async def paid(xs: list[int]) -> int:
    return sum(xs)


@node(ordered=False)
async def whenever(ctx: Context, x: int) -> int:
    note(ctx, x)
    return x


@workflow
def over_others(xs: list[int]) -> Any:
    return {"paid": paid(collect(tenfold.map(xs))), "whenever": collect(whenever.map(xs))}


@pytest.mark.parametrize(
    ("node_id", "problem"), [("tenfold", "'paid' must run at most once"), ("whenever", "not in the order")]
)
async def test_items_that_must_not_or_cannot_be_told_apart_are_refused(
    store_url: str, node_id: str, problem: str
) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_others, xs=[1, 2])
        await run.result()
        with pytest.raises(CannotGoBack, match=problem):
            await run.jump(node_id, items=[0])
        assert len(await run.branches()) == 1


@workflow
def over_two_streams(many: int) -> Any:
    first, second = tenfold.map(numbers(many)), plus_one.map(numbers.named("others")(many))
    return collect(paired.map(first, second, join="zip"))


@node
async def paired(ctx: Context, x: int, y: int) -> int:
    note(ctx, x // 10)
    if x in broken:
        raise ValueError(f"{x} is broken")
    return x + y


async def test_a_fork_that_went_back_to_items_goes_back_to_the_midst_of_that(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_two_streams, many=5)
        expected = await run.result()
        fork = await run.fork()
        await fork.jump("plus_one", items=[2])
        assert await fork.result() == expected
        midst = max(entry.seq for entry in await log_of(fork) if isinstance(entry.event, OutboxEnqueued))
        called.clear()

        await fork.restore(midst)

        assert await fork.result() == expected
        assert calls("numbers") == {5: 1}, (
            "its items are gone, and of those that the fork took over there was only the whole"
        )
        await assert_whole(engine, fork)


@pytest.mark.parametrize(
    ("node_id", "ways"),
    [
        ("tenfold", "go back to 'numbers', or choose items of 'tenfold'"),
        ("plus_one", "go back to 'numbers', or choose items of 'plus_one'"),
    ],
)
async def test_whoever_cannot_go_back_to_a_whole_map_is_told_what_can_be_done(
    store_url: str, node_id: str, ways: str
) -> None:
    async with Engine(store_url) as engine:
        run = await began(engine, many=5)

        with pytest.raises(CannotGoBack, match=f"its items are not kept: {ways}"):
            await run.jump(node_id)

        await run.jump(node_id, items=range(5))
        await run.jump("numbers")
        assert (await run.result())["sum"] == 105


async def test_going_back_to_one_of_two_streams_is_not_what_is_recommended(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(over_two_streams, many=5)
        await run.result()

        with pytest.raises(CannotGoBack, match="its items are not kept: choose items of 'paired', as many") as refusal:
            await run.jump("paired")
        assert "go back to" not in refusal.value.why
        with pytest.raises(CannotGoBack, match="not kept: go back to a node on which all depends that it reads"):
            await run.jump("numbers")
