"""What one run is told from outside: each command is taken up once, with the transition that holds its consequences.

Some come too early, such as items for an input that is not open yet. They wait here, in their order, and are not taken up durably
until they were obeyed: whoever has the run next hears them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.engine.driving.obeying import obey
from perdure.engine.driving.sending import is_too_early
from perdure.engine.recording.pending import Pending
from perdure.ids import CommandId, NodeId
from perdure.store.shapes import Command

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

log = logging.getLogger("perdure.driver")


class Hearing:
    """Obeys commands, each when its time has come."""

    def __init__(self, driver: Driver, pending: Pending) -> None:
        self._driver = driver
        self._pending = pending
        self._heard: set[CommandId] = set()
        self._early: dict[CommandId, Command] = {}
        """Those that have to wait, in their order."""
        self._when_taken: Callable[[], None] | None = None

    @property
    def has_untaken(self) -> bool:
        """Whether there are commands that no transition has taken up yet."""
        return bool(self._pending.commands or self._early)

    def hear(self, command: Command) -> None:
        """Take up a wish from outside, unless it was heard before."""
        driver = self._driver
        if command.command_id in self._heard:
            return
        if is_too_early(command, driver, self._early.values()):
            self._early[command.command_id] = command
            node_id = NodeId(str(command.payload.get("input", "")))
            driver.decider.stir(node_id, at=driver.machinery.clock.now_micros())
            driver.happened()
            return
        self._heard.add(command.command_id)
        self._pending.commands.append(command.command_id)
        driver.guarded(lambda: self._obey(command))

    def hear_early(self) -> None:
        """Take up what had to wait, if its time has come."""
        early, self._early = self._early, {}
        for command in early.values():
            self.hear(command)
        if self._when_taken is not None:
            self.when_taken(self._when_taken)

    def when_taken(self, act: Callable[[], None]) -> None:
        """Have something done when all commands that were given so far are taken up durably, also those that have to wait."""
        self._when_taken = act if self._early else None
        if not self._early:
            self._driver.when_durable(act)
            self._driver.submit()

    def _obey(self, command: Command) -> None:
        driver = self._driver
        if not obey(command, driver, at=driver.machinery.clock.now_micros()):
            log.info("command_without_effect", extra={"run_id": driver.run_id, "kind": command.kind})
        driver.happened()
        driver.submit()
