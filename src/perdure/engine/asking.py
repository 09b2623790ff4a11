"""The node that asks: it waits between nodes, with nothing of it in memory, and no body runs when the answer comes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from perdure.dispatch.waits import asked
from perdure.engine.actor import Actor
from perdure.engine.arguments import arguments_at_hand, gather_arguments
from perdure.engine.concluding import conclude_for
from perdure.graph.model import ASK
from perdure.graph.plan import NodePlan
from perdure.journal.events import Encoded
from perdure.journal.states import WaitStatus
from perdure.store.transitions import BlobUse


class AskActor(Actor):
    """Asks, and ends at once; run again when there is an answer, it gives that."""

    has_effects = False

    def prepare(self) -> None:
        """There is nothing to make ready."""

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        plain, show = await self._question()
        wanted = asked(
            plain["prompt"], plain.get("schema"), plain.get("choices"), plain.get("deadline"), plain.get("default")
        )
        wait = self._driver.waiting.found_or_opened(self, wanted, show)
        if wait.status is WaitStatus.OPEN:
            self.unwinding, self.unwound_from = "it asks", (wait.wait_id,)
            raise asyncio.CancelledError
        if wait.result is None:
            raise TimeoutError(f"nobody has answered {wanted.prompt!r} in time")
        answer = await self.patiently(lambda: self.values.unpack(wait.result or msgspec.Raw(b"null"), Any))
        return await conclude_for(answer, self.node_id, self._driver.decider.plan, self.values)

    async def _question(self) -> tuple[dict[str, Any], Encoded | None]:
        """Return what is asked, and what is shown with it. Most of it stands in the graph, in the form in which it is needed."""
        given = arguments_at_hand(self._plan, self._driver.projection)
        if given is None:
            given = await self.patiently(lambda: gather_arguments(self._plan, self._driver.projection, self.values))
        plain: dict[str, Any] = dict(self._plan.constants)
        show = given.pop("show", None)
        if "show" in plain:
            show = msgspec.Raw(self.values.codecs.encode(plain.pop("show"), where=f"node {self.node_id!r}"))
        if given:
            read = await self.patiently(lambda: self.values.reader(*given.values()))
            plain |= {handle: read(value, Any) for handle, value in given.items()}
        return plain, show


def is_ask(plan: NodePlan) -> bool:
    """Whether a node asks, once."""
    return plan.node.type == ASK and plan.flow is None
