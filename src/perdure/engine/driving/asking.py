"""The node that asks: it waits between nodes, with nothing of it in memory, and no body runs when the answer comes.

Where all that it needs is at hand, nothing runs at all: that it asks and rests is recorded with what led to it, and so is what
follows from the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.dispatch.waits import asked
from perdure.engine.attempts.arguments import arguments_at_hand, gather_arguments
from perdure.engine.attempts.concluding import conclude_for
from perdure.engine.attempts.values import Decode
from perdure.engine.driving.actor import Actor
from perdure.graph.model import ASK
from perdure.graph.plan import NodePlan
from perdure.journal.events import Encoded
from perdure.journal.states import WaitState, WaitStatus
from perdure.store.codecs import content_refs
from perdure.store.transitions import BlobUse


class AskActor(Actor):
    """Asks, and ends at once; run again when there is an answer, it gives that."""

    has_effects = False

    def prepare(self) -> None:
        """There is nothing to make ready."""

    def settle_at_once(self) -> bool:
        try:
            given = arguments_at_hand(self._plan, self._driver.projection)
            if given is None or any(map(content_refs, given.values())):
                return False
            wait = self._asked(*self._question(given, self.values.decode_whole))
            outputs = None if wait.status is WaitStatus.OPEN else self._outputs_at_hand(wait)
        except Exception:  # whatever is wrong, the attempt finds it again and reports it
            return False
        if wait.status is WaitStatus.OPEN:
            self._rest_on(wait)
            self._driver.waiting.suspended(self)
        elif outputs is not None:
            at = self._driver.machinery.clock.now_micros()
            self._driver.decider.attempt_completed(self.node_id, self.attempt, outputs, duration_ms=0, at=at)
        return wait.status is WaitStatus.OPEN or outputs is not None

    def _outputs_at_hand(self, wait: WaitState) -> dict[str, Encoded] | None:
        if wait.result is None or content_refs(wait.result):
            return None
        concluded = self._conclude(self.values.decode_whole(wait.result, Any))
        return None if concluded.blobs else concluded.outputs

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        given = await self.patiently(lambda: gather_arguments(self._plan, self._driver.projection, self.values))
        needed = [value for handle, value in given.items() if handle != "show"]
        read = await self.patiently(lambda: self.values.reader(*needed))
        wait = self._asked(*self._question(given, read))
        if wait.status is WaitStatus.OPEN:
            self._rest_on(wait)
            raise asyncio.CancelledError
        if wait.result is None:
            raise TimeoutError(f"nobody has answered {wait.question.prompt if wait.question else ''!r} in time")
        answer = await self.patiently(lambda: self.values.unpack(wait.result or msgspec.Raw(b"null"), Any))
        return await conclude_for(answer, self.node_id, self._driver.decider.plan, self.values)

    def _rest_on(self, wait: WaitState) -> None:
        self.unwinding, self.unwound_from = "it asks", (wait.wait_id,)

    def _asked(self, question: Mapping[str, Any], show: Encoded | None) -> WaitState:
        """Return the wait for an answer: the one that is there, or a new one."""
        wanted = asked(
            question["prompt"],
            question.get("schema"),
            question.get("choices"),
            question.get("deadline"),
            question.get("default"),
        )
        return self._driver.waiting.found_or_opened(self, wanted, show)

    def _question(self, given: dict[str, Encoded], read: Decode) -> tuple[dict[str, Any], Encoded | None]:
        """Return what is asked, and what is shown with it. Most of it stands in the graph, in the form in which it is needed."""
        question: dict[str, Any] = dict(self._plan.constants)
        show = given.pop("show", None)
        if "show" in question:
            show = msgspec.Raw(self.values.codecs.encode(question.pop("show"), where=f"node {self.node_id!r}"))
        return question | {handle: read(value, Any) for handle, value in given.items()}, show


def is_ask(plan: NodePlan) -> bool:
    """Whether a node asks, once."""
    return plan.node.type == ASK and plan.flow is None
