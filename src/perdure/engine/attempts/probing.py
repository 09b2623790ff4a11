"""Asking what became of an attempt that must not be repeated and was lost: the *probe* of its node type.

    def was_charged(doubt: Doubt) -> Answer:
        charge = bank.find(doubt.idempotency_key)
        return ("done", charge.receipt) if charge else "retry"

    @node(once=True, probe=was_charged)
    async def charge(ctx: Context, amount: Decimal) -> str: ...

A probe is asked when the run is taken up, and its answer is recorded in the transition that takes the run up. An engine that
stops does not ask: it leaves the run moving, for whoever comes next. A probe may be asked several times and by several
engines; it only looks. One that raises, takes too long or does not know (None) leaves the node
in doubt, for a person to resolve.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import msgspec

from perdure.dispatch.failure import contained
from perdure.engine.attempts.concluding import conclude_for
from perdure.engine.attempts.keys import idempotency_key
from perdure.engine.attempts.resolution import Resolution, done
from perdure.engine.attempts.values import Values
from perdure.graph.declare import NodeType
from perdure.graph.plan import Plan
from perdure.graph.surroundings import models_around
from perdure.ids import NodeId, RunId
from perdure.journal.states import TERMINAL, NodeState, NodeStatus, RunStatus
from perdure.store.shapes import StoredRun

log = logging.getLogger("perdure.probing")

PROBE_SECONDS = 30.0
"""How long a probe may take."""

Word = Literal["done", "retry", "fail"]
Answer = Word | tuple[Literal["done"], Any] | None
"""What a probe may say: that the attempt had its effect (with what the node would have returned, else it is None), that it had
none and may be repeated, that the node has failed, or that it does not know."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is asked about."""

    run_id: RunId
    node_id: NodeId
    attempt: int
    idempotency_key: str
    """What the body had as `ctx.idempotency_key`."""
    restored: Any = None
    """What the body saved last with `ctx.checkpoint`, if it did."""


def nodes_to_probe(stored: StoredRun, plan: Plan) -> list[NodeState]:
    """Return the nodes that are in doubt once this run is taken up, and that have a probe. A person's word comes first."""
    run = stored.run
    is_ending = run.status in TERMINAL or run.status in (RunStatus.CANCELLING, RunStatus.FAILING)
    if is_ending or any(command.kind == "cancel" for command in stored.commands):
        return []
    told = {command.payload.get("node_id") for command in stored.commands if command.kind == "resolve"}
    return [
        node
        for node in stored.nodes
        if node.status in (NodeStatus.RUNNING, NodeStatus.IN_DOUBT)
        and node.node_id not in told
        and plan.nodes[node.node_id].policy.probe is not None
    ]


async def ask_probes(
    nodes: Sequence[NodeState],
    stored: StoredRun,
    plan: Plan,
    types: Mapping[str, NodeType[..., Any]],
    values: Values,
) -> list[Resolution]:
    """Return what the probes of these nodes say, as far as they say something."""
    answers: list[Resolution] = []
    for node in nodes:
        probe = plan.nodes[node.node_id].policy.probe
        assert probe is not None
        place = {"run_id": stored.run.run_id, "node_id": node.node_id, "attempt": node.attempt}
        try:
            node_type = types[plan.nodes[node.node_id].node.type]
            said = await _asked(probe, await _doubt(node, stored, node_type, values))
            answer = await _resolution(said, node, plan, values)
        except Exception as error:  # a probe is the user's code, and may raise and return anything
            log.warning("probe_failed", extra={**place, "error": f"{type(error).__name__}: {error}"})
            continue
        log.info("probe_asked", extra={**place, "answer": None if answer is None else answer.resolution})
        if answer is not None:
            answers.append(answer)
    return answers


async def _doubt(node: NodeState, stored: StoredRun, node_type: NodeType[..., Any], values: Values) -> Doubt:
    run_id = stored.run.run_id
    around = models_around(node_type.fn)  # as the body itself reads it
    return Doubt(
        run_id=run_id,
        node_id=node.node_id,
        attempt=node.attempt,
        idempotency_key=idempotency_key(run_id, node),
        restored=None if node.checkpoint is None else await values.unpack(node.checkpoint, around),
    )


async def _resolution(said: Any, node: NodeState, plan: Plan, values: Values) -> Resolution | None:
    word, value = cast("tuple[Any, Any]", said) if isinstance(said, tuple) else (said, None)
    if word is None:
        return None
    if word not in ("done", "retry", "fail"):
        raise ValueError(f"a probe answers 'done', ('done', value), 'retry', 'fail' or None, not {said!r:.100}")
    if word != "done":
        return Resolution(node_id=node.node_id, resolution=word, attempt=node.attempt, by="probe")
    given = await conclude_for(value, node.node_id, plan, values)
    return done(node, *given, by="probe")


async def _asked(probe: Callable[..., Any], doubt: Doubt) -> Any:
    async with asyncio.timeout(PROBE_SECONDS):
        try:
            answer = probe(doubt) if inspect.iscoroutinefunction(probe) else await _in_thread(lambda: probe(doubt))
            return await answer if inspect.isawaitable(answer) else answer
        except asyncio.CancelledError as error:
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise
            raise RuntimeError("the probe has cancelled itself") from error
        except SystemExit as error:
            raise contained(error) from error


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call it in a thread of its own, which nobody waits for when it takes too long: not even the end of the program."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(answer)
        else:
            answered.set_exception(contained(error))

    def call() -> None:
        answer: Any = None
        problem: BaseException | None = None
        try:
            answer = function()
        except BaseException as error:  # it is for whoever waits, whatever it is
            problem = error
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, problem)

    threading.Thread(target=call, name="perdure-probe", daemon=True).start()
    return await answered
