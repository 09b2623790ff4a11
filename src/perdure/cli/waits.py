"""What a run waits for, in words, and the commands that give it what it waits for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from perdure.cli.options import Place
from perdure.cli.words import counted, limit, plain
from perdure.clock import SystemClock
from perdure.engine.inspect import is_answered, load_graph, open_waits
from perdure.graph.model import FED, Graph
from perdure.ids import NodeId, RunId
from perdure.journal.states import WAITING, NodeStatus, WaitKind, WaitState
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

MOST_WAITS = 5
"""How many of the things that a run waits for are told with their commands."""


class Awaited(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for from outside, and what of it nobody has given it yet."""

    waits: Sequence[WaitState] = ()
    inputs: Sequence[NodeId] = ()
    """Inputs that are streams and wait for items."""


NOTHING = Awaited()


async def what_is_awaited(store: Store, stored: StoredRun) -> Awaited:
    """Return what a run waits for. Where the time for something is over, nobody can give it any more."""
    now = SystemClock().now_micros()
    graph = await load_graph(store, stored.run) if stored.run.status in WAITING else None
    waits = [wait for wait in open_waits(stored) if not (is_answered(stored, wait) or _is_over(wait, now))]
    return Awaited(waits=waits, inputs=_open_inputs(stored, graph))


def _is_over(wait: WaitState, now: int) -> bool:
    return wait.due is not None and wait.due <= now


def _open_inputs(stored: StoredRun, graph: Graph | None) -> list[NodeId]:
    streams = {node.id for node in graph.nodes if node.type in FED} if graph is not None else set[NodeId]()
    return [node.node_id for node in stored.nodes if node.node_id in streams and node.status is NodeStatus.SUSPENDED]


def waiting_words(wait: WaitState, *, now: int) -> str:
    """Return what a node waits for, as it follows the node's name: `asks 'Publish this?'`."""
    prompt = "" if wait.question is None else wait.question.prompt
    match wait.kind:
        case WaitKind.ASK:
            told = f"asks {plain(repr(prompt))}"
        case WaitKind.SUSPEND:
            told = "waits to be told to go on" + (f": {plain(prompt)}" if prompt else "")
        case WaitKind.SIGNAL:
            told = f"waits for signal {plain(repr(wait.signal))}"
        case WaitKind.SLEEP:
            told = "sleeps"
    return told + limit(wait.due, now=now)


def how_to_end(run_id: RunId, awaited: Awaited, place: Place) -> Iterator[tuple[str, str]]:
    """Yield what a person can do about what a run waits for: why, and the command. Time cannot be helped."""
    asked = [wait for wait in awaited.waits if wait.kind is WaitKind.ASK]
    others = [wait for wait in awaited.waits if wait.kind in (WaitKind.SUSPEND, WaitKind.SIGNAL)]
    for wait in [*asked, *others][:MOST_WAITS]:
        yield _step(run_id, wait, place, is_only=len(asked) == 1)
    if (more := len(asked) + len(others) - MOST_WAITS) > 0:
        yield f"and {counted(more, 'more wait')}", place.command("show", run_id)
    for name in awaited.inputs[:MOST_WAITS]:
        yield f"give {plain(name)} an item", place.command("send", run_id, name, "ITEM")


def _step(run_id: RunId, wait: WaitState, place: Place, *, is_only: bool) -> tuple[str, str]:
    match wait.kind:
        case WaitKind.ASK:
            value, others = example_answer(wait)
            prompt = "" if wait.question is None else wait.question.prompt
            target = run_id if is_only else wait.wait_id
            return f"answer {plain(repr(prompt))}", place.command("answer", target, value) + others
        case WaitKind.SUSPEND:
            resume = place.command("resume", run_id, "--node", wait.node_id, "--value", "JSON")
            return f"let {plain(wait.node_id)} go on", resume
        case _:
            return f"send signal {plain(repr(wait.signal))}", place.command(
                "signal", run_id, wait.signal or "", "VALUE"
            )


def example_answer(wait: WaitState) -> tuple[str, str]:
    """Return an answer for a person to type, or a word that stands for it; and what else would do."""
    question = wait.question
    if question is None:
        return "VALUE", ""
    if question.choices:
        first, *rest = (_typed(msgspec.json.decode(choice)) for choice in question.choices)
        return first, f" (or {', '.join(map(shlex.quote, rest))})" if rest else ""
    match question.schema.get("type"):
        case "boolean":
            return "true", " (or false)"
        case "string":
            return "TEXT", ""
        case "integer" | "number":
            return "NUMBER", ""
        case _:
            return "JSON", ""


def _typed(choice: Any) -> str:
    return choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
