"""Restate: a server that keeps the journal and calls handlers over HTTP/2; the handlers live in this process.

A step is `ctx.run_typed`, waiting is a durable promise of a workflow. Runs are started through the ingress.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch

ABREAST = 100
State = dict[str, Any]
Body = Callable[[State], State]


@asynccontextmanager
async def serving(task: Task, service: Any, protocol: Any = "bidi") -> AsyncIterator[httpx.AsyncClient]:
    """Serve the handlers, tell the server about them, and yield a client of its ingress."""
    address = urlsplit(task.store_url)
    ports = {name: values[0] for name, values in parse_qs(address.query).items()}
    config = Config()
    config.bind = [f"127.0.0.1:{ports['handlers']}"]
    config.loglevel = "ERROR"
    stopped = asyncio.Event()
    limits = httpx.Limits(max_connections=ABREAST)
    client = httpx.AsyncClient(base_url=f"http://{address.netloc}", limits=limits, timeout=None)
    async with asyncio.TaskGroup() as group, client:
        group.create_task(serve(restate.app([service], protocol), config, shutdown_trigger=stopped.wait))
        if not task.resumed:
            await asyncio.sleep(0.5)
            deployment = {"uri": f"http://127.0.0.1:{ports['handlers']}"}
            answer = await client.post(f"http://127.0.0.1:{ports['admin']}/deployments", json=deployment)
            answer.raise_for_status()
        yield client
        stopped.set()


async def call(client: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    answer = await client.post(path, json=body)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def chain_service(body: Body) -> Any:
    service = restate.Workflow("bench")

    @service.main()
    async def run(context: restate.WorkflowContext, steps: int) -> int:
        state: State = {"n": 0}
        for _ in range(steps):
            state = await context.run_typed("step", body, state=state)
        return state["n"]

    return service


async def run_chain(task: Task, body: Body) -> Any:
    async with serving(task, chain_service(body)) as client:
        with stopwatch() as watch:
            if task.resumed:
                result = (await client.get("/restate/workflow/bench/chain/attach")).raise_for_status().json()
            else:
                result = await call(client, "/bench/chain/run", task.steps)
    expect(result, task.steps)
    return watch


def on_the_loop(body: Body) -> Any:
    """A coroutine function: a plain one would go to a thread for each step."""

    async def step(state: State) -> State:
        return body(state)

    return step


async def _w1(task: Task) -> Measurement:
    return rate(task.steps, await run_chain(task, on_the_loop(count)))


async def _w2(task: Task) -> Measurement:
    room = asyncio.Semaphore(ABREAST)
    async with serving(task, chain_service(on_the_loop(count))) as client:

        async def run(number: int) -> None:
            async with room:
                expect(await call(client, f"/bench/run-{number}/run", task.steps), task.steps)

        with stopwatch() as watch:
            await asyncio.gather(*(run(number) for number in range(task.runs)))
    return rate(task.runs * task.steps, watch)


async def _w3(task: Task) -> Measurement:
    service = restate.Workflow("bench")
    step = on_the_loop(count)

    @service.main()
    async def run(context: restate.WorkflowContext, width: int) -> int:
        start = await context.run_typed("start", step, state={"n": 0})
        parallel = [context.run_typed("work", step, state=start) for _ in range(width)]
        states = [await future for future in await restate.gather(*parallel)]
        joined = await context.run_typed("join", step, state={"n": sum(state["n"] for state in states)})
        return joined["n"]

    async with serving(task, service) as client:
        with stopwatch() as watch:
            result = await call(client, "/bench/fan/run", task.steps)
    expect(result, 2 * task.steps + 1)
    return rate(task.steps + 2, watch)


async def _w4(task: Task) -> Measurement:
    await run_chain(task, on_the_loop(Ledger(task).step))
    return Measurement(value=0.0, notes="only the process with the handlers is killed")


async def _w5(task: Task) -> Measurement:
    figures = Waiting(task=task)
    room = asyncio.Semaphore(ABREAST)
    arrived, woken = asyncio.Semaphore(0), asyncio.Event()
    continued_at: list[float] = []
    service = restate.Workflow("bench")

    @service.main()
    async def run(context: restate.WorkflowContext) -> None:
        arrived.release()
        await context.promise("go").value()
        continued_at.append(time.perf_counter())
        woken.set()

    @service.handler()
    async def go(context: restate.WorkflowSharedContext) -> None:
        await context.promise("go").resolve(True)

    # With a stream held open for each waiting run, starting them is slower and they take more memory.
    async with serving(task, service, "request_response") as client:

        async def start(number: int) -> None:
            async with room:
                await call(client, f"/bench/run-{number}/run/send")

        figures.idle()
        with stopwatch() as starting:
            await asyncio.gather(*(start(number) for number in range(task.runs)))
            for _ in range(task.runs):
                await arrived.acquire()
        figures.waiting()
        for number in range(min(WAKES, task.runs)):
            woken.clear()
            sent = time.perf_counter()
            await call(client, f"/bench/run-{number}/go")
            await woken.wait()
            figures.woken(sent, continued_at[-1])
    return figures.measurement(starting)


async def _w6(task: Task) -> Measurement:
    return megabytes(task, await run_chain(task, on_the_loop(Texts().after)))


def _on_a_loop(measure: Callable[[Task], Coroutine[Any, Any, Measurement]]) -> Callable[[Task], Measurement]:
    return lambda task: asyncio.run(measure(task))


w1, w2, w3, w4, w5, w6 = map(_on_a_loop, (_w1, _w2, _w3, _w4, _w5, _w6))
