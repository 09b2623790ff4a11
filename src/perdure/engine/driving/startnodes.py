"""Nodes that start runs of other workflows: one for each item, under an id that is the same whoever starts it.

A run is durable before the node's result is. Whatever happens in between, the next attempt finds the run that is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.engine.attempts.keys import item_name, started_run_id
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.mapping import MapActor
from perdure.errors import EngineStopped
from perdure.graph.model import START
from perdure.graph.starts import NAME

if TYPE_CHECKING:
    from perdure.dispatch.base import Task
    from perdure.engine.driving.calls import ItemServices
    from perdure.engine.driving.driver import Driver
    from perdure.graph.plan import NodePlan
    from perdure.ids import RunId


class StartActor(Actor):
    """Starts one run."""

    async def _execute(self, task: Task) -> Any:
        return await _started(self, self._driver, task, item_name(0, {}))


class StartEachActor(MapActor):
    """Starts a run for each item."""

    async def _called(self, task: Task, services: ItemServices) -> Any:
        return await _started(self, self._driver, task, services.name)


def starts_runs(plan: NodePlan) -> bool:
    """Whether a node starts runs."""
    return plan.node.type == START


async def _started(actor: Actor, driver: Driver, task: Task, item: str) -> RunId:
    """Start the run of an item, and return its id."""
    run_id = started_run_id(driver.run_id, driver.projection.node(actor.node_id), item, task.info.item)
    workflow = task.decode(task.arguments[NAME], str)
    inputs = {name: value for name, value in task.arguments.items() if name != NAME}
    try:
        await actor.patiently(lambda: driver.machinery.start_run(run_id, workflow, inputs, task.decode))
    except EngineStopped:
        # No failure of the node: whoever has the run next starts what this engine does not start any more.
        driver.waiting.unwind(actor, "the engine stopped")
        await asyncio.get_running_loop().create_future()
    return run_id
