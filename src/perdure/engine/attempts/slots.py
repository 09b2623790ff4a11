"""Places for bodies: how many may run at once on the loop, in threads and in processes, shared fairly between runs.

A run may pass a slot on to what follows from the body that had it, for as long as `Launching` says that it is its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol

from perdure.dispatch.base import SlotKind


class Grant(Enum):
    """What became of a slot that was offered to one who waits."""

    TAKEN = auto()
    """It is the claimant's, who releases it."""
    UNNEEDED = auto()
    """The claimant waits no longer."""
    NOT_YET = auto()
    """The claimant may start nothing at this moment, and keeps its place."""


class Claimant(Protocol):
    """A run that wants to start bodies."""

    def slot_granted(self, kind: SlotKind) -> Grant:
        """Use the slot, or say why not. Slots may be acquired and released meanwhile."""
        ...


class Slots:
    """Grants slots; who asks when there is none is granted one later, in the order of asking."""

    def __init__(self, sizes: Mapping[SlotKind, int], *, on_shortage: Callable[[], None] = lambda: None) -> None:
        """`on_shortage` is called when somebody has to wait."""
        self._free: dict[SlotKind, int] = dict(sizes)
        self._sizes = sum(sizes.values())
        self._queues: dict[SlotKind, dict[Claimant, None]] = {kind: {} for kind in sizes}
        self._granting: set[SlotKind] = set()
        self._on_shortage = on_shortage

    @property
    def are_waited_for(self) -> bool:
        """Whether somebody waits for a slot, of whatever kind."""
        return any(self._queues.values())

    @property
    def in_use(self) -> int:
        """How many slots bodies have, of whatever kind."""
        return self._sizes - sum(self._free.values())

    def is_owed(self, kind: SlotKind) -> bool:
        """Whether there are more slots of this kind in use than there are."""
        return self._free[kind] < 0

    def is_waited_for(self, kind: SlotKind) -> bool:
        """Whether somebody waits for a slot of this kind."""
        return bool(self._queues[kind])

    def acquire(self, kind: SlotKind, claimant: Claimant) -> bool:
        """Take a slot, or be remembered as waiting for one, behind those who wait already."""
        if self._free[kind] > 0 and not self._queues[kind]:
            self._free[kind] -= 1
            return True
        self._queues[kind].setdefault(claimant)
        self._grant(kind)
        if claimant in self._queues[kind]:
            self._on_shortage()
        return False

    def release(self, kind: SlotKind) -> None:
        """Give a slot back: the one who has waited longest gets it."""
        self._free[kind] += 1
        self._grant(kind)

    def take_back(self, kind: SlotKind) -> None:
        """Take a slot again that was given back for a while, at once. If it is somebody else's by then, there is one more in use
        than there are, and the next that is given back is nobody's."""
        self._free[kind] -= 1

    def offer(self) -> None:
        """Offer what is free to those who wait: what kept them from using it is over."""
        for kind in self._queues:
            self._grant(kind)

    def forget(self, claimant: Claimant) -> None:
        """Stop remembering one who waits."""
        for queue in self._queues.values():
            queue.pop(claimant, None)

    def _grant(self, kind: SlotKind) -> None:
        # A claimant may release or acquire while it is asked: that is seen to by the loop that asks it, not by another one
        # inside it, which would be as deep as the queue is long.
        if kind in self._granting or self._free[kind] <= 0:
            return
        self._granting.add(kind)
        not_yet: dict[Claimant, None] = {}
        try:
            while self._free[kind] > 0 and (claimant := next(iter(self._queues[kind]), None)) is not None:
                del self._queues[kind][claimant]
                self._free[kind] -= 1
                grant = claimant.slot_granted(kind)
                if grant is not Grant.TAKEN:
                    self._free[kind] += 1
                if grant is Grant.NOT_YET:
                    not_yet[claimant] = None
        finally:
            self._granting.discard(kind)
            if not_yet:
                self._queues[kind] = not_yet | self._queues[kind]
