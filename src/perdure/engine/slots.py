"""Places for bodies: how many may run at once on the loop, in threads and in processes, shared fairly between runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from perdure.dispatch.base import SlotKind


class Claimant(Protocol):
    """A run that wants to start bodies."""

    def slot_granted(self, kind: SlotKind) -> None:
        """Use the slot or release it."""
        ...


class Slots:
    """Grants slots; who asks when there is none is granted one later, in the order of asking."""

    def __init__(self, sizes: Mapping[SlotKind, int]) -> None:
        self._free: dict[SlotKind, int] = dict(sizes)
        self._queues: dict[SlotKind, dict[Claimant, None]] = {kind: {} for kind in sizes}

    def acquire(self, kind: SlotKind, claimant: Claimant) -> bool:
        """Take a slot, or be remembered as waiting for one."""
        if self._free[kind] > 0:
            self._free[kind] -= 1
            return True
        self._queues[kind][claimant] = None
        return False

    def release(self, kind: SlotKind) -> None:
        """Give a slot back: the one who has waited longest gets it."""
        queue = self._queues[kind]
        if not queue:
            self._free[kind] += 1
            return
        claimant = next(iter(queue))
        del queue[claimant]
        claimant.slot_granted(kind)

    def forget(self, claimant: Claimant) -> None:
        """Stop remembering one who waits."""
        for queue in self._queues.values():
            queue.pop(claimant, None)
