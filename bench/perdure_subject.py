"""perdure: an engine in this process. Graphs are traced from loops; bodies are async unless the variant says no."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

from bench.workloads import (
    WAKES,
    Ledger,
    Measurement,
    Stretches,
    Task,
    Texts,
    Waiting,
    count,
    expect,
    megabytes,
    rate,
    stopwatch,
)
from perdure import Context, Engine, Run, ask, node, workflow

ABREAST = 128
"""How many runs there are at once: as many as there are threads for bodies that block."""
WAITING_ABREAST = 100
WAITING_BODY = "a body that waits"
# A body that waits is kept warm for five seconds; what counts is a run that has been waiting for longer.
HIBERNATED_AFTER_SECONDS = 7.0
DURABILITY: dict[str, Literal["async", "exit"]] = {"durability async": "async", "durability exit": "exit"}

State = dict[str, int]

texts = Texts()
ledger: Ledger | None = None
stretches: Stretches | None = None
continued_at: dict[str, float] = {}


@node
async def step(state: State) -> State:
    return count(state)


@node
def plain_step(state: State) -> State:
    return count(state)


@node(pure=True)
async def pure_step(state: State) -> State:
    return count(state)


@node
async def marked_step(state: State) -> State:
    assert ledger is not None
    return ledger.step(state)


@node
async def text_step(state: dict[str, Any]) -> dict[str, Any]:
    return texts.after(state)


@node
async def join(states: list[State]) -> State:
    return count({"n": sum(state["n"] for state in states)})


@node
def plain_join(states: list[State]) -> State:
    return count({"n": sum(state["n"] for state in states)})


@node
async def go_on(ctx: Context, answer: bool) -> None:
    expect(answer, True)
    continued_at[ctx.run_id] = time.perf_counter()


@node
async def wait(ctx: Context) -> None:
    await ctx.wait_for("go")
    continued_at[ctx.run_id] = time.perf_counter()


@node
async def numbers(size: int) -> AsyncIterator[State]:
    for number in range(size):
        yield {"n": number}


@node
def plain_numbers(size: int) -> Iterator[State]:
    for number in range(size):
        yield {"n": number}


@node(concurrency=64)
async def item(state: State) -> State:
    assert stretches is not None
    stretches.passed(state["n"])
    return count(state)


@node(concurrency=64)
def plain_item(state: State) -> State:
    assert stretches is not None
    stretches.passed(state["n"])
    return count(state)


@node(concurrency=64)
async def marked_item(state: State) -> State:
    assert ledger is not None
    return ledger.step(state)


STEPS = {"def bodies": plain_step, "pure nodes": pure_step}
JOINS = {"def bodies": plain_join}
SOURCES = {"def bodies": plain_numbers, "plain generator": plain_numbers}
ITEMS = {"def bodies": plain_item, "items of a stream": marked_item}


def chain_of(body: Any, steps: int) -> Any:
    @workflow
    def chain(state: dict[str, Any]) -> dict[str, Any]:
        for _ in range(steps):
            state = body(state)
        return state

    return chain


def fan_of(body: Any, joining: Any, width: int) -> Any:
    @workflow
    def fan(state: State) -> State:
        start = body(state)
        joined: State = joining([body(start) for _ in range(width)])
        return joined

    return fan


async def defined(engine: Engine, flow: Any) -> Any:
    """Trace and save the workflow: what others do where they build or compile their graph, before the watch starts."""
    await engine.save(flow)
    return flow


@workflow
def asking() -> None:
    return go_on(ask("Go on?", schema=bool))


@workflow
def waiting() -> None:
    return wait()


def stream_of(source: Any, body: Any) -> Any:
    @workflow
    def stream(size: int) -> None:
        body.map(source(size))

    return stream


async def run_chain(engine: Engine, task: Task, chain: Any) -> Any:
    with stopwatch() as watch:
        run = await engine.start(chain, state={"n": 0}, run_id="chain", durability=DURABILITY.get(task.variant))
        result = await run.result()
    expect(result["n"], task.steps)
    return watch


async def _w1(engine: Engine, task: Task) -> Measurement:
    chain = chain_of(STEPS.get(task.variant, step), task.steps)
    with stopwatch() as tracing:
        _ = chain.graph
    with stopwatch() as saving:
        await defined(engine, chain)
    watch = await run_chain(engine, task, chain)
    return rate(task.steps, watch, more={"trace_ms": tracing.seconds * 1_000, "save_ms": saving.seconds * 1_000})


async def _w2(engine: Engine, task: Task) -> Measurement:
    chain = await defined(engine, chain_of(STEPS.get(task.variant, step), task.steps))

    async def run(number: int) -> None:
        started = await engine.start(chain, state={"n": 0}, run_id=f"run-{number}")
        expect(await started.result(), {"n": task.steps})

    with stopwatch() as watch:
        await _all(run, task.runs, abreast=ABREAST)
    return rate(task.runs * task.steps, watch)


async def _w3(engine: Engine, task: Task) -> Measurement:
    fan = await defined(engine, fan_of(STEPS.get(task.variant, step), JOINS.get(task.variant, join), task.steps))
    with stopwatch() as watch:
        run = await engine.start(fan, state={"n": 0}, run_id="fan")
        result = await run.result()
    expect(result, {"n": 2 * task.steps + 1})
    return rate(task.steps + 2, watch)


async def run_stream(engine: Engine, task: Task) -> Any:
    stream = await defined(engine, stream_of(SOURCES.get(task.variant, numbers), ITEMS.get(task.variant, item)))
    with stopwatch() as watch:
        run = await engine.start(stream, size=task.steps, run_id="stream")
        await run.result()
    return watch


async def _w4(engine: Engine, task: Task) -> Measurement:
    if task.variant in ITEMS:
        await run_stream(engine, task)
        return Measurement(value=0.0)
    await run_chain(engine, task, await defined(engine, chain_of(marked_step, task.steps)))
    return Measurement(value=0.0)


async def _w5(engine: Engine, task: Task) -> Measurement:
    figures = Waiting(task=task)
    woken: list[Run[Any]] = []
    is_in_a_body = task.variant == WAITING_BODY
    flow = await defined(engine, waiting if is_in_a_body else asking)

    async def start(number: int) -> None:
        run = await engine.start(flow, run_id=f"run-{number}")
        if number < WAKES:
            woken.append(run)

    figures.idle()
    with stopwatch() as starting:
        await _all(start, task.runs, abreast=WAITING_ABREAST)
    await asyncio.sleep(HIBERNATED_AFTER_SECONDS)
    figures.waiting()
    for run in woken:
        asked = await run.questions()
        sent = time.perf_counter()
        if is_in_a_body:
            await run.signal("go", True)
        else:
            await run.answer(asked[0].interaction_id, True)
        await run.result()
        figures.woken(sent, continued_at[run.run_id])
    return figures.measurement(starting)


async def _w6(engine: Engine, task: Task) -> Measurement:
    chain = await defined(engine, chain_of(text_step, task.steps))
    return megabytes(task, await run_chain(engine, task, chain))


async def _w7(engine: Engine, task: Task) -> Measurement:
    global stretches
    stretches = Stretches(task.steps)
    watch = await run_stream(engine, task)
    expect(stretches.count, task.steps)
    return rate(task.steps, watch, more=stretches.rates())


async def _all(action: Callable[[int], Awaitable[None]], number: int, *, abreast: int) -> None:
    numbers = iter(range(number))

    async def one_after_the_other() -> None:
        for index in numbers:
            await action(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(abreast):
            group.create_task(one_after_the_other())


def _with_an_engine(measure: Callable[[Engine, Task], Awaitable[Measurement]]) -> Callable[[Task], Measurement]:
    async def main(task: Task) -> Measurement:
        global ledger
        # Before the engine: it picks up what a killed process left as soon as it is there.
        ledger = Ledger(task) if task.workload == "W4" else None
        async with Engine(task.store_url) as engine:
            return await measure(engine, task)

    return lambda task: asyncio.run(main(task))


w1, w2, w3, w4, w5, w6, w7 = map(_with_an_engine, (_w1, _w2, _w3, _w4, _w5, _w6, _w7))
