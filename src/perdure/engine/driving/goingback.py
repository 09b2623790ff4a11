"""How whoever drives a run has it go back: to what has failed, to a node that somebody has chosen, or to what it was.

The wish is a command, so that it is durable before anything follows from it, and whoever takes the run up does it once. Creating
the branch and going on on it are one transition with taking the command. Each wish is about the branch on which the run was when
it was made: of two at the same time, the second comes to nothing, and whoever made it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.ids import NodeId
from perdure.journal.repairing import Change
from perdure.journal.restoring import why_not_back
from perdure.journal.states import MOVING, TERMINAL
from perdure.store.shapes import Command
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

RETRY, JUMP, RESTORE = "retry", "jump", "restore"
GOING_BACK = frozenset((RETRY, JUMP, RESTORE))
"""The commands that also a run hears that has ended."""


class Back(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of the commands. Values are encoded, as text."""

    node_id: str = ""
    """The node to go back to; only a jump has one."""
    seq: int = 0
    """The last event of the place to go back to; only where what was then is restored."""
    branch: int = 0
    """The branch on which the run was when it was asked to go back; 0 if nobody has said so."""
    given: dict[str, str] = {}
    outputs: dict[str, str] | None = None
    items: tuple[int, ...] = ()
    """The items of the node that begin again, in order; none if all of it does."""
    version: int | None = None
    """The version with which the run goes on, if that is another one; and what that says, wherever the wish is read."""
    graph_hash: str = ""
    blobs: tuple[BlobUse, ...] = ()
    reason: str = ""
    by: str = ""

    @property
    def change(self) -> Change:
        """What is to be otherwise at the node."""
        return Change(
            node_id=NodeId(self.node_id),
            given={handle: msgspec.Raw(value.encode()) for handle, value in self.given.items()},
            outputs=None
            if self.outputs is None
            else {handle: msgspec.Raw(value.encode()) for handle, value in self.outputs.items()},
            items=self.items,
        )


def has_to_be_loaded(command: Command, driver: Driver) -> bool:
    """Whether whoever takes the run up next does what a command says, who reads what is needed for that before, or has the run
    follow another version."""
    is_of_items = command.kind == JUMP and bool(command.payload.get("items"))
    rests = driver.projection.run.status not in MOVING
    is_loaded = command.command_id in driver.reopenings or command.command_id in driver.returnings
    return (is_of_items or is_switch(command) or command.kind == RESTORE) and rests and not is_loaded


def is_switch(command: Command) -> bool:
    """Whether a command has a run follow another version."""
    return command.kind in (RETRY, JUMP) and command.payload.get("version") is not None


def obey_going_back(command: Command, driver: Driver, *, at: int) -> bool:
    """Have the run go on on a branch. False if it cannot by now."""
    back = msgspec.convert(command.payload, Back)
    decider = driver.decider
    if back.branch not in (0, driver.projection.run.branch_id) or back.version is not None:
        return False  # another version is taken before the run is driven, or not at all
    if command.kind == RESTORE:
        return _restore(command, back, driver, at)
    if command.kind == RETRY:
        if not decider.may_retry:
            return False
        driver.spent_seconds = 0.0  # it has all its time again
        decider.retry(reason=back.reason, asked_as=command.command_id, at=at)
        return True
    reopening = driver.reopenings.get(command.command_id)
    if decider.why_not(back.change) is not None or (back.items and reopening is None):
        return False
    if driver.projection.run.status in TERMINAL:
        driver.spent_seconds = 0.0
    driver.streams.record_all(decider, at=at)
    driver.use_blobs(back.blobs)
    cone = decider.jump(
        back.change,
        reason=back.reason,
        by=back.by,
        asked_as=command.command_id,
        at=at,
        items=None if reopening is None else reopening.items,
    )
    driver.flow.begin_again(cone.dropped)
    if reopening is not None:
        created = driver.projection.node(back.change.node_id).last_seq
        driver.streams.bring(reopening.items, reopening.rows_on(driver.projection.run.branch_id, created))
    return True


def _restore(command: Command, back: Back, driver: Driver, at: int) -> bool:
    """Go back to a place, of which whoever took up the run has read what it was. A run that moves does not."""
    returning = driver.returnings.get(command.command_id)
    now = driver.projection.run
    if returning is None or why_not_back(returning.past, driver.decider.plan, now) is not None:
        return False
    driver.spent_seconds = 0.0
    branch_id = driver.decider.restore(returning.past, reason=back.reason, asked_as=command.command_id, at=at)
    driver.streams.bring_back([msgspec.structs.replace(row, branch_id=branch_id) for row in returning.rows])
    return True
