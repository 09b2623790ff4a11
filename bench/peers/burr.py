"""Apache Burr: a library; the caller drives a state machine whose state is saved after each action.

There is no engine: runs go one after the other, waiting is stopping, waking is loading the state and going on.
W3 is left out: parallel actions are sub-applications with persisters of their own.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import time
from typing import Any

from burr.core import ApplicationBuilder, State, action, default, when
from burr.core.graph import GraphBuilder
from burr.core.persistence import SQLitePersister

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch


@action(reads=[], writes=[])
def done(state: State) -> State:
    return state


def chain_graph(body: Any, steps: int, field: str = "n") -> Any:
    """Return a graph in which one action repeats until `n` is `steps`."""

    @action(reads=["n"], writes=["n", field])
    def step(state: State) -> State:
        return state.update(**body({"n": state["n"]}))

    return (
        GraphBuilder()
        .with_actions(step=step, done=done)
        .with_transitions(("step", "done", when(n=steps)), ("step", "step", default))
        .build()
    )


def open_persister(task: Task) -> SQLitePersister:
    persister = SQLitePersister(str(task.database_file), connect_kwargs={"check_same_thread": False})
    persister.initialize()
    return persister


def application(graph: Any, persister: SQLitePersister, run: str) -> Any:
    """Return the run where its saved state left it, or at the start."""
    return (
        ApplicationBuilder()
        .with_graph(graph)
        .with_identifiers(app_id=run)
        .initialize_from(persister, resume_at_next_action=True, default_state={"n": 0}, default_entrypoint="step")
        .with_state_persister(persister)
        .build()
    )


def run_to_end(graph: Any, persister: SQLitePersister, run: str) -> int:
    _, _, state = application(graph, persister, run).run(halt_before=["done"])
    return state["n"]


def w1(task: Task) -> Measurement:
    graph, persister = chain_graph(count, task.steps), open_persister(task)
    with stopwatch() as watch:
        expect(run_to_end(graph, persister, "chain"), task.steps)
    return rate(task.steps, watch)


def w2(task: Task) -> Measurement:
    graph, persister = chain_graph(count, task.steps), open_persister(task)
    with stopwatch() as watch:
        for number in range(task.runs):
            expect(run_to_end(graph, persister, f"run-{number}"), task.steps)
    return rate(task.runs * task.steps, watch)


def w4(task: Task) -> Measurement:
    graph, persister = chain_graph(Ledger(task).step, task.steps), open_persister(task)
    expect(run_to_end(graph, persister, "chain"), task.steps)
    return Measurement(value=0.0)


def waiting_graph(continued_at: list[float]) -> Any:
    @action(reads=["n"], writes=["n"])
    def step(state: State) -> State:
        return state.update(**count({"n": state["n"]}))

    @action(reads=["n"], writes=["n"])
    def go(state: State, event: str) -> State:
        continued_at.append(time.perf_counter())
        return state.update(**count({"n": state["n"]}))

    return GraphBuilder().with_actions(step=step, go=go).with_transitions(("step", "go")).build()


def w5(task: Task) -> Measurement:
    continued_at: list[float] = []
    graph, persister = waiting_graph(continued_at), open_persister(task)
    figures = Waiting(task=task)
    figures.idle()
    with stopwatch() as starting:
        for number in range(task.runs):
            application(graph, persister, f"run-{number}").run(halt_before=["go"])
    figures.waiting()
    for number in range(min(WAKES, task.runs)):
        sent = time.perf_counter()
        application(graph, persister, f"run-{number}").run(halt_after=["go"], inputs={"event": "now"})
        figures.woken(sent, continued_at[-1])
    return figures.measurement(starting, notes="a waiting run is a stopped one")


def w6(task: Task) -> Measurement:
    graph, persister = chain_graph(Texts().after, task.steps, "text"), open_persister(task)
    with stopwatch() as watch:
        expect(run_to_end(graph, persister, "texts"), task.steps)
    return megabytes(task, watch)
