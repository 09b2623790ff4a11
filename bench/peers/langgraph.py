"""LangGraph: a library; a checkpoint of the graph's state after every step, in the checkpointer's database.

Both of its APIs, each with its own checkpointers: async with many runs at once, sync with one after the other (more
threads made it no faster). A chain is one node with an edge to itself: compiling 1,000 nodes is no part of the figure.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch

CONNECTIONS = 8
ABREAST = 100
SYNC = "sync API"
DURABILITY = {"durability async": "async", "durability exit": "exit"}


State = dict[str, Any]
Body = Callable[[State], State]


class Count(TypedDict):
    n: int


class Fan(TypedDict):
    n: int
    results: Annotated[list[dict[str, int]], operator.add]


class Text(TypedDict):
    n: int
    text: str


@asynccontextmanager
async def saver_for(task: Task) -> AsyncIterator[Any]:
    """Yield the checkpointer of the variant's API on the task's database."""
    if task.variant == SYNC:
        with _open_sync(task) as saver:
            saver.setup()
            yield saver
    else:
        async with _open_async(task) as saver:
            await saver.setup()
            yield saver


def _open_sync(task: Task) -> Any:
    if task.store == "sqlite":
        return SqliteSaver.from_conn_string(str(task.database_file))
    return PostgresSaver.from_conn_string(task.store_url)


@asynccontextmanager
async def _open_async(task: Task) -> AsyncIterator[Any]:
    if task.store == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(task.database_file)) as saver:
            yield saver
        return
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool = AsyncConnectionPool(task.store_url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=settings, open=False)
    async with pool:
        yield AsyncPostgresSaver(pool)


async def invoke(task: Task, graph: Any, argument: Any, run: str) -> State:
    """Run the graph. The sync API may hold up the loop: nothing else is on it."""
    config = {"configurable": {"thread_id": run}, "recursion_limit": task.steps + 10}
    durability = DURABILITY.get(task.variant, "sync")
    if task.variant == SYNC:
        return graph.invoke(argument, config, durability=durability)
    return await graph.ainvoke(argument, config, durability=durability)


def body_for(task: Task, body: Body) -> Any:
    """Return the body as the variant's API likes it: a plain function on the async API would go to a thread."""
    if task.variant == SYNC:
        return body

    async def on_the_loop(state: State) -> State:
        return body(state)

    return on_the_loop


def chain(task: Task, body: Body, saver: Any, schema: type = Count) -> Any:
    graph = StateGraph(schema)
    graph.add_node("step", body_for(task, body))
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["n"] >= task.steps else "step")
    return graph.compile(checkpointer=saver)


def fan(task: Task, saver: Any) -> Any:
    def work(state: State) -> State:
        return {"results": [count(state)]}

    def join(state: State) -> State:
        return count({"n": sum(result["n"] for result in state["results"])})

    graph = StateGraph(Fan)
    graph.add_node("start", body_for(task, count))
    graph.add_node("work", body_for(task, work))
    graph.add_node("join", body_for(task, join))
    graph.add_edge(START, "start")
    graph.add_conditional_edges("start", lambda state: [Send("work", {"n": state["n"]})] * task.steps, ["work"])
    graph.add_edge("work", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver)


async def _w1(task: Task) -> Measurement:
    async with saver_for(task) as saver:
        graph = chain(task, count, saver)
        with stopwatch() as watch:
            result = await invoke(task, graph, {"n": 0}, "chain")
    expect(result, {"n": task.steps})
    return rate(task.steps, watch)


async def _w2(task: Task) -> Measurement:
    room = asyncio.Semaphore(ABREAST)
    async with saver_for(task) as saver:
        graph = chain(task, count, saver)

        async def run(number: int) -> None:
            async with room:
                expect(await invoke(task, graph, {"n": 0}, f"run-{number}"), {"n": task.steps})

        with stopwatch() as watch:
            await asyncio.gather(*(run(number) for number in range(task.runs)))
    return rate(task.runs * task.steps, watch)


async def _w3(task: Task) -> Measurement:
    async with saver_for(task) as saver:
        graph = fan(task, saver)
        with stopwatch() as watch:
            result = await invoke(task, graph, {"n": 0, "results": []}, "fan")
    expect(result["n"], 2 * task.steps + 1)
    return rate(task.steps + 2, watch)


async def _w4(task: Task) -> Measurement:
    async with saver_for(task) as saver:
        graph = chain(task, Ledger(task).step, saver)
        expect(await invoke(task, graph, None if task.resumed else {"n": 0}, "chain"), {"n": task.steps})
    return Measurement(value=0.0)


async def _w5(task: Task) -> Measurement:
    figures = Waiting(task=task)
    room = asyncio.Semaphore(ABREAST)
    continued_at: list[float] = []

    def wait(state: State) -> State:
        interrupt("go?")
        continued_at.append(time.perf_counter())
        return count(state)

    async with saver_for(task) as saver:
        graph = chain(task, wait, saver)

        async def start(number: int) -> None:
            async with room:
                await invoke(task, graph, {"n": 0}, f"run-{number}")

        figures.idle()
        with stopwatch() as starting:
            await asyncio.gather(*(start(number) for number in range(task.runs)))
        figures.waiting()
        for number in range(min(WAKES, task.runs)):
            sent = time.perf_counter()
            await invoke(task, graph, Command(resume=True), f"run-{number}")
            figures.woken(sent, continued_at[-1])
    return figures.measurement(starting)


async def _w6(task: Task) -> Measurement:
    async with saver_for(task) as saver:
        graph = chain(task, Texts().after, saver, Text)
        with stopwatch() as watch:
            result = await invoke(task, graph, {"n": 0, "text": ""}, "texts")
    expect(result["n"], task.steps)
    return megabytes(task, watch)


def _on_a_loop(measure: Callable[[Task], Coroutine[Any, Any, Measurement]]) -> Callable[[Task], Measurement]:
    return lambda task: asyncio.run(measure(task))


w1, w2, w3, w4, w5, w6 = map(_on_a_loop, (_w1, _w2, _w3, _w4, _w5, _w6))
